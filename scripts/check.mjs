// Format, lint, types, and the rules about who may include what. `--write` formats in place.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { ensureNodeModules } from './build.mjs';
import { main, root, run, step } from './run.mjs';
import { ensureToolchain } from './toolchain.mjs';

/** A layer may include itself and those to its left. `generate` and `train` are neighbours: neither knows the other. */
const layers = ['core', 'kernels', 'ops', 'nn', 'models', 'generate', 'train', 'session'];
const strangers = { generate: ['train'], train: ['generate'] };

function cppFiles() {
  return ['src', 'web']
    .filter((folder) => existsSync(join(root, folder)))
    .flatMap((folder) => readdirSync(join(root, folder), { recursive: true }).map((name) => join(root, folder, name)))
    .filter((name) => /\.[ch]pp$/.test(name))
    .sort();
}

/** Breaches of the layering rule in one file. */
export function breaches(path, text) {
  const found = [];
  const [top, layer] = path.split('/');
  const own = top === 'src' ? layers.indexOf(layer) : layers.length;
  if (own < 0) return [`${path}: src/${layer} is not a layer`];
  text.split('\n').forEach((line, i) => {
    const at = `${path}:${i + 1}`;
    const [, quoted] = /^\s*#\s*include\s+"([^"]+)"/.exec(line) ?? [];
    const [, system] = /^\s*#\s*include\s+<([^>]+)>/.exec(line) ?? [];
    if (quoted !== undefined) {
      const other = layers.indexOf(quoted.split('/')[0]);
      if (other < 0) found.push(`${at}: expected a path that begins with a layer ("core/..."), got "${quoted}"`);
      else if (other > own || strangers[layer]?.includes(layers[other]))
        found.push(`${at}: ${top === 'src' ? layer : top} may not include ${quoted}`);
    }
    if (path !== 'src/kernels/simd.hpp') {
      if (
        /\bxsimd\b/.test(line.replace(/\/\/.*$/, '')) ||
        /intrin\.h|arm_neon|wasm_simd128/.test(system ?? '') ||
        /\b_mm\d*_|\bwasm_[iuf]\d+x\d+_|\bwasm_v128_/.test(line)
      ) {
        found.push(`${at}: only src/kernels/simd.hpp names xsimd or an intrinsic`);
      }
    }
    if (path !== 'web/bindings.cpp' && /^emscripten/.test(system ?? ''))
      found.push(`${at}: only web/bindings.cpp includes Emscripten's headers`);
  });
  return found;
}

main(import.meta.url, async (args) => {
  const write = args.includes('--write');
  const { clangFormat } = await ensureToolchain();
  await ensureNodeModules();
  const files = cppFiles();
  const failures = [];
  const attempt = (title, work) =>
    step(title, () =>
      work().catch((error) => {
        failures.push(title);
        console.log(`   ${error.message}`);
      }),
    );
  await attempt('Layers', async () => {
    const found = files.flatMap((file) => breaches(relative(root, file), readFileSync(file, 'utf8')));
    if (found.length) throw new Error(found.join('\n   '));
  });
  await attempt('C++ format', async () => {
    if (!clangFormat) throw new Error('clang-format is not on PATH');
    await run(clangFormat, [...(write ? ['-i'] : ['--dry-run', '-Werror']), ...files]);
  });
  await attempt('TypeScript and JavaScript: format and lint', () =>
    run('node_modules/.bin/biome', ['check', ...(write ? ['--write'] : []), '--error-on-warnings', '--max-diagnostics=50']),
  );
  await attempt('Types', () => run('node_modules/.bin/tsc', ['-p', '.']));
  await attempt('Types of the demo page', () => run('node_modules/.bin/tsc', ['-p', 'examples/demo']));
  console.log(failures.length ? `\nNot right: ${failures.join('; ')}` : '\nAll right.');
  process.exitCode = failures.length ? 1 : 0;
});
