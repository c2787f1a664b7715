#include "kernels/level.hpp"

namespace wf::kernels {

const char* simd_level() {
#if defined(__wasm_relaxed_simd__)
  return "relaxed";
#elif defined(__wasm__)
  return "simd128";
#else
  return "native";
#endif
}

}  // namespace wf::kernels
