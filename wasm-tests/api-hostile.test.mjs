// Arguments nobody should pass: each is refused by name, quickly, and the model goes on.
import assert from 'node:assert/strict';
import { File } from 'node:buffer';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { cache, load, ops } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { fixtures } from './support/fixtures.mjs';
import { random } from './support/tiny.mjs';

const files = random(1);
const prompt = { inputIds: [1, 2, 3] };
const boom = () => {
  throw new Error('boom');
};
const trap = new Proxy({}, { get: boom, ownKeys: boom });
const trapArray = new Proxy([], { get: boom });

let lm;
before(async () => {
  lm = await load(files, { worker: false });
});
after(() => lm.dispose());

test('getters and proxies that throw', async () => {
  const refused = code('invalid-argument', /boom|cannot be shown/);
  const options = Object.defineProperty({}, 'seed', { get: boom, enumerable: true });
  for (const value of [trap, trapArray]) {
    for (const call of [
      () => lm.generate(value),
      () => lm.generate({ inputIds: value }),
      () => lm.generate(prompt, { stopStrings: value }),
      () => lm.generate(prompt, { logitBias: value, numBeams: value }),
      () => lm.chat(value),
      () => lm.forward({ inputIds: value }),
      () => lm.forward({ inputIds: [[1]], attentionMask: value }),
      () => lm.score(value),
      () => lm.decode(value),
      () => lm.tokenize(value),
      () => ops.processLogits(value, [1]),
      () => load(value),
      () => load(files, { network: value, signal: value }),
      () => cache.list(value),
    ]) {
      await assert.rejects(async () => call(), code('invalid-argument'), String(call));
    }
  }
  await assert.rejects(async () => lm.generate(prompt, options), refused);
  await assert.rejects(async () => lm.score(prompt, Object.defineProperty({}, 'signal', { get: boom, enumerable: true })), refused);
});

test('holes in arrays are not skipped', async () => {
  // biome-ignore-start lint/suspicious/noSparseArray: what is tested
  for (const call of [
    () => lm.generate([, prompt]),
    () => lm.generate(prompt, { stopStrings: [,] }),
    () => lm.generate(prompt, { eosTokenId: [1, , 2] }),
    () => lm.generate(prompt, { suppressTokens: [,] }),
    () => lm.generate(prompt, { badWordsIds: [[1], ,] }),
    () => lm.generate(prompt, { sequenceBias: [,] }),
    () => lm.score([,]),
    () => lm.tokenize([,]),
    () => lm.forward({ inputIds: [[1], ,] }),
  ]) {
    await assert.rejects(async () => call(), code('invalid-argument'), String(call));
  }
  // biome-ignore-end lint/suspicious/noSparseArray: what is tested
  assert.equal((await lm.generate(prompt, { maxNewTokens: 2, eosTokenId: null }).result).tokenIds.length, 2);
});

test('lengths that cannot be', async () => {
  for (const length of [-1, 0.5, NaN, 2 ** 31, 2 ** 53, 'many']) {
    await assert.rejects(async () => lm.generate({ inputIds: { length } }), code('invalid-argument', /length/));
    await assert.rejects(lm.decode({ length }), code('invalid-argument'));
  }
  const began = performance.now();
  await assert.rejects(lm.forward({ inputIds: { length: 1e9 } }), code('invalid-argument', /token id at 0/));
  await assert.rejects(ops.processLogits({ length: 1e9 }, [1]), code('invalid-argument', /scores: expected a number at 0/));
  assert.ok(performance.now() - began < 1000);
  for (const number of [65537, 2 ** 31 - 1]) {
    assert.throws(
      () => lm.generate(prompt, { doSample: true, numReturnSequences: number }),
      code('invalid-argument', /numReturnSequences: expected an integer from 1 to 65536/),
    );
  }
  assert.throws(() => lm.generate(prompt, { maxNewTokens: 1e12 }), code('invalid-argument', /from 1 to 2147483647, got 1000000000000/));
  const held = await lm.createCache();
  for (const length of [-1, 1.5, NaN, Symbol('s'), trap]) await assert.rejects(held.truncate(length), code('invalid-argument', /cache/));
  await held.dispose();
});

test('cache options and worker scripts', async () => {
  await assert.rejects(async () => cache.list({ cacheDir: 5 }), code('invalid-argument', /cacheDir: expected a string, got 5/));
  await assert.rejects(async () => cache.list(null), code('invalid-argument'));
  await assert.rejects(async () => cache.clear(null), code('invalid-argument', /id: expected/));
  await assert.rejects(async () => cache.clear(undefined, { directory: 'x' }), code('invalid-argument', /unknown option 'directory'/));
  for (const endpoint of ['x', 'ftp://a', 'http://localhost:99999']) {
    await assert.rejects(load('org/name', { endpoint, cacheDir: false }), code('invalid-argument', /endpoint: expected an http/));
  }
  await assert.rejects(load(files, { workerUrl: 'worker.js' }), code('invalid-argument', /workerUrl: expected a path/));
  await assert.rejects(load(files, { workerUrl: 'https://example.org/worker.js' }), code('invalid-argument', /workerUrl/));
});

for (const worker of [true, false]) {
  test(`an onProgress that throws ends the load with that, ${worker ? 'in a worker' : 'in process'}`, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'wasmformer-hostile-'));
    try {
      for (const [name, bytes] of Object.entries(files)) writeFileSync(join(folder, name), bytes);
      await assert.rejects(load(folder, { worker, onProgress: boom }), /^Error: boom$/);
      await assert.rejects(load(folder, { worker, onProgress: async () => boom() }), /^Error: boom$/);
      await (await load(folder, { worker })).dispose();
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}

test('all attention weights of a long prompt are refused with the bytes, and so is no more', async () => {
  const { layers, heads } = lm.info();
  const length = 20000;
  const least = layers * heads * length * length * 4;
  await assert.rejects(lm.forward({ inputIds: [new Int32Array(length).fill(3)] }, { attentions: true }), (error) => {
    assert.equal(error.code, 'out-of-memory');
    const [, limit, bytes] = /^\[forward\] request: expected at most (\d+) bytes, which is what is left, got (\d+)$/.exec(error.message);
    assert.ok(Number(limit) < 2 ** 32 && Number(bytes) >= least && Number(bytes) < 1.5 * least, error.message);
    return true;
  });
  assert.equal((await lm.forward({ inputIds: [[1, 2]] }, { attentions: true }))[0].attentions.length, layers);
});

test('a cache folder that cannot be is a named error, not a wait', {
  skip: process.platform !== 'linux' && 'there is no /proc',
}, async () => {
  for (const cacheDir of ['/proc/none', '/dev/null', '/dev/null/none', 'a\0b']) {
    const began = performance.now();
    await assert.rejects(cache.list({ cacheDir }), code('busy', /^\[cache\] /));
    await assert.rejects(cache.clear('org/name', { cacheDir }), code('busy'));
    assert.ok(performance.now() - began < 5000, cacheDir);
  }
});

test('a chat template without an end', async () => {
  const { readFileSync } = await import('node:fs');
  const tokenizer = { 'tokenizer.json': new Uint8Array(readFileSync(join(fixtures, 'files/llama/tokenizer.json'))) };
  const model = await load({ ...files, ...tokenizer }, { worker: false });
  const forever = '{% for i in range(1000000) %}{% for j in range(1000000) %}{% set x = i * j %}{% endfor %}{% endfor %}';
  await assert.rejects(
    model.applyChatTemplate('a', { chatTemplate: forever }),
    code('invalid-argument', /^\[chat\] template: .*2000000 steps/),
  );
  const itself = '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}';
  await assert.rejects(model.applyChatTemplate('a', { chatTemplate: itself }), code('invalid-argument', /^\[chat\] template: /));
  const messages = Array.from({ length: 2000 }, (_, i) => ({ role: i % 2 ? 'assistant' : 'user', content: `${i}` }));
  const all = await model.applyChatTemplate(messages, { chatTemplate: '{% for m in messages %}{{ m.content }}{% endfor %}' });
  assert.equal(all, messages.map(({ content }) => content).join(''));
  await model.dispose();
});

test('many calls share a signal: all end, and nothing is printed', async () => {
  const warnings = [];
  const warn = (warning) => warnings.push(warning);
  process.on('warning', warn);
  const controller = new AbortController();
  const { signal } = controller;
  const endless = Array.from({ length: 15 }, () => lm.generate(prompt, { maxNewTokens: 1e6, eosTokenId: null, signal }).result);
  const waiting = Promise.allSettled(Array.from({ length: 15 }, () => lm.score(prompt, { signal })));
  await lm.tokenize('a').catch(() => {});
  controller.abort(new Error('enough'));
  for (const result of await Promise.all(endless)) assert.equal(result.finishReason, 'aborted');
  for (const { reason } of await waiting) assert.equal(reason.message, 'enough');
  // A signal that was used and let go works again.
  const again = new AbortController();
  await lm.score(prompt, { signal: again.signal });
  const stopped = lm.generate(prompt, { maxNewTokens: 1e6, eosTokenId: null, signal: again.signal });
  setTimeout(() => again.abort(), 20);
  assert.equal((await stopped.result).finishReason, 'aborted');
  await new Promise(setImmediate);
  process.removeListener('warning', warn);
  assert.deepEqual(warnings, []);
});

test('a list of files that is no array', async () => {
  const list = Object.entries(files).map(([name, bytes]) => new File([bytes], name));
  const model = await load({ ...list, length: list.length }, { worker: false });
  assert.equal(model.info().architecture, lm.info().architecture);
  await model.dispose();
});

test('tokenizer files that the tokenizer would misread', async () => {
  const { readFileSync } = await import('node:fs');
  const original = JSON.parse(readFileSync(join(fixtures, 'files/splits/tokenizer.json'), 'utf8'));
  const loaded = (change) => {
    const changed = structuredClone(original);
    change(changed);
    return load({ ...files, 'tokenizer.json': new TextEncoder().encode(JSON.stringify(changed)) }, { worker: false });
  };
  const split = (part) => ({ type: 'Split', pattern: { Regex: 'a' }, behavior: 'Isolated', invert: false, ...part });
  for (const [part, message] of [
    [{ pattern: 5 }, /Split.pattern: expected \{ Regex \} or \{ String \}/],
    [{ pattern: { Regexp: 'a' } }, /Split.pattern/],
    [{ behavior: 'Sideways' }, /Split.behavior: expected one of Removed, .*, got "Sideways"/],
    [{ behavior: [] }, /Split.behavior/],
  ]) {
    const change = (json) => {
      json.pre_tokenizer = { type: 'Sequence', pretokenizers: [split(part)] };
    };
    await assert.rejects(loaded(change), code('invalid-file', message));
  }
  const template = (json) => {
    json.post_processor = { type: 'TemplateProcessing', single: [null], pair: [], special_tokens: {} };
  };
  await assert.rejects(loaded(template), code('invalid-file', /post_processor.single: expected a SpecialToken or a Sequence, got null/));
});

test('the command line says why nothing could be written', { skip: !existsSync('/dev/full') && 'there is no /dev/full' }, () => {
  const program = fileURLToPath(new URL('../dist/cli.js', import.meta.url));
  const { status, stderr } = spawnSync('/bin/sh', ['-c', 'exec "$0" "$1" --help > /dev/full', process.execPath, program], {
    encoding: 'utf8',
  });
  assert.equal(status, 1);
  assert.match(stderr, /^wasmformer: standard output: ENOSPC/);
});
