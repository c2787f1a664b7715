// Normalisation of rows: LayerNorm, or RMSNorm with weights stored as w or as w - 1 (Gemma).
#pragma once

#include <cstdint>

#include "ops/ops.hpp"

namespace wf {

struct Norm {
  enum class Kind : uint8_t { kLayer, kRms };

  Kind kind = Kind::kLayer;
  Weight weight;  // (D)
  Weight bias;    // (D), LayerNorm only
  float eps = 1e-5f;
  float offset = 0;  // added to an RMSNorm's weight

  static Norm layer(size_t size, float eps) { return {Kind::kLayer, Weight::vector(size), Weight::vector(size), eps, 0}; }
  static Norm rms(size_t size, float eps, float offset = 0) { return {Kind::kRms, Weight::vector(size), Weight(), eps, offset}; }

  bool present() const { return weight.present(); }

  Tensor operator()(Context& ctx, const Tensor& x) const {
    if (kind == Kind::kLayer) return layer_norm(ctx, x, weight, bias, eps);
    return rms_norm(ctx, x, weight, offset, eps);
  }
};

}  // namespace wf
