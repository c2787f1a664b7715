/**
 * Runs in a page before everything else: adds up the milliseconds that the page and its workers spend in WebAssembly's functions
 * that compile and instantiate, from call to answer. `compiling()` gives the sum.
 */
export function countCompiling() {
  const count = (report) => {
    for (const name of ['compile', 'instantiate', 'compileStreaming', 'instantiateStreaming']) {
      const original = WebAssembly[name];
      WebAssembly[name] = async (...args) => {
        if (name.endsWith('Streaming')) args[0] = await args[0]; // the download is not counted
        const start = performance.now();
        try {
          return await original.apply(WebAssembly, args);
        } finally {
          report(performance.now() - start);
        }
      };
    }
    for (const name of ['Module', 'Instance']) {
      WebAssembly[name] = new Proxy(WebAssembly[name], {
        construct(target, args) {
          const start = performance.now();
          const made = new target(...args);
          report(performance.now() - start);
          return made;
        },
      });
    }
  };
  let sum = 0;
  count((ms) => (sum += ms));
  const channel = new BroadcastChannel('compiling');
  channel.onmessage = ({ data }) => (sum += data);
  globalThis.compiling = () => new Promise((resolve) => setTimeout(() => resolve(sum), 100));

  // A worker's script is loaded by one that counts first.
  const prelude = `{ const channel = new BroadcastChannel('compiling'); (${count})((ms) => channel.postMessage(ms)); }`;
  const script = (text) => URL.createObjectURL(new Blob([text], { type: 'text/javascript' }));
  const first = script(prelude);
  globalThis.Worker = class extends Worker {
    constructor(url, options) {
      const address = JSON.stringify(String(new URL(url, location.href)));
      const load =
        options?.type === 'module'
          ? `import ${JSON.stringify(first)}; import ${address};`
          : `importScripts(${JSON.stringify(first)}, ${address});`;
      super(script(load), options);
    }
  };
}
