#include "kernels/activation.hpp"

#include "kernels/loops.hpp"

namespace wf::kernels {
namespace {

using simd::constant;
using simd::mul_add;

// Each: the value at x, and the slope there.
struct Identity {
  static F32 value(F32 x) { return x; }
  static F32 slope(F32) { return constant<1.0f>(); }
};

struct Relu {
  static F32 value(F32 x) { return simd::select(x < simd::zero(), simd::zero(), x); }  // NaN stays NaN
  static F32 slope(F32 x) { return simd::select(x > simd::zero(), constant<1.0f>(), simd::zero()); }
};

struct Gelu {
  static F32 value(F32 x) { return x * simd::normal_cdf(x); }
  static F32 slope(F32 x) {
    const F32 pdf = simd::exp(constant<-0.5f>() * x * x) * constant<0.39894228040143268f>();  // 1 / sqrt(2 pi)
    return mul_add(x, pdf, simd::normal_cdf(x));
  }
};

struct GeluTanh {
  static constexpr float kTwice = 1.59576912160573071f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
  // (1 + tanh u) / 2 is sigmoid(2 u).
  static F32 twice(F32 x) { return constant<kTwice>() * mul_add(constant<kCubic>() * x * x, x, x); }
  static F32 value(F32 x) { return x / (constant<1.0f>() + simd::exp(simd::zero() - twice(x))); }
  static F32 slope(F32 x) {
    const F32 s = simd::sigmoid(twice(x));
    const F32 du = constant<kTwice>() * mul_add(constant<3.0f * kCubic>() * x, x, constant<1.0f>());
    return mul_add(x * s * (constant<1.0f>() - s), du, s);
  }
};

struct QuickGelu {
  static constexpr float kSharp = 1.702f;
  static F32 value(F32 x) { return x * simd::sigmoid(constant<kSharp>() * x); }
  static F32 slope(F32 x) {
    const F32 s = simd::sigmoid(constant<kSharp>() * x);
    return s + constant<kSharp>() * x * s * (constant<1.0f>() - s);
  }
};

struct Silu {
  static F32 value(F32 x) { return x / (constant<1.0f>() + simd::exp(simd::zero() - x)); }
  static F32 slope(F32 x) {
    const F32 s = simd::sigmoid(x);
    return s + x * s * (constant<1.0f>() - s);
  }
};

struct Tanh {
  static F32 value(F32 x) { return simd::tanh(x); }
  static F32 slope(F32 x) {
    const F32 t = simd::tanh(x);
    return constant<1.0f>() - t * t;
  }
};

struct Sigmoid {
  static F32 value(F32 x) { return simd::sigmoid(x); }
  static F32 slope(F32 x) {
    const F32 s = simd::sigmoid(x);
    return s * (constant<1.0f>() - s);
  }
};

template <class Use>
void with(Activation a, Use use) {
  switch (a) {
    case Activation::kIdentity:
      return use(Identity());
    case Activation::kRelu:
      return use(Relu());
    case Activation::kGelu:
      return use(Gelu());
    case Activation::kGeluTanh:
      return use(GeluTanh());
    case Activation::kQuickGelu:
      return use(QuickGelu());
    case Activation::kSilu:
      return use(Silu());
    case Activation::kTanh:
      return use(Tanh());
    case Activation::kSigmoid:
      return use(Sigmoid());
  }
}

}  // namespace

void activate(Activation a, const float* x, float* y, size_t n) {
  with(a, [=](auto f) { each(n, [=](auto at) { at.put(y, f.value(at.get(x))); }); });
}

void activate_backward(Activation a, const float* x, const float* dy, float* dx, size_t n) {
  with(a, [=](auto f) { each_compact(n, [=](auto at) { at.put(dx, mul_add(at.get(dy), f.slope(at.get(x)), at.get(dx))); }); });
}

void gated(Activation a, const float* gate, const float* up, float* y, size_t n) {
  with(a, [=](auto f) { each(n, [=](auto at) { at.put(y, f.value(at.get(gate)) * at.get(up)); }); });
}

void gated_backward(Activation a, const float* gate, const float* up, const float* dy, float* dgate, float* dup, size_t n) {
  with(a, [=](auto f) {
    each_compact(n, [=](auto at) {
      const F32 g = at.get(gate), d = at.get(dy);
      at.put(dgate, mul_add(d * at.get(up), f.slope(g), at.get(dgate)));
      at.put(dup, mul_add(d, f.value(g), at.get(dup)));
    });
  });
}

}  // namespace wf::kernels
