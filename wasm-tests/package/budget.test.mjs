import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { installPackage, manifest } from './install.mjs';

let installed;
let dist;
before(async () => {
  installed = await installPackage();
  dist = join(installed.folder, 'node_modules/wasmformer/dist');
});
after(() => installed?.remove());

const gzipped = (file) => gzipSync(readFileSync(file), { level: 9 }).length;
const scripts = () => readdirSync(dist).filter((name) => name.endsWith('.js'));

for (const [name, most] of [
  ['wasmformer.wasm', 270],
  ['wasmformer.relaxed.wasm', 330],
]) {
  test(`${name} is at most ${most} KB gzipped`, (t) => {
    const size = gzipped(join(dist, name));
    t.diagnostic(`${(size / 1000).toFixed(1)} KB`);
    assert.ok(size <= most * 1000, `${size} bytes`);
  });
}

test('all JavaScript that a page loads is at most 113.2 KB gzipped', (t) => {
  const loaded = new Set();
  const visit = (name) => {
    if (loaded.has(name)) return;
    loaded.add(name);
    const text = readFileSync(join(dist, name), 'utf8');
    for (const [, other] of text.matchAll(/["'`]\.\/([\w-]+\.js)["'`]/g)) visit(other);
  };
  visit('index.js');
  assert.ok(loaded.has('worker.js'), 'index.js names worker.js');
  const sizes = [...loaded].map((name) => [name, gzipped(join(dist, name))]);
  t.diagnostic(sizes.map(([name, size]) => `${name} ${(size / 1000).toFixed(1)} KB`).join(', '));
  const total = sizes.reduce((sum, [, size]) => sum + size, 0);
  assert.ok(total <= 113_200, `${total} bytes: ${JSON.stringify(sizes)}`);
});

test('the tarball is at most 8 MB and holds what it should', (t) => {
  t.diagnostic(`${(installed.bytes / 1e6).toFixed(2)} MB, ${installed.files.length} files`);
  assert.ok(installed.bytes <= 8_000_000, `${installed.bytes} bytes`);
  for (const name of [
    'LICENSE',
    'README.md',
    'CHANGELOG.md',
    'package.json',
    'dist/index.js',
    'dist/index.d.ts',
    'dist/node.js',
    'dist/worker.js',
    'dist/node-worker.js',
    'dist/cli.js',
    'dist/wasmformer.wasm',
    'dist/wasmformer.relaxed.wasm',
    'dist/THIRD_PARTY.md',
    'examples/node/translate-file.mjs',
    'examples/models/moby-dick-char/model.safetensors',
    'examples/models/pinyin/model.safetensors',
    'examples/models/pinyin/tokenizer.json',
    'examples/models/pinyin/target_tokenizer.json',
  ]) {
    assert.ok(installed.files.includes(name), name);
  }
  const strays = installed.files.filter(
    (name) => !/^(dist|docs|examples\/(models|node))\/|^(LICENSE|README\.md|CHANGELOG\.md|package\.json)$/.test(name),
  );
  assert.deepEqual(strays, []);
});

test('nothing is needed at run time but the package itself', () => {
  const { dependencies = {}, scripts: lifecycle = {} } = manifest(installed.folder);
  assert.deepEqual(dependencies, {});
  for (const name of ['preinstall', 'install', 'postinstall']) assert.equal(lifecycle[name], undefined, name);
});

test('no eval, no new Function, no worker made of a string, no address but the Hub', () => {
  for (const name of scripts()) {
    const text = readFileSync(join(dist, name), 'utf8');
    assert.doesNotMatch(text, /(?<![.\w$])eval\s*\(|\(0,\s*eval\)/, `${name}: eval`);
    assert.doesNotMatch(text, /new Function\b|(?<![.\w$])Function\s*\(/, `${name}: Function`);
    assert.doesNotMatch(text, /createObjectURL|new Worker\(\s*["'`](?:blob|data):/, `${name}: a worker made of a string`);
    const hosts = new Set([...text.matchAll(/\bhttps?:\/\/([\w.-]+)/g)].map(([, host]) => host));
    hosts.delete('huggingface.co');
    // The name of SVG's namespace, which nobody fetches.
    hosts.delete('www.w3.org');
    assert.deepEqual([...hosts], [], `${name}: addresses`);
  }
});

test('bundlers see the worker and the wasm', () => {
  const text = readFileSync(join(dist, 'index.js'), 'utf8');
  assert.match(
    text,
    /new Worker\(\s*(?:\/\*.*?\*\/)?\s*new URL\(\s*["']\.\/worker\.js["'],\s*import\.meta\.url\s*\),\s*\{\s*type:\s*["']module["']/,
  );
  for (const level of ['', '\\.relaxed'])
    assert.match(text, new RegExp(`new URL\\(\\s*["'\`]\\./wasmformer${level}\\.wasm["'\`],\\s*import\\.meta\\.url\\s*\\)`));
  for (const name of ['index.js', 'worker.js']) {
    assert.doesNotMatch(
      readFileSync(join(dist, name), 'utf8'),
      /(?:from|import)\s*\(?\s*["'](?:node:|fs|path|url|module|worker_threads)/,
      `${name} imports a module of Node`,
    );
  }
});
