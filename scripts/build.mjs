// Builds dist/: the WebAssembly by CMake, the JavaScript by esbuild, the declarations by tsc. Each step is skipped or quick
// when nothing changed.
import { createHash } from 'node:crypto';
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join } from 'node:path';
import { main, Refusal, retry, root, run, step, withLock } from './run.mjs';
import { ensureToolchain } from './toolchain.mjs';

const dist = join(root, 'dist');
const bundles = ['index.js', 'worker.js', 'node.js', 'node-worker.js', 'cli.js', 'THIRD_PARTY.md'];
/** The SIMD levels: CMake's target of each, and the file it becomes. */
const levels = { wasmformer: 'wasmformer.wasm', wasmformer_relaxed: 'wasmformer.relaxed.wasm' };
export const jobs = String(availableParallelism());

function hashOf(files) {
  const hash = createHash('sha256');
  for (const file of files) hash.update(file).update('\0').update(readFileSync(file)).update('\0');
  return hash.digest('hex');
}

function filesUnder(folder, keep = () => true) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .filter(keep)
    .sort();
}

/** Runs `work` unless its outputs are there and the stamp says that they were made from the same inputs. */
async function unlessDone(name, inputs, outputs, work) {
  const stamp = join(root, 'build/stamps', name);
  const hash = hashOf(inputs);
  if (outputs.every((file) => existsSync(join(dist, file))) && existsSync(stamp) && readFileSync(stamp, 'utf8') === hash) return false;
  await work();
  mkdirSync(dirname(stamp), { recursive: true });
  writeFileSync(stamp, hash);
  return true;
}

/** `npm ci`, if node_modules is not what package-lock.json asks for. */
export async function ensureNodeModules() {
  const lock = join(root, 'package-lock.json');
  const stamp = join(root, 'node_modules/.wasmformer-lock');
  const hash = hashOf([lock]);
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === hash) return;
  await step('npm ci', () => retry(3, () => run('npm', ['ci', '--no-audit', '--no-fund', '--loglevel=error'])));
  writeFileSync(stamp, hash);
}

/** Configures a CMake preset if that has not been done with this toolchain, and builds the targets. Returns the build folder. */
export function cmakeBuild(preset, targets) {
  return withLock(join(root, 'build/lock'), () => cmakeBuildNow(preset, targets));
}

async function cmakeBuildNow(preset, targets) {
  const folder = join(root, 'build', preset);
  const toolchain = await ensureToolchain();
  const key = JSON.stringify(toolchain);
  const stamp = join(folder, 'toolchain.json');
  if (!existsSync(join(folder, 'build.ninja')) || !existsSync(stamp) || readFileSync(stamp, 'utf8') !== key) {
    rmSync(folder, { recursive: true, force: true });
    await run('cmake', ['--preset', preset], { quiet: true });
    writeFileSync(stamp, key);
  }
  await run('cmake', ['--build', folder, '-j', jobs, '--target', ...targets], { env: { NINJA_STATUS: '   [%f/%t] ' } });
  return folder;
}

/** The first of the names that exists under web/. */
function entry(...names) {
  const found = names.map((name) => join(root, 'web', name)).find((file) => existsSync(file));
  if (!found) throw new Refusal(`[build] none of these exists: web/${names.join(', web/')}`);
  return found;
}

/**
 * Emscripten's glue asks at run time whether it is in Node. Here each bundle knows, so the answer is written in: a page's
 * bundle then holds no import of Node's modules, which bundlers would stumble over.
 */
function gluePlugin(glue, isNode) {
  return {
    name: 'glue',
    setup(build) {
      build.onResolve({ filter: /^wasmformer-glue$/ }, () => ({ path: glue }));
      build.onLoad({ filter: /wasmformer\.mjs$/ }, () => {
        let text = readFileSync(glue, 'utf8');
        for (const [name, value] of [
          ['NODE', isNode],
          ['WORKER', !isNode],
          ['WEB', !isNode],
        ]) {
          const declaration = new RegExp(`var ENVIRONMENT_IS_${name}=[^;]+;`);
          if (!declaration.test(text)) throw new Error(`[build] the glue does not declare ENVIRONMENT_IS_${name} as expected`);
          text = text.replace(declaration, '').replaceAll(`ENVIRONMENT_IS_${name}`, String(value));
        }
        // A page without isolation does not even have the name. A copy is right for both kinds of memory.
        text = text.replace(/(\w+)\.buffer instanceof SharedArrayBuffer\?(\1\.slice\(\w+,\w+\)):\1\.subarray\(\w+,\w+\)/, '$2');
        // Views are looked at anew after every call, lest another thread have made the memory grow. Here only the engine's own does.
        const views = /GROWABLE_HEAP_([IUF])(\d+)\(\)/g;
        text = text
          .replace(/function GROWABLE_HEAP_\w+\(\)\{if\([^)]*\)\{updateMemoryViews\(\)\}return \w+\}/g, '')
          .replace(views, (_, kind, bits) => `HEAP${kind === 'I' ? '' : kind}${bits}`);
        if (text.includes('GROWABLE_HEAP')) throw new Error('[build] the glue has views of the memory that are not as expected');
        if (text.includes('SharedArrayBuffer')) throw new Error('[build] the glue names SharedArrayBuffer where that is not expected');
        return { contents: text, loader: 'js' };
      });
      // In web/, './x.ts' is bundled; './x.js' names a file beside the bundle and stays as it is.
      build.onResolve({ filter: /^\.\/[a-z-]+\.js$/ }, ({ path, importer }) =>
        importer.startsWith(join(root, 'web')) ? { path, external: true } : undefined,
      );
    },
  };
}

/** A second minifier after esbuild's: what a page loads becomes a twentieth smaller. */
async function shrink(file) {
  const { minify } = await import('terser');
  const { code } = await minify(readFileSync(file, 'utf8'), {
    module: true,
    ecma: 2020,
    // Text that repeats itself is smaller once it is gzipped than what is spared by joining and inlining.
    compress: { passes: 3, sequences: false, inline: 1 },
    format: { comments: false },
  });
  writeFileSync(file, code);
}

async function bundle(glue) {
  const { build } = await import('esbuild');
  const common = {
    bundle: true,
    format: 'esm',
    target: 'es2022',
    minify: true,
    charset: 'utf8',
    legalComments: 'none',
    outdir: dist,
    logLevel: 'warning',
    metafile: true,
  };
  const page = { index: entry('index.ts'), worker: entry('worker.ts', 'engine/worker.ts') };
  const node = { node: entry('node.ts'), 'node-worker': entry('node-worker.ts', 'engine/node-worker.ts'), cli: entry('cli.ts') };
  const results = await Promise.all([
    build({ ...common, entryPoints: page, platform: 'browser', plugins: [gluePlugin(glue, false)] }),
    build({ ...common, entryPoints: node, platform: 'node', target: 'node20', plugins: [gluePlugin(glue, true)] }),
  ]);
  for (const name of bundles.filter((name) => name.endsWith('.js'))) await shrink(join(dist, name));
  const cli = join(dist, 'cli.js');
  const text = readFileSync(cli, 'utf8');
  if (!text.startsWith('#!')) writeFileSync(cli, `#!/usr/bin/env node\n${text}`);
  chmodSync(cli, 0o755);
  // Every package in the bundles must be named, with its licence, in the file that is published beside them.
  const notice = readFileSync(join(root, 'scripts/third-party.md'), 'utf8');
  const packages = new Set(
    results
      .flatMap(({ metafile }) => Object.keys(metafile.inputs))
      .map((input) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1])
      .filter(Boolean),
  );
  for (const name of packages)
    if (!notice.includes(name)) throw new Error(`[build] ${name} is bundled but scripts/third-party.md does not name it`);
  writeFileSync(join(dist, 'THIRD_PARTY.md'), notice);
}

async function declarations() {
  const types = join(root, 'build/types');
  rmSync(types, { recursive: true, force: true });
  await run('node_modules/.bin/tsc', ['-p', '.', '--noEmit', 'false', '--declaration', '--emitDeclarationOnly', '--outDir', types]);
  // Imports between declarations name the files that are published.
  for (const file of filesUnder(types)) {
    writeFileSync(file, readFileSync(file, 'utf8').replace(/((?:from|import\()\s*['"]\.{1,2}\/[^'"]*)\.ts(['"])/g, '$1.js$2'));
  }
  for (const file of filesUnder(dist, (name) => name.endsWith('.d.ts'))) rmSync(file);
  cpSync(types, dist, { recursive: true });
}

/**
 * The module with an unshared memory: the shared bit of the memory's limits cleared, which is all that differs. Atomic instructions
 * are valid on either; only waiting needs a shared one, and a single thread never waits. web/platform/wasm.ts sets the bit again.
 */
function unshared(bytes) {
  // Import "a" "a", a memory with a maximum, shared, of 256 to 65536 pages.
  const limits = Buffer.from([1, 97, 1, 97, 2, 3, 128, 2, 128, 128, 4]);
  const at = bytes.indexOf(limits);
  if (at === -1 || at > 4000 || bytes.indexOf(limits, at + 1) !== -1) throw new Error('[build] expected one import of a shared memory');
  bytes[at + 5] = 1;
  return bytes;
}

/** Builds dist/ and returns its path. Only one process at a time writes it. */
export function build() {
  return withLock(join(root, 'build/lock'), buildDist);
}

async function buildDist() {
  mkdirSync(dist, { recursive: true });
  await ensureToolchain();
  await ensureNodeModules();
  await step('WebAssembly', async () => {
    const folder = await cmakeBuild('wasm', Object.keys(levels));
    for (const [target, name] of Object.entries(levels)) {
      const from = join(folder, `${target}.wasm`);
      const to = join(dist, name);
      if (!existsSync(to) || statSync(from).mtimeMs > statSync(to).mtimeMs) writeFileSync(to, unshared(readFileSync(from)));
    }
  });
  const glue = join(root, 'build/wasm/wasmformer.mjs');
  const relaxed = readFileSync(join(root, 'build/wasm/wasmformer_relaxed.mjs'), 'utf8').replaceAll('wasmformer_relaxed', 'wasmformer');
  if (relaxed !== readFileSync(glue, 'utf8')) throw new Error('[build] expected one glue for both SIMD levels, but they differ');
  const sources = [
    ...filesUnder(join(root, 'web'), (name) => name.endsWith('.ts')),
    ...['tsconfig.json', 'package-lock.json', 'scripts/build.mjs', 'scripts/third-party.md'].map((name) => join(root, name)),
  ];
  await step('JavaScript', () => unlessDone('bundle', [glue, ...sources], bundles, () => bundle(glue)));
  await step('Declarations', () => unlessDone('types', sources, ['index.d.ts', 'node.d.ts'], declarations));
  return dist;
}

main(import.meta.url, build);
