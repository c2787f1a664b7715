// PyTorch on the processor, in a process of its own: pytorch.py takes a step for every line it reads.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** `isa`: the widest instructions that it may use, 'avx2' say; all by default. */
export async function open({ python, isa, ...spec }) {
  const program = fileURLToPath(new URL('pytorch.py', import.meta.url));
  const limits = isa ? { ATEN_CPU_CAPABILITY: isa, ONEDNN_MAX_CPU_ISA: isa.toUpperCase(), MKL_ENABLE_INSTRUCTIONS: isa.toUpperCase() } : {};
  const child = spawn(python, [program, JSON.stringify(spec)], { env: { ...process.env, ...limits } });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text) => {
    said = text.trim().split('\n').at(-1);
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  async function next() {
    const { value, done } = await lines.next();
    if (done) throw new Error(`PyTorch: ${said}`);
    return value;
  }
  await next();
  return {
    step() {
      child.stdin.write('\n');
      return next().then(Number);
    },
    close: () => child.stdin.end(),
  };
}
