/** Emscripten's glue, which the build puts into each worker's bundle. */
declare module 'wasmformer-glue' {
  import type { NativeModule } from './native.ts';

  const createModule: (options: {
    instantiateWasm?: (imports: WebAssembly.Imports, done: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void) => object;
    wasmMemory?: WebAssembly.Memory;
    print?: (text: string) => void;
    printErr?: (text: string) => void;
    onAbort?: (what: unknown) => void;
  }) => Promise<NativeModule>;
  export default createModule;
}
