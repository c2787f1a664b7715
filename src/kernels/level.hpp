// Which instructions the kernels were compiled for.
#pragma once

namespace wf::kernels {

// "relaxed" or "simd128"; natively "native".
const char* simd_level();

}  // namespace wf::kernels
