// Loops over rows of floats, with the tail written once: a body is given a place that reads and writes four floats, or, at the
// end, the one to three that are left.
#pragma once

#include "kernels/simd.hpp"

namespace wf::kernels {

using simd::F32;

struct Whole {
  size_t i;
  F32 get(const float* p, float = 0.0f) const { return simd::load(p + i); }
  void put(float* p, F32 a) const { simd::store(p + i, a); }
  F32 keep(F32 a) const { return a; }
};

struct Part {
  size_t i, n;
  F32 get(const float* p, float fill = 0.0f) const { return simd::load_part(p + i, n, fill); }
  void put(float* p, F32 a) const { simd::store_part(p + i, a, n); }
  // Zero in the lanes that are padding.
  F32 keep(F32 a) const {
    float lanes[simd::kLanes];
    simd::store(lanes, a);
    return simd::load_part(lanes, n);
  }
};

template <class Body>
inline void each(size_t n, Body body) {
  size_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) body(Whole{i});
  if (i < n) body(Part{i, n - i});
}

// The same with the body compiled once, where size matters more than speed: a test at every access instead of a second copy.
struct Either {
  size_t i, n;
  F32 get(const float* p) const { return n >= simd::kLanes ? simd::load(p + i) : simd::load_part(p + i, n); }
  void put(float* p, F32 a) const {
    if (n >= simd::kLanes) {
      simd::store(p + i, a);
    } else {
      simd::store_part(p + i, a, n);
    }
  }
};

template <class Body>
inline void each_compact(size_t n, Body body) {
  for (size_t i = 0; i < n; i += simd::kLanes) body(Either{i, n - i});
}

// Sum of the vectors `term` gives. Runs of 128 floats are summed first, so that the error grows with n / 128, not n.
template <class Term>
inline float total(size_t n, Term term) {
  constexpr size_t kRun = 128, kStep = 4 * simd::kLanes;
  F32 all0 = simd::zero(), all1 = all0, all2 = all0, all3 = all0;
  size_t i = 0;
  while (i + kStep <= n) {
    F32 s0 = simd::zero(), s1 = s0, s2 = s0, s3 = s0;
    const size_t end = n - i < kRun ? n : i + kRun;
    for (; i + kStep <= end; i += kStep) {
      s0 = s0 + term(Whole{i});
      s1 = s1 + term(Whole{i + 4});
      s2 = s2 + term(Whole{i + 8});
      s3 = s3 + term(Whole{i + 12});
    }
    all0 = all0 + s0;
    all1 = all1 + s1;
    all2 = all2 + s2;
    all3 = all3 + s3;
  }
  for (; i + simd::kLanes <= n; i += simd::kLanes) all0 = all0 + term(Whole{i});
  if (i < n) {
    const Part part{i, n - i};
    all1 = all1 + part.keep(term(part));
  }
  return simd::sum((all0 + all1) + (all2 + all3));
}

// Largest of x (n), n > 0; unspecified which number where one is NaN.
inline float largest(const float* x, size_t n) {
  F32 best = simd::splat(x[0]);
  each(n, [&](auto at) { best = simd::max(best, at.get(x, x[0])); });
  return simd::maximum(best);
}

}  // namespace wf::kernels
