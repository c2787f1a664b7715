option(WASMFORMER_SANITIZE "Address and undefined-behaviour sanitizers" OFF)
option(WASMFORMER_WERROR "Warnings are errors" OFF)

# How C++ exceptions are compiled; every object must agree.
add_library(wasmformer_exceptions INTERFACE)

add_library(wasmformer_flags INTERFACE)
target_compile_features(wasmformer_flags INTERFACE cxx_std_20)
target_include_directories(wasmformer_flags INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_include_directories(wasmformer_flags SYSTEM INTERFACE "${WASMFORMER_XSIMD}")
target_link_libraries(wasmformer_flags INTERFACE wasmformer_exceptions)
# A contracted multiply-add rounds once instead of twice: native code and wasm would differ in the last bit.
target_compile_options(wasmformer_flags INTERFACE -Wall -Wextra -ffp-contract=off)
if(WASMFORMER_WERROR)
  target_compile_options(wasmformer_flags INTERFACE -Werror)
endif()

if(WASMFORMER_SANITIZE)
  set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(wasmformer_flags INTERFACE ${sanitizers})
  target_link_options(wasmformer_flags INTERFACE ${sanitizers})
endif()

if(EMSCRIPTEN)
  # Wasm's own exceptions: no JavaScript on the way of a throw, and smaller than the emulated ones.
  target_compile_options(wasmformer_exceptions INTERFACE -fwasm-exceptions)
  target_link_options(wasmformer_exceptions INTERFACE -fwasm-exceptions)
  target_compile_options(wasmformer_flags INTERFACE -msimd128)
  # Threads; copying and filling memory by one instruction, which shared memory's start-up needs anyway.
  target_compile_options(wasmformer_flags INTERFACE -matomics -mbulk-memory)
else()
  find_package(Threads REQUIRED)
  target_link_libraries(wasmformer_flags INTERFACE Threads::Threads)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # 128-bit vectors of four floats, as in wasm, so that native tests see the same loops and tails.
    target_compile_options(wasmformer_flags INTERFACE -msse4.2)
  endif()
endif()

# The engines that have what is used here: SIMD and wasm exceptions everywhere, and module workers.
set(oldest_engines
  -sMIN_NODE_VERSION=200000
  -sMIN_CHROME_VERSION=95
  -sMIN_FIREFOX_VERSION=114
  -sMIN_SAFARI_VERSION=160400)

set(wasm_module_link_flags
  ${oldest_engines}
  -lembind
  # The JavaScript glue and the binary are minified only from -O2 on. -Oz makes the binary 3 % smaller and prefill 4 % slower;
  # with -flto Emscripten 3.1.69 does not tell wasm-opt of SIMD, and the link fails.
  -O3
  -sMODULARIZE -sEXPORT_ES6             # an ES module whose default export makes one instance
  -sENVIRONMENT=web,worker,node         # one file for pages, workers and Node; no shell code
  -sALLOW_MEMORY_GROWTH                 # a model's size is known only when it is loaded
  -sMAXIMUM_MEMORY=4GB                  # the default is 2 GB; pointers above it need `>>> 0` in JavaScript
  -sSHARED_MEMORY                       # threads; scripts/build.mjs clears the bit for those who have one only
  -sINITIAL_MEMORY=16MB                 # web/engine/native.ts makes the memory
  # Emscripten's own libraries without atomics: only this library's code ever runs in a thread, and it neither allocates nor throws.
  # They are smaller, and thread-local variables become plain ones, which a thread without Emscripten's start-up needs.
  -Wl,--no-check-features
  -sMEMORY_GROWTH_LINEAR_STEP=1MB       # grow to what was asked for, not by a fifth more: the engine asks once, for the whole model
  -sABORTING_MALLOC=0                   # running out of memory is an exception that can be reported, not an abort
  -sSTACK_SIZE=1MB                      # the default of 64 KB is little for kernels with local tiles
  -sDYNAMIC_EXECUTION=0                 # no eval and no new Function: pages with a content security policy
  -sFILESYSTEM=0                        # files are TypeScript's business
  -sNODEJS_CATCH_EXIT=0 -sNODEJS_CATCH_REJECTION=0   # a library installs no handlers in its user's process
  -sEMBIND_STD_STRING_IS_UTF8=1         # std::string is text
  -sINCOMING_MODULE_JS_API=instantiateWasm,wasmMemory,print,printErr,onAbort
)

set(wasm_test_link_flags
  ${oldest_engines}
  -sENVIRONMENT=node
  -sALLOW_MEMORY_GROWTH
  -sMAXIMUM_MEMORY=4GB
  -sABORTING_MALLOC=0                   # tests of running out of memory expect an exception
  -sSTACK_SIZE=5MB                      # Catch2's matchers and unoptimised frames are deep
  -sNODERAWFS=1                         # fixtures are read from the real file system
  -sEXIT_RUNTIME=1                      # the exit code is the result
)

# bench/machine.cpp: functions that a page calls by name.
set(wasm_bench_link_flags
  ${oldest_engines}
  --no-entry
  -O3
  -sMODULARIZE -sEXPORT_ES6
  -sENVIRONMENT=web,node
  -sALLOW_MEMORY_GROWTH
  -sSTACK_SIZE=1MB
  -sFILESYSTEM=0
  -sEXPORTED_FUNCTIONS=_multiply_add,_read_memory,_prepare_product,_product,_prepare_attention,_attention,_feed_forward
)
