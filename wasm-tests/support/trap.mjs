// Makes the WebAssembly instances of this thread trap on demand: each imported function is wrapped, and after
// `armTrap(n)` the n-th call runs into a real `unreachable` beneath the instance's own frames.

// (module (func (export "trap") unreachable))
const bytes = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 7, 8, 1, 4, 116, 114, 97, 112, 0, 0, 10, 5, 1, 3, 0, 0, 11,
]);
const { trap } = new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;

let left = Number.POSITIVE_INFINITY;

export function armTrap(calls) {
  left = calls;
}

const instantiate = WebAssembly.instantiate;
WebAssembly.instantiate = (module, imports) => {
  const wrapped = {};
  for (const [space, members] of Object.entries(imports ?? {})) {
    wrapped[space] = {};
    for (const [name, member] of Object.entries(members)) {
      wrapped[space][name] = typeof member === 'function' ? (...args) => (left-- === 0 ? trap() : member(...args)) : member;
    }
  }
  return instantiate(module, wrapped);
};
