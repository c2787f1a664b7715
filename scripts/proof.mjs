// What needs Python: fresh fixtures on new seeds, then the tests in wasm-tests/proof (real weights, longer comparisons).
// `npm run proof -- --seeds 3` makes fixtures for that many seeds, `--seed N` for one. WASMFORMER_PYTHON names a Python that
// has wasm-tests/python/requirements.txt; without it a virtual environment is made in the user's cache.
import { cpSync, existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { build } from './build.mjs';
import { ensurePython } from './python.mjs';
import { main, root, run, step } from './run.mjs';

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
  const python = await ensurePython(join(root, 'wasm-tests/python/requirements.txt'), 'WASMFORMER_PYTHON');
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
