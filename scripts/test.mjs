// Every test that needs no Python. `npm test -- native wasm relaxed node package browser` names some of the suites.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { nodeOf } from '../wasm-tests/support/nodes.mjs';
import { build, cmakeBuild, ensureNodeModules } from './build.mjs';
import { ensureChromium } from './chromium.mjs';
import { main, Refusal, root, run } from './run.mjs';

const minutes = 60_000;

/** Test files of a folder of wasm-tests ('' for its top, and the folders in it that are no suite of their own). */
function testFiles(folder) {
  const top = join(root, 'wasm-tests', folder);
  if (!existsSync(top)) return [];
  return readdirSync(top, { recursive: true })
    .filter((name) => name.endsWith('.test.mjs') && !/(^|\/)node_modules\//.test(name))
    .filter((name) => folder !== '' || !/^(package|browser|proof|python|fixtures)\//.test(name))
    .sort()
    .map((name) => join(top, name));
}

/** Counts from what Catch2 prints at its end. */
function catch2Counts(text) {
  const all = /All tests passed \(.* in (\d+) test cases?\)/.exec(text);
  if (all) return { passed: Number(all[1]), failed: 0 };
  const cases = /^test cases:.*$/m.exec(text)?.[0] ?? '';
  const number = (word) => Number(new RegExp(`(\\d+) ${word}`).exec(cases)?.[1] ?? 0);
  return { passed: number('passed'), failed: Math.max(1, number('failed')) };
}

/** Counts from what Node's spec reporter prints at its end. */
function nodeCounts(text) {
  const number = (word) => Number(new RegExp(`^. ${word} (\\d+)$`, 'm').exec(text)?.[1] ?? 0);
  // A test that is skipped or cancelled has not passed.
  return { passed: number('pass'), failed: number('fail') + number('cancelled') + number('skipped') + number('todo') };
}

async function counted(counts, command, args, options) {
  try {
    return counts(await run(command, args, { capture: true, timeout: 15 * minutes, ...options }));
  } catch (error) {
    console.log(`   ${error.message}`);
    const found = counts(error.output ?? '');
    return { passed: found.passed, failed: Math.max(1, found.failed) };
  }
}

function nodeTest(folder, concurrency) {
  const files = testFiles(folder);
  if (files.length === 0) throw new Error(`no test files in wasm-tests/${folder}`);
  return counted(nodeCounts, process.execPath, ['--test', '--test-reporter=spec', `--test-concurrency=${concurrency}`, ...files], {
    env: { NO_COLOR: '1', FORCE_COLOR: '0' },
  });
}

const catch2 = ['--colour-mode', 'none', '--durations', 'no'];
const suites = {
  native: [
    'C++ tests, native, address and undefined-behaviour sanitizers',
    async () => {
      const folder = await cmakeBuild('native-debug', ['wasmformer_tests']);
      const env = {
        ASAN_OPTIONS: 'detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1',
        UBSAN_OPTIONS: 'print_stacktrace=1',
      };
      return counted(catch2Counts, join(folder, 'wasmformer_tests'), catch2, { env });
    },
  ],
  wasm: [
    'C++ tests as WebAssembly under Node',
    async () => {
      const folder = await cmakeBuild('wasm', ['wasmformer_tests']);
      return counted(catch2Counts, process.execPath, [join(folder, 'wasmformer_tests.js'), ...catch2]);
    },
  ],
  relaxed: [
    'C++ tests as WebAssembly with relaxed SIMD, under Node 22',
    async () => {
      const folder = await cmakeBuild('wasm', ['wasmformer_tests_relaxed']);
      // Recorded digests are the other level's.
      return counted(catch2Counts, nodeOf(22), [join(folder, 'wasmformer_tests_relaxed.js'), '~[bits]', ...catch2]);
    },
  ],
  node: [
    'Tests of the built package in Node',
    async () => {
      await build();
      return nodeTest('', 2);
    },
  ],
  package: [
    'Tests of the packed tarball, installed',
    async () => {
      await build();
      await ensureChromium();
      return nodeTest('package', 1);
    },
  ],
  browser: [
    'Tests in headless Chromium',
    async () => {
      await build();
      await ensureChromium();
      return nodeTest('browser', 1);
    },
  ],
};

main(import.meta.url, async (names) => {
  const unknown = names.find((name) => !suites[name]);
  if (unknown) throw new Refusal(`No suite is named ${unknown}; there are: ${Object.keys(suites).join(', ')}`);
  await ensureNodeModules();
  const results = [];
  for (const name of names.length ? names : Object.keys(suites)) {
    const [title, body] = suites[name];
    console.log(`\n== ${title}`);
    const start = performance.now();
    let counts;
    try {
      counts = await body();
    } catch (error) {
      console.log(`   ${error instanceof Refusal ? error.message : (error.stack ?? error)}`);
      counts = { passed: 0, failed: 1 };
    }
    results.push({ name, ...counts, seconds: (performance.now() - start) / 1000 });
    console.log(`== ${name}: ${counts.passed} passed, ${counts.failed} failed, ${results.at(-1).seconds.toFixed(1)} s`);
  }
  const total = (key) => results.reduce((sum, result) => sum + result[key], 0);
  console.log('');
  for (const { name, passed, failed, seconds } of results)
    console.log(
      `${name.padEnd(8)} ${String(passed).padStart(5)} passed ${String(failed).padStart(3)} failed ${seconds.toFixed(1).padStart(7)} s`,
    );
  console.log(`\n${total('passed')} passed, ${total('failed')} failed`);
  process.exitCode = total('failed') === 0 && total('passed') > 0 ? 0 : 1;
});
