// Builds, installs what is compared with, and measures; npm run bench -- --help says what.
// WASMFORMER_BENCH_PYTHON names a Python that has bench/requirements.txt; otherwise an environment is made in the user's cache.
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { chooseBench, usage } from '../bench/arguments.mjs';
import { nodeOf } from '../wasm-tests/support/nodes.mjs';
import { build, cmakeBuild } from './build.mjs';
import { ensureChromium } from './chromium.mjs';
import { ensurePython } from './python.mjs';
import { main, retry, root, run, step } from './run.mjs';

/** A program of bench/, `kernels` or `training`. */
async function program(name, args) {
  const folder = await cmakeBuild('wasm', [`bench_${name}`, `bench_${name}_relaxed`]);
  console.log('\nsimd128');
  await run(process.execPath, [join(folder, `bench_${name}.js`), ...args]);
  console.log('\nrelaxed');
  // Node 20 knows relaxed SIMD under a flag only, and not to the letter.
  await run(nodeOf(22), [join(folder, `bench_${name}_relaxed.js`), ...args]);
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
  if (name === 'kernels' || name === 'training') return program(name, rest);
  await build();
  if (name === 'quality') return (await import('../bench/quality.mjs')).main(rest);
  await buildMachine();
  await ensureChromium();
  const peers = await installPeers();
  const python = await ensurePython(join(root, 'bench/requirements.txt'), 'WASMFORMER_BENCH_PYTHON').catch((error) =>
    console.log(`   no Python: ${error.message}`),
  );
  await run(process.execPath, ['bench/bench.mjs', ...args, ...(python ? ['--python', python] : []), ...(peers ? [] : ['--no-peers'])]);
});
