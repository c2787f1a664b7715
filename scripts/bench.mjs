// Builds, installs what is compared with, and measures; npm run bench -- --help says what.
// WASMFORMER_BENCH_PYTHON names a Python that has bench/requirements.txt, for `training` bench/peers/training/requirements.txt; otherwise
// an environment is made in the user's cache.
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { chooseBench, usage } from '../bench/arguments.mjs';
import { nodeOf } from '../wasm-tests/support/nodes.mjs';
import { build, cmakeBuild } from './build.mjs';
import { ensureChromium } from './chromium.mjs';
import { ensurePython } from './python.mjs';
import { main, retry, root, run, step } from './run.mjs';

/** Both SIMD levels of a program of bench/; the folder where they are. */
const buildProgram = (name) => cmakeBuild('wasm', [`bench_${name}`, `bench_${name}_relaxed`]);

async function kernels(args) {
  const folder = await buildProgram('kernels');
  console.log('\nsimd128');
  await run(process.execPath, [join(folder, 'bench_kernels.js'), ...args]);
  console.log('\nrelaxed');
  // Node 20 knows relaxed SIMD under a flag only, and not to the letter.
  await run(nodeOf(22), [join(folder, 'bench_kernels_relaxed.js'), ...args]);
}

/** bench/node_modules as bench/package-lock.json has it. False if that fails: there is then nothing to compare with. */
async function installPeers() {
  const lock = readFileSync(join(root, 'bench/package-lock.json'), 'utf8');
  const stamp = join(root, 'bench/node_modules/.wasmformer-lock');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === lock) return true;
  const args = ['ci', '--ignore-scripts', '--omit=optional', '--no-audit', '--no-fund', '--loglevel=error'];
  try {
    await step('Peers', () => retry(3, () => run('npm', args, { cwd: join(root, 'bench') })));
  } catch (error) {
    console.log(`   no peers: ${error.message}`);
    return false;
  }
  writeFileSync(stamp, lock);
  return true;
}

/** bench/training.mjs with all that it is compared with. */
async function training([rounds = '5', shape = '']) {
  const dist = await build();
  const folder = await buildProgram('training');
  const peers = await installPeers();
  const python = await findPython('bench/peers/training/requirements.txt');
  await run(nodeOf(22), ['bench/training.mjs', rounds, shape, JSON.stringify({ folder, dist, peers, python })]);
}

/** A Python with what a file lists; undefined if there is none. */
const findPython = (file) =>
  ensurePython(join(root, file), 'WASMFORMER_BENCH_PYTHON').catch((error) => console.log(`   no Python: ${error.message}`));

/** bench/machine.cpp where pages find it. */
async function buildMachine() {
  const from = await cmakeBuild('wasm', ['bench_machine_relaxed']);
  const to = join(root, 'build/bench');
  mkdirSync(to, { recursive: true });
  for (const name of ['bench_machine_relaxed.mjs', 'bench_machine_relaxed.wasm']) copyFileSync(join(from, name), join(to, name));
}

main(import.meta.url, async (args) => {
  if (args.includes('--help') || args.includes('-h')) return console.log(usage);
  const { name, rest } = chooseBench(args);
  if (name === 'kernels') return kernels(rest);
  if (name === 'training') return training(rest);
  await build();
  if (name === 'quality') return (await import('../bench/quality.mjs')).main(rest);
  await buildMachine();
  await ensureChromium();
  const peers = await installPeers();
  const python = await findPython('bench/requirements.txt');
  await run(process.execPath, ['bench/bench.mjs', ...args, ...(python ? ['--python', python] : []), ...(peers ? [] : ['--no-peers'])]);
});
