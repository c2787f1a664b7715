# CMake toolchain file of the wasm build.
include("${CMAKE_CURRENT_LIST_DIR}/Toolchain.cmake")
include("${WASMFORMER_EMSCRIPTEN}/cmake/Modules/Platform/Emscripten.cmake")
