// Model.save: files as transformers has them, which load again bit for bit, and trainings that are gone on with from them.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { create, load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { fixtures, folderOf, readJson, readTensors } from './support/fixtures.mjs';
import { byteTokenizer } from './support/tiny.mjs';
import { stepsOf, weightsOf } from './support/training.mjs';

const place = mkdtempSync(join(tmpdir(), 'wasmformer-save-'));
after(() => rmSync(place, { recursive: true }));
let folders = 0;
const newFolder = () => join(place, String(folders++));

const config = {
  model_type: 'gpt2',
  vocab_size: 259,
  n_embd: 16,
  n_layer: 2,
  n_head: 2,
  n_positions: 32,
  bos_token_id: 257,
  eos_token_id: 256,
};
const json = (value) => new TextEncoder().encode(JSON.stringify(value));
const tokenizer = { 'tokenizer.json': json(byteTokenizer()), 'tokenizer_config.json': json({ bos_token: '<bos>', eos_token: '<eos>' }) };
const make = (options) => create(config, { seed: 1, tokenizer, worker: false, threads: 1, ...options });
const texts = Array.from({ length: 40 }, (_, i) => 'abcdefgh'.slice(i % 5, 4 + (i % 5)).repeat(1 + (i % 4)));
const recordOf = (files) => Object.fromEntries(files.map(({ name, bytes }) => [name, bytes]));

const logitsOf = async (lm, inputIds = [97, 98, 99]) => (await lm.forward({ inputIds: [inputIds] }))[0].logits;

/** A GGUF file in parts: what stands before its keys, the keys, the list of its tensors, and their data. */
function keysOf(file) {
  let at = 24;
  const number = () => Number(file.readBigUInt64LE((at += 8) - 8));
  const text = () => {
    const length = number();
    return file.toString('utf8', at, (at += length));
  };
  const [kString, kArray] = [8, 9];
  const sizes = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
  const skip = (kind) => {
    if (kind === kString) text();
    else if (kind === kArray) {
      const of = file.readUInt32LE((at += 4) - 4);
      for (let left = number(); left > 0; --left) skip(of);
    } else at += sizes[kind];
  };
  const keys = Array.from({ length: Number(file.readBigUInt64LE(16)) }, () => {
    const begin = at;
    const name = text();
    skip(file.readUInt32LE((at += 4) - 4));
    return { name, bytes: file.subarray(begin, at) };
  });
  const tensors = at;
  for (let left = Number(file.readBigUInt64LE(8)); left > 0; --left) {
    text();
    at += 8 * file.readUInt32LE(at) + 4 + 12;
  }
  return { head: file.subarray(0, 24), keys, tensors: file.subarray(tensors, at), data: file.subarray(Math.ceil(at / 32) * 32) };
}

describe('a folder', () => {
  test('has the files transformers would write, and loads again bit for bit', async () => {
    const lm = await make();
    await stepsOf(lm.train(texts, { steps: 3, learningRate: 1e-2 }));
    const folder = newFolder();
    assert.equal(await lm.save(folder), undefined);
    assert.deepEqual(readdirSync(folder).sort(), [
      'config.json',
      'generation_config.json',
      'model.safetensors',
      'tokenizer.json',
      'tokenizer_config.json',
    ]);
    const read = (name) => JSON.parse(readFileSync(join(folder, name), 'utf8'));
    assert.deepEqual(read('config.json'), { ...config, torch_dtype: 'float32' });
    assert.deepEqual(read('generation_config.json'), { bos_token_id: 257, eos_token_id: 256 });
    assert.deepEqual(readFileSync(join(folder, 'tokenizer.json')), Buffer.from(tokenizer['tokenizer.json']));
    const bytes = readFileSync(join(folder, 'model.safetensors'));
    const length = Number(bytes.readBigUInt64LE(0));
    assert.equal(length % 8, 0);
    const header = JSON.parse(bytes.toString('utf8', 8, 8 + length));
    assert.deepEqual(header.__metadata__, { format: 'pt' });
    // The head is the embedding: once.
    assert.ok('transformer.wte.weight' in header && !Object.keys(header).some((name) => name.includes('lm_head')));
    assert.deepEqual(header['transformer.h.0.attn.c_attn.weight'].shape, [16, 48]);
    const weights = await weightsOf(lm);
    const tensors = readTensors(join(folder, 'model.safetensors'));
    assert.deepEqual(Object.fromEntries(Object.entries(tensors).map(([name, { data }]) => [name, data])), weights);
    for (const options of [{ trainable: true, worker: false }, {}]) {
      const again = await load(folder, options);
      assert.deepEqual(await weightsOf(again), weights);
      assert.deepEqual(await again.tokenize('abc'), await lm.tokenize('abc'));
      if (options.trainable) assert.deepEqual(await logitsOf(again), await logitsOf(lm));
      await again.dispose();
    }
    await lm.dispose();
  });

  test('is written over whole files, keeps what else is there, and says why it cannot be written', async () => {
    const lm = await make();
    const folder = newFolder();
    mkdirSync(folder);
    writeFileSync(join(folder, 'README.md'), 'mine');
    writeFileSync(join(folder, 'model.safetensors'), 'old');
    await lm.save(folder);
    assert.equal(readFileSync(join(folder, 'README.md'), 'utf8'), 'mine');
    assert.ok(!readdirSync(folder).some((name) => name.endsWith('.tmp')));
    await (await load(folder)).dispose();
    const file = join(folder, 'README.md');
    await assert.rejects(lm.save(file), code('invalid-argument', /could not be written/));
    await assert.rejects(lm.save('/proc/none/model'), code('invalid-argument', /could not be written/), 'a parent that takes no folders');
    // What is left of a save that was cut off; one may be going on.
    const [left, going] = ['model.safetensors.12.ab1.tmp', 'config.json.12.ab2.tmp'].map((name) => join(folder, name));
    for (const draft of [left, going]) writeFileSync(draft, '');
    utimesSync(left, new Date(0), new Date(0));
    await lm.save(folder);
    assert.deepEqual([existsSync(left), existsSync(going)], [false, true]);
    await assert.rejects(lm.save(5), code('invalid-argument', /folder: expected a path/));
    await assert.rejects(lm.save(''), code('invalid-argument', /folder/));
    await assert.rejects(lm.save(folder, { optimiser: true }), code('invalid-argument', /'optimizer'/));
    await assert.rejects(lm.save(folder, { optimizer: true }), code('invalid-argument', /has been trained/));
    await lm.dispose();
  });

  test('has the tokenizer of a llama2.c file as a tokenizer.json too', async () => {
    const lm = await load(folderOf('llama2c'), { trainable: true, worker: false });
    const folder = newFolder();
    await lm.save(folder);
    assert.deepEqual(
      readdirSync(folder).filter((name) => name.startsWith('token')),
      ['tokenizer.bin', 'tokenizer.json', 'tokenizer_config.json'],
    );
    const again = await load(folder, { worker: false });
    for (const { text, ids } of readJson('llama2c', 'expected.json').cases) {
      assert.deepEqual(await again.tokenize(text), ids);
      assert.equal(await again.decode(ids), await lm.decode(ids));
    }
    await lm.dispose();
    await again.dispose();
  });

  test('has the tokenizer of a GGUF file', async () => {
    const entries = (name) => keysOf(readFileSync(join(fixtures, 'gguf', name)));
    const model = entries('llama.gguf');
    const keys = [
      ...model.keys.filter(({ name }) => !name.startsWith('tokenizer.')),
      ...entries('vocab-llama.gguf').keys.filter(({ name }) => name.startsWith('tokenizer.')),
    ].map(({ bytes }) => bytes);
    const count = Buffer.alloc(8);
    count.writeBigUInt64LE(BigInt(keys.length));
    const head = Buffer.concat([model.head.subarray(0, 16), count, ...keys, model.tensors]);
    const file = Buffer.concat([head, Buffer.alloc((32 - (head.length % 32)) % 32), model.data]);
    const lm = await load({ 'model.gguf': file }, { trainable: true, worker: false });
    const folder = newFolder();
    await lm.save(folder);
    const again = await load(folder, { worker: false });
    const texts = readJson('files/llama', 'expected.json').texts;
    assert.ok(texts.length > 20);
    for (const { text } of texts) assert.deepEqual(await again.tokenize(text), await lm.tokenize(text), text);
    const chat = [{ role: 'user', content: 'hi' }];
    assert.equal(await again.applyChatTemplate(chat), '<s>hi');
    assert.deepEqual(await weightsOf(again), await weightsOf(lm));
    await lm.dispose();
    await again.dispose();
  });

  test('a save that the end of its model cuts off leaves no drafts', async () => {
    for (const worker of [true, false]) {
      const lm = await create({ ...config, n_embd: 256, n_layer: 4 }, { worker, threads: 1 });
      const folder = newFolder();
      const saving = assert.rejects(lm.save(folder), code('disposed'));
      const drafts = () => (existsSync(folder) ? readdirSync(folder).filter((name) => name.endsWith('.tmp')) : []);
      while (!drafts().some((name) => name.startsWith('model'))) await new Promise((resolve) => setTimeout(resolve, 1));
      await lm.dispose();
      await saving;
      for (let tries = 0; !worker && drafts().length > 0 && tries < 500; ++tries) await new Promise((resolve) => setTimeout(resolve, 10));
      assert.deepEqual(drafts(), []);
    }
  });

  test('what cannot be written truthfully is not written', async () => {
    for (const options of [{ dtype: 'q8' }, { trainable: false }]) {
      const lm = await make(options);
      await assert.rejects(lm.save(), code('unsupported', /trainable: true/));
      await lm.dispose();
    }
  });
});

test('in other places: files in memory, a handle of a folder', async () => {
  for (const worker of [true, false]) {
    const lm = await make({ worker });
    const files = await lm.save();
    const again = await load(recordOf(files), { worker: false });
    assert.deepEqual(await weightsOf(again), await weightsOf(lm));
    await again.dispose();
    if (!worker) {
      const written = {};
      const handle = {
        removeEntry: async (name) => {
          if (!delete written[name]) throw new DOMException(name, 'NotFoundError');
        },
        getFileHandle: async (name, { create }) => ({
          createWritable: async () => {
            assert.ok(create);
            const chunks = [];
            return {
              write: async (chunk) => chunks.push(Uint8Array.from(chunk)),
              close: async () => (written[name] = Buffer.concat(chunks)),
              abort: async () => {},
            };
          },
        }),
      };
      for (const name of ['optimizer.safetensors', 'trainer_state.json']) written[name] = Buffer.from('old');
      assert.equal(await lm.save(handle), undefined);
      assert.deepEqual(written, Object.fromEntries(files.map(({ name, bytes }) => [name, Buffer.from(bytes)])));
    }
    await lm.dispose();
  }
});

test('published models come back under their names: tied, transposed, fused, encoder-decoder, in 16 bits', async () => {
  for (const name of ['gpt2', 'llama-gqa', 'bert-masked-lm', 'transformer', 'gpt_neox', 'marian-separate', 'gguf/gpt2.gguf']) {
    const lm = await load(folderOf(name), { trainable: true, worker: false });
    const folder = newFolder();
    await lm.save(folder);
    const again = await load(folder, { worker: false });
    assert.deepEqual(await weightsOf(again), await weightsOf(lm), name);
    assert.deepEqual(again.config, { ...lm.config, ...('dtype' in lm.config ? { dtype: 'float32' } : {}), torch_dtype: 'float32' });
    assert.deepEqual(again.generationConfig, lm.generationConfig);
    assert.deepEqual(again.info().unusedTensors, []);
    await again.dispose();
    await lm.dispose();
  }
});

/** Where in trainer_state.json something is wrong, and what. */
const badStates = [
  ['step', -5],
  ['step', 2 ** 32 + 5],
  ['step', '3'],
  ['position', null],
  ['position', {}, /position\.epoch/],
  ['position.read', -1],
  ['position.read', 41, /position: expected one of 40 examples/],
  ['position.used', 1e9, /position: expected one of 40 examples/],
  ['position.epoch', 1e300],
  ['position.pool', 0.5],
  ['settings', {}, /settings\.native/],
  ['settings.steps', 'x'],
  ['settings.shuffle', 'no'],
  ['settings.native.dropout', 1],
  ['settings.foo', 1],
  ['evalData', 'yes'],
  ['examples', -1],
];

describe('a saved training goes on bit for bit', () => {
  const options = {
    steps: 12,
    batchTokens: 48,
    microBatchTokens: 32,
    learningRate: 3e-3,
    schedule: 'cosine',
    warmup: 3,
    seed: 9,
    evalEvery: 4,
  };
  const entries = { [Symbol.iterator]: () => texts[Symbol.iterator]() };
  const corpus = join(place, 'corpus.txt');
  writeFileSync(corpus, texts.join('\n'));
  let skipped = 0;
  const skipping = {
    [Symbol.asyncIterator]: async function* () {
      yield* texts;
    },
    skip: async (count) => {
      skipped += count;
      return texts.slice(count);
    },
  };
  const kinds = {
    'an array': [texts, options],
    'an array in its order': [texts, { ...options, shuffle: false }],
    'an iterable': [entries, { ...options, evalData: texts.slice(0, 3) }],
    'an iterable that can skip': [skipping, { ...options, steps: 30, evalData: texts.slice(0, 3), batchTokens: 20 }],
    'one text': [texts.join(' '), options],
    'a file of lines': [{ file: corpus, lines: true }, options],
  };
  for (const [name, [data, given]] of Object.entries(kinds)) {
    for (const stop of [2, given.steps - 5]) {
      test(`${name}, stopped after ${stop} steps`, async () => {
        const whole = await make();
        const steps = await stepsOf(whole.train(data, given));
        assert.equal(steps.length, given.steps);
        const first = await make();
        assert.deepEqual(await stepsOf(first.train(data, given), stop), steps.slice(0, stop));
        const folder = newFolder();
        await first.save(folder, { optimizer: true });
        const held = given.evalData ? { evalData: given.evalData } : {};
        // From the folder, in another model; and in the one that stopped.
        const second = await load(folder, { trainable: true, worker: stop === 2 });
        assert.deepEqual(await stepsOf(second.train(data, { resume: true, ...held })), steps.slice(stop));
        assert.deepEqual(await weightsOf(second), await weightsOf(whole));
        assert.deepEqual(await stepsOf(first.train(data, { resume: true, ...held })), steps.slice(stop));
        assert.deepEqual(await weightsOf(first), await weightsOf(whole));
        const [a, b] = [await first.save(undefined, { optimizer: true }), await whole.save(undefined, { optimizer: true })];
        const optimizer = (files) => Buffer.from(recordOf(files)['optimizer.safetensors']);
        assert.deepEqual(optimizer(a), optimizer(b));
        for (const lm of [whole, first, second]) await lm.dispose();
      });
    }
  }

  test('a skip of the data’s own was used', () => assert.ok(skipped > 0));

  test('saved inside the loop, with other data refused', async () => {
    const lm = await make();
    const folder = newFolder();
    const steps = [];
    for await (const { tokensPerSecond: _, ...step } of lm.train(texts, options)) {
      steps.push(step);
      if (step.step === 5) await lm.save(folder, { optimizer: true });
    }
    const again = await load(folder, { trainable: true, worker: false });
    await assert.rejects(
      stepsOf(again.train(texts.slice(1), { resume: true })),
      code('invalid-argument', /the 40 examples of before, got 39/),
    );
    await assert.rejects(
      stepsOf(again.train(entries, { resume: true, evalData: texts })),
      code('invalid-argument', /examples of before, got an iterable/),
    );
    assert.deepEqual(await stepsOf(again.train(texts, { resume: true })), steps.slice(5));
    // And further than was planned.
    const more = await stepsOf(again.train(texts, { resume: true, steps: 14 }));
    assert.deepEqual(
      more.map(({ step }) => step),
      [13, 14],
    );
    await again.dispose();
    await lm.dispose();
  });

  test('with the optimiser that it had: Muon’s moments are not Adam’s', async () => {
    for (const [optimizer, other] of [
      ['muon', 'adamw'],
      ['muon', 'adam'],
      ['adamw', 'muon'],
      [undefined, 'muon'],
    ]) {
      const given = { ...options, ...(optimizer ? { optimizer } : {}) };
      const whole = await make();
      const steps = await stepsOf(whole.train(texts, given));
      const lm = await make();
      await stepsOf(lm.train(texts, given), 5);
      const folder = newFolder();
      await lm.save(folder, { optimizer: true });
      const again = await load(folder, { trainable: true, worker: false });
      const message = `[train] optimizer: expected ${optimizer ?? 'adamw'}, as before, got ${other}`;
      for (const model of [again, lm]) {
        await assert.rejects(stepsOf(model.train(texts, { resume: true, optimizer: other })), { code: 'invalid-argument', message });
        assert.deepEqual(await stepsOf(model.train(texts, { resume: true, optimizer: optimizer ?? 'adamw' })), steps.slice(5));
        assert.deepEqual(await weightsOf(model), await weightsOf(whole));
      }
      for (const model of [whole, lm, again]) await model.dispose();
    }
    // Adam's and AdamW's differ in what is decayed alone.
    const lm = await make();
    await stepsOf(lm.train(texts, options), 5);
    assert.equal((await stepsOf(lm.train(texts, { resume: true, optimizer: 'adam', steps: 7 }))).length, 2);
    await lm.dispose();
  });

  test('the state that was loaded is not for weights that have changed since', async () => {
    const lm = await make();
    await stepsOf(lm.train(texts, { steps: 2 }));
    const again = await load(recordOf(await lm.save(undefined, { optimizer: true })), { trainable: true, worker: false });
    await assert.rejects(stepsOf(again.train([])), code('invalid-argument', /dataset/));
    assert.equal((await stepsOf(again.train(texts, { resume: true, steps: 3 })))[0].step, 3);
    await stepsOf(again.train(texts, { steps: 1 }));
    await assert.rejects(stepsOf(again.train([])), code('invalid-argument', /dataset/));
    assert.equal((await stepsOf(again.train(texts, { resume: true, steps: 2 })))[0].step, 2);
    await again.addAdapter({ targetModules: ['c_attn'] });
    await again.removeAdapter();
    await assert.rejects(stepsOf(again.train(texts, { resume: true })), code('invalid-argument', /resume/));
    await again.dispose();
    await lm.dispose();
  });

  test('an abort in the first step of another training leaves the one that was loaded', async () => {
    const lm = await make();
    const options = { steps: 4, batchTokens: 48, seed: 3 };
    const expected = await stepsOf(lm.train(texts, options));
    const first = await make();
    await stepsOf(first.train(texts, options), 2);
    const again = await load(recordOf(await first.save(undefined, { optimizer: true })), { trainable: true, worker: false });
    for (const resume of [false, true]) {
      const abort = new AbortController();
      const training = again.train(texts, { batchTokens: 4000, microBatchTokens: 33, signal: abort.signal, resume });
      const ended = assert.rejects(training.next(), { name: 'AbortError' });
      for (let turn = 0; turn < 12; ++turn) await new Promise((resolve) => setImmediate(resolve));
      abort.abort();
      await ended;
    }
    assert.deepEqual(await stepsOf(again.train(texts, { resume: true })), expected.slice(2));
    for (const model of [lm, first, again]) await model.dispose();
  });

  test('a save without the optimiser leaves no older state; one that is left beside other weights is refused', async () => {
    const lm = await make();
    const folder = newFolder();
    await stepsOf(lm.train(texts, { steps: 2, batchTokens: 48 }));
    await lm.save(folder, { optimizer: true });
    const names = ['trainer_state.json', 'optimizer.safetensors'];
    const old = Object.fromEntries(names.map((name) => [name, readFileSync(join(folder, name))]));
    await (await make({ seed: 2 })).save(folder);
    for (const name of names) assert.ok(!existsSync(join(folder, name)), name);
    const other = await load({ ...recordOf(await (await make({ seed: 2 })).save()), ...old }, { trainable: true, worker: false });
    await assert.rejects(stepsOf(other.train(texts, { resume: true, steps: 3 })), code('invalid-file', /weights/));
    await other.dispose();
    await lm.dispose();
  });

  test('a save that something is in the way of leaves the old files', async () => {
    const lm = await make();
    const folder = newFolder();
    await stepsOf(lm.train(texts, { steps: 2, batchTokens: 48 }));
    await lm.save(folder);
    mkdirSync(join(folder, 'optimizer.safetensors'));
    const before = readFileSync(join(folder, 'model.safetensors'));
    await stepsOf(lm.train(texts, { steps: 3, resume: true }));
    for (const optimizer of [true, false])
      await assert.rejects(
        lm.save(folder, { optimizer }),
        code('invalid-argument', /optimizer\.safetensors: expected a file, got a folder/),
      );
    assert.deepEqual(readFileSync(join(folder, 'model.safetensors')), before);
    assert.ok(!existsSync(join(folder, 'trainer_state.json')) && !readdirSync(folder).some((name) => name.endsWith('.tmp')));
    await lm.dispose();
  });

  test('evaluation data that a training had are asked for again', async () => {
    const lm = await make();
    const evalData = texts.slice(0, 3);
    await stepsOf(lm.train(texts, { steps: 4, batchTokens: 48, evalData, evalEvery: 2 }), 2);
    await assert.rejects(
      stepsOf(lm.train(texts, { resume: true })),
      code('invalid-argument', /evalData: expected those of before, got none/),
    );
    assert.equal((await stepsOf(lm.train(texts, { resume: true, evalData }))).length, 2);
    await lm.dispose();
  });

  test('a state that is not one is refused', async () => {
    const lm = await make();
    await stepsOf(lm.train(texts, { steps: 1 }));
    const files = recordOf(await lm.save(undefined, { optimizer: true }));
    const state = JSON.parse(new TextDecoder().decode(files['trainer_state.json']));
    const changed = ([path, value, message]) => {
      const copy = structuredClone(state);
      const keys = path.split('.');
      const last = keys.pop();
      keys.reduce((at, key) => at[key], copy)[last] = value;
      return ['trainer_state.json', json(copy), 'invalid-file', message ?? new RegExp(last)];
    };
    const negative = files['optimizer.safetensors'].slice();
    negative.set([0, 0, 128, 191], negative.length - 4); // -1 as the last second moment
    for (const [name, bytes, expected, message] of [
      ['trainer_state.json', json({ format: 'other' }), 'invalid-file', /format/],
      ['trainer_state.json', json({ format: 'wasmformer-trainer-1', step: 1 }), 'invalid-file', /position: expected an object/],
      ...badStates.map(changed),
      ['optimizer.safetensors', negative, 'invalid-file', /exp_avg_sq\.transformer\.wte.*>= 0, got -1/],
      ['optimizer.safetensors', files['model.safetensors'], 'missing-tensor', /exp_avg\.transformer/],
      ['optimizer.safetensors', files['optimizer.safetensors'].slice(0, -4), 'invalid-file', /length|cut short/],
    ]) {
      const bad = await load({ ...files, [name]: bytes }, { trainable: true, worker: false });
      await assert.rejects(stepsOf(bad.train(texts, { resume: true })), code(expected, message), name);
      assert.equal((await stepsOf(bad.train(texts, { steps: 1 }))).length, 1);
      await bad.dispose();
    }
    await lm.dispose();
  });
});
