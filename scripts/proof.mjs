// What needs Python: fresh fixtures on new seeds, then the tests in wasm-tests/proof (real weights, longer comparisons).
// `npm run proof -- --seeds 3` makes fixtures for that many seeds, `--seed N` for one. WASMFORMER_PYTHON names a Python that
// has wasm-tests/python/requirements.txt; without it a virtual environment is made in the user's cache.
import { createHash } from 'node:crypto';
import { cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { aptInstall, isDebian } from './apt.mjs';
import { build } from './build.mjs';
import { main, output, Refusal, retry, root, run, step } from './run.mjs';
import { folder } from './toolchain.mjs';

/** A Python that has what the generator imports. */
async function ensurePython() {
  if (process.env.WASMFORMER_PYTHON) return process.env.WASMFORMER_PYTHON;
  const requirements = join(root, 'wasm-tests/python/requirements.txt');
  const key = createHash('sha256').update(readFileSync(requirements)).digest('hex').slice(0, 12);
  const place = join(dirname(folder), `python-${key}`);
  const python = join(place, 'bin/python');
  const stamp = join(place, 'ready');
  if (existsSync(stamp)) return python;
  const versions = ['python3.13', 'python3.12', 'python3.11', 'python3'];
  const base = versions.find((name) => output(name, ['-c', 'import sys; assert sys.version_info >= (3, 11)']) !== undefined);
  if (!base) throw new Refusal('Python 3.11 or newer is needed');
  if (isDebian() && output(base, ['-c', 'import ensurepip']) === undefined) await aptInstall(['python3-venv']);
  await step('Python packages', async () => {
    await run(base, ['-m', 'venv', '--clear', place]);
    await retry(3, () => run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', requirements]));
  });
  writeFileSync(stamp, '');
  return python;
}

function testsIn(name) {
  const place = join(root, 'wasm-tests', name);
  return existsSync(place)
    ? readdirSync(place)
        .filter((file) => file.endsWith('.test.mjs'))
        .sort()
        .map((file) => join(place, file))
    : [];
}

main(import.meta.url, async (args) => {
  const { values } = parseArgs({ args, options: { seeds: { type: 'string', default: '2' }, seed: { type: 'string' } } });
  const seeds = values.seed
    ? [Number(values.seed)]
    : Array.from({ length: Number(values.seeds) }, () => 1 + Math.floor(Math.random() * 1e6));
  await build();
  const python = await ensurePython();
  const nodeTest = (files, env) =>
    run(process.execPath, ['--test', '--test-reporter=spec', '--test-concurrency=1', ...files], {
      env: { ...env, WASMFORMER_PYTHON: python },
    });
  const failures = [];
  const attempt = (title, work) =>
    step(title, () =>
      work().catch((error) => {
        failures.push(title);
        console.log(`   ${error.message}`);
      }),
    );
  // Suites that compare with fixtures read them from WASMFORMER_FIXTURES.
  const comparing = testsIn('').filter((file) => readFileSync(file, 'utf8').includes('fixture'));
  for (const seed of seeds) {
    const fixtures = join(root, 'build/proof', `fixtures-${seed}`);
    await attempt(`Fresh fixtures, seed ${seed}`, async () => {
      rmSync(fixtures, { recursive: true, force: true });
      await run(python, ['wasm-tests/python/generate_fixtures.py', '--out', fixtures, '--seed', String(seed)]);
      // What other scripts make stays as it is.
      const stored = join(root, 'wasm-tests/fixtures');
      for (const name of readdirSync(stored))
        if (!existsSync(join(fixtures, name))) cpSync(join(stored, name), join(fixtures, name), { recursive: true });
      await nodeTest(comparing, { WASMFORMER_FIXTURES: fixtures });
      rmSync(fixtures, { recursive: true, force: true });
    });
  }
  const proofs = testsIn('proof');
  if (proofs.length) await attempt('Real weights and longer comparisons', () => nodeTest(proofs));
  console.log(failures.length ? `\nNot proven: ${failures.join('; ')}` : '\nAll proven.');
  process.exitCode = failures.length ? 1 : 0;
});
