// The residual connection around a sub-layer, with its normalisation before the sub-layer or after the sum. While a model is being
// trained, dropout is applied to what a sub-layer gives, before it is added (Vaswani et al. 2017, section 5.4).
#pragma once

#include <cstdint>

#include "nn/norm.hpp"

namespace wf {

struct Residual {
  enum class Order : uint8_t {
    kPre,     // x + f(norm(x)): GPT-2, LLaMA
    kPost,    // norm(x + f(x)): Vaswani et al. 2017, section 3.1
    kNormed,  // norm(x) + f(norm(x)): some of BLOOM's relatives
  };

  Norm norm;
  Order order = Order::kPre;
  bool connected = true;  // false: without the x +, to see what it is good for

  // x (T, D) -> (T, D). Without a tape the result is written into x.
  template <class SubLayer>
  Tensor operator()(Context& ctx, Tensor x, const SubLayer& sub_layer) const {
    Scope scope(ctx);
    const auto join = [&](const Tensor& y) { return connected ? add(ctx, x, dropout(ctx, y)) : dropout(ctx, y); };
    if (order == Order::kPre) return scope.keep(join(sub_layer(norm(ctx, x))), x);
    if (order == Order::kNormed) {
      const Tensor h = norm(ctx, x);
      return scope.keep(add(ctx, h, dropout(ctx, sub_layer(h))), x);
    }
    return scope.keep(norm(ctx, join(sub_layer(x))), x);
  }
};

// Two sub-layers, each with its norm and its residual connection: one after the other, or both reading x side by side
// (Wang, Komatsuzaki 2021, GPT-J; Black et al. 2022, GPT-NeoX).
struct ResidualPair {
  Norm norm_1, norm_2;
  bool parallel = false;

  // x (T, D) -> (T, D): x + f(norm_1(x)) + g(norm_2(x)) in parallel; otherwise y = x + f(norm_1(x)), then y + g(norm_2(y)).
  // Without a tape the sum is written into x.
  template <class First, class Second>
  Tensor operator()(Context& ctx, Tensor x, const First& f, const Second& g) const {
    Scope scope(ctx);
    if (parallel) return add(ctx, x, dropout(ctx, add(ctx, g(norm_2(ctx, x)), f(norm_1(ctx, x)))));
    x = add(ctx, x, dropout(ctx, f(norm_1(ctx, x))));
    return add(ctx, x, dropout(ctx, g(norm_2(ctx, x))));
  }
};

}  // namespace wf
