// Model.train: PyTorch's steps, what data may be, how a training ends, and what is refused.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { create, load, trainTokenizer } from '../dist/node.js';
import { bundle } from './support/bundle.mjs';
import { code } from './support/errors.mjs';
import { folderOf, readJson, readTensors } from './support/fixtures.mjs';
import { byteTokenizer, random } from './support/tiny.mjs';
import { stepsOf, weightsOf } from './support/training.mjs';

const config = { model_type: 'gpt2', vocab_size: 20, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 32 };
const pairConfig = {
  model_type: 'transformer',
  vocab_size: 20,
  d_model: 16,
  encoder_layers: 1,
  decoder_layers: 1,
  encoder_attention_heads: 2,
  decoder_attention_heads: 2,
  encoder_ffn_dim: 32,
  decoder_ffn_dim: 32,
  bos_token_id: 1,
  eos_token_id: 2,
  decoder_start_token_id: 1,
};
/** Counting in steps of three, in sequences of 5 to 13 ids. */
const counting = Array.from({ length: 60 }, (_, i) => ({ inputIds: Array.from({ length: 5 + (i % 9) }, (_, t) => (i + 3 * t) % 20) }));
const make = (options) => create(config, { seed: 1, threads: 1, worker: false, ...options });
const json = (value) => new TextEncoder().encode(JSON.stringify(value));
const bytesAsTokens = {
  'tokenizer.json': json(byteTokenizer()),
  'tokenizer_config.json': json({ bos_token: '<bos>', eos_token: '<eos>' }),
};

describe('five steps of AdamW with warm-up, cosine and clipping are PyTorch’s', () => {
  const { options, ...runs } = readJson('training', 'expected.json');
  for (const [name, { batches, steps }] of Object.entries(runs)) {
    // Once a whole batch at a time, once a sequence at a time.
    for (const microBatchTokens of [24, 20]) {
      test(`${name}, at most ${microBatchTokens} tokens at once`, async () => {
        const expected = readTensors(join(folderOf('training'), `${name}.safetensors`));
        const lm = await load(folderOf(name), { trainable: true, worker: false });
        const found = await stepsOf(lm.train(batches.flat(), { ...options, batchTokens: 24, microBatchTokens, shuffle: false }));
        assert.equal(found.length, steps.length);
        for (const [i, { loss, gradientNorm, learningRate }] of steps.entries()) {
          assert.ok(Math.abs(found[i].loss - loss) < 1e-4, `step ${i + 1}: loss ${found[i].loss} for ${loss}`);
          assert.ok(Math.abs(found[i].gradientNorm / gradientNorm - 1) < 1e-4, `step ${i + 1}: norm ${found[i].gradientNorm}`);
          assert.ok(Math.abs(found[i].learningRate - learningRate) < 1e-9, `step ${i + 1}: rate ${found[i].learningRate}`);
          assert.equal(found[i].tokens, 24);
        }
        const weights = await weightsOf(lm);
        assert.deepEqual(Object.keys(weights).sort(), Object.keys(expected).sort());
        for (const [key, { data }] of Object.entries(expected)) {
          let worst = 0;
          for (let i = 0; i < data.length; ++i) worst = Math.max(worst, Math.abs(weights[key][i] - data[i]));
          assert.ok(worst < 1e-5, `${key}: ${worst} apart`);
        }
        await lm.dispose();
      });
    }
  }
});

describe('a run', () => {
  test('learns, says how it goes, and is the same for the same seed, in a worker and not', async () => {
    const options = {
      steps: 60,
      batchTokens: 128,
      learningRate: 1e-2,
      seed: 7,
      evalEvery: 20,
      sampleEvery: 30,
      sample: { inputIds: [0, 3] },
    };
    const runs = [];
    for (const worker of [true, false]) {
      const lm = await make({ worker });
      runs.push([await stepsOf(lm.train(counting, options)), await weightsOf(lm)]);
      await lm.dispose();
    }
    assert.deepEqual(runs[0], runs[1]);
    const [steps] = runs[0];
    assert.deepEqual(
      steps.map(({ step }) => step),
      Array.from({ length: 60 }, (_, i) => i + 1),
    );
    assert.ok(steps[0].loss > 2.5 && steps.at(-1).loss < 0.8, `${steps[0].loss} to ${steps.at(-1).loss}`);
    for (const { step, epoch, evalLoss, sample, tokens } of steps) {
      assert.equal(evalLoss !== undefined, step % 20 === 0);
      assert.equal(sample !== undefined, step % 30 === 0);
      assert.ok(epoch >= 1 && tokens > 64 && tokens <= 128);
    }
    assert.match(steps.at(-1).sample, /^6 9 12 15 18 1 4/);
  });

  test('epochs: each reads every example once, in an order of its own', async () => {
    const lm = await make();
    const steps = await stepsOf(lm.train(counting, { epochs: 3, batchTokens: 128, learningRate: 1e-4, dropout: 0 }));
    const total = counting.reduce((sum, { inputIds }) => sum + inputIds.length, 0);
    const orders = [1, 2, 3].map((epoch) => steps.filter((step) => step.epoch === epoch).map(({ tokens }) => tokens));
    for (const tokens of orders)
      assert.equal(
        tokens.reduce((sum, count) => sum + count),
        total,
      );
    assert.notDeepEqual(orders[0], orders[1]);
    await lm.dispose();
  });

  test('between steps the model can be used; leaving the loop stops right there', async () => {
    const [a, b] = [await make(), await make()];
    const options = { steps: 50, batchTokens: 64 };
    for await (const { step } of a.train(counting, options)) {
      const { tokenIds } = await a.generate({ inputIds: [1, 2] }, { maxNewTokens: 4 }).result;
      assert.equal(tokenIds.length, 4);
      await a.gradients({ inputIds: [[1, 2, 3]], labels: [[1, 2, 3]] });
      if (step === 3) break;
    }
    await stepsOf(b.train(counting, options), 3);
    const after = await weightsOf(a);
    assert.deepEqual(after, await weightsOf(b));
    assert.notDeepEqual(after, await weightsOf(await make()));
    // What is thrown in the loop is the caller's, and ends it too.
    await assert.rejects(async () => {
      for await (const _ of a.train(counting, options)) throw new RangeError('mine');
    }, RangeError);
    assert.equal((await stepsOf(a.train(counting, options), 1)).length, 1);
    await a.dispose();
    await b.dispose();
  });

  test('pairs: teacher forcing is what gradients computes', async () => {
    const lm = await create(pairConfig, { seed: 2, worker: false });
    const sources = [
      [5, 6, 7, 8, 9],
      [10, 11],
      [3, 4, 5],
    ];
    const targets = [
      [9, 8, 7, 6, 5, 2],
      [11, 10, 2],
      [5, 4, 3, 2],
    ];
    const { loss } = await lm.gradients({
      inputIds: sources,
      labels: targets,
      decoderInputIds: targets.map((ids) => [1, ...ids.slice(0, -1)]),
    });
    const data = sources.map((inputIds, i) => ({ inputIds, labels: targets[i] }));
    const [step] = await stepsOf(lm.train(data, { steps: 1, dropout: 0 }));
    assert.ok(Math.abs(step.loss - loss) < 1e-6, `${step.loss} for ${loss}`);
    assert.equal(step.tokens, 23);
    await lm.dispose();
  });
});

test('a long target is no argument list; the token that a decoder begins with is the same in training and generation', async () => {
  const lm = await create({ ...pairConfig, decoder_start_token_id: undefined }, { worker: false, threads: 1 });
  const long = { inputIds: [3, 4], labels: new Int32Array(2e5).fill(5) };
  const sizes = { steps: 1, batchTokens: 2 ** 20, maxLength: 2 ** 20 };
  await assert.rejects(stepsOf(lm.train([long], sizes)), code('out-of-memory', /micro-batch/));
  const pair = { inputIds: [3, 4], labels: [5, 6] };
  const [{ loss }] = await stepsOf(lm.train([pair], { steps: 1, learningRate: 0, dropout: 0, sampleEvery: 1 }));
  const given = { ...pair, decoderInputIds: [1, 5] };
  const [{ loss: same }] = await stepsOf(lm.train([given], { steps: 1, learningRate: 0, dropout: 0 }));
  assert.equal(loss, same);
  const generate = async (options) =>
    (await lm.generate({ inputIds: [3, 4] }, { maxNewTokens: 3, doSample: false, ...options }).result).tokenIds;
  assert.deepEqual(await generate(), await generate({ decoderStartTokenId: 1 }));
  await lm.dispose();
  const none = await create({ ...pairConfig, decoder_start_token_id: undefined, bos_token_id: undefined }, { worker: false, threads: 1 });
  await assert.rejects(stepsOf(none.train([pair], { steps: 1 })), code('invalid-argument', /decoder_start_token_id or bos_token_id/));
  await none.dispose();
});

test('label smoothing is PyTorch’s: a share of the probability for all tokens alike', async () => {
  const lm = await make();
  const inputIds = [[1, 5, 9, 13, 17]];
  const [{ logits }] = await lm.forward({ inputIds });
  let expected = 0;
  for (let t = 0; t < 4; ++t) {
    const row = Array.from(logits.data.subarray(t * 20, (t + 1) * 20));
    const log = Math.log(row.reduce((sum, x) => sum + Math.exp(x), 0));
    const mean = row.reduce((sum, x) => sum + (log - x), 0) / 20;
    expected += (0.9 * (log - row[inputIds[0][t + 1]]) + 0.1 * mean) / 4;
  }
  const { loss } = await lm.gradients({ inputIds, labels: inputIds }, { labelSmoothing: 0.1 });
  assert.ok(Math.abs(loss - expected) < 1e-5, `${loss} for ${expected}`);
  const [step] = await stepsOf(lm.train([{ inputIds: inputIds[0] }], { steps: 1, dropout: 0, labelSmoothing: 0.1 }));
  assert.ok(Math.abs(step.loss - expected) < 1e-5, `${step.loss} for ${expected}`);
  await assert.rejects(lm.gradients({ inputIds, labels: inputIds }, { labelSmoothing: 1 }), code('invalid-argument', /labelSmoothing/));
  await lm.dispose();
});

test('a bias that is a buffer in transformers is not trained', async () => {
  const lm = await load(folderOf('marian'), { trainable: true, worker: false });
  const pair = { inputIds: [5, 6, 7, 0], labels: [8, 9, 0] };
  const { gradients } = await lm.gradients({ inputIds: [pair.inputIds], decoderInputIds: [[59, 8, 9]], labels: [pair.labels] });
  const names = Object.keys(gradients);
  const before = await weightsOf(lm);
  assert.deepEqual(
    Object.keys(before).filter((name) => !names.includes(name)),
    ['final_logits_bias'],
  );
  assert.ok(before.final_logits_bias.some((value) => value !== 0));
  await stepsOf(lm.train([pair], { steps: 2, learningRate: 0.01 }));
  await stepsOf(lm.train([pair], { steps: 2, learningRate: 0.01, optimizer: 'muon' }));
  const after = await weightsOf(lm);
  assert.deepEqual(after.final_logits_bias, before.final_logits_bias);
  for (const name of names) assert.notDeepEqual(after[name], before[name], name);
  await lm.dispose();
});

describe('texts', () => {
  test('a long text is windows that predict each token once; documents end in EOS', async () => {
    const text = Array.from({ length: 300 }, (_, i) => 'abcdefghij'[(i * i) % 10]).join('');
    const lm = await create({ ...config, vocab_size: 259 }, { seed: 1, tokenizer: bytesAsTokens, worker: false });
    assert.equal(lm.generationConfig.eos_token_id, 256);
    const ids = [...(await lm.tokenize(text)), 256];
    const windows = [];
    for (let at = 0; at + 1 < ids.length; at += 31) windows.push(ids.slice(at, at + 32));
    const { loss } = await lm.gradients({ inputIds: windows, labels: windows });
    for (const data of [text, [text], [{ text }]]) {
      const fresh = await create({ ...config, vocab_size: 259 }, { seed: 1, tokenizer: bytesAsTokens, worker: false });
      const [step] = await stepsOf(fresh.train(data, { steps: 1, dropout: 0 }));
      assert.ok(Math.abs(step.loss - loss) < 1e-5, `${step.loss} for ${loss}`);
      assert.equal(step.tokens, ids.length + windows.length - 1);
      await fresh.dispose();
    }
    const [step] = await stepsOf(lm.train([text], { steps: 1, truncate: true, maxLength: 16 }));
    assert.equal(step.tokens, 16);
    await lm.dispose();
  });

  test('files: one text, or an entry a line with a tab between source and target', async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'wasmformer-train-'));
    t.after(() => rmSync(folder, { recursive: true }));
    const made = () => create({ ...pairConfig, vocab_size: 259 }, { seed: 1, tokenizer: bytesAsTokens });
    const entries = [
      { source: 'ab', target: 'ba' },
      { source: 'cde', target: 'edc' },
    ];
    const file = join(folder, 'pairs.tsv');
    writeFileSync(file, 'ab\tba\r\n\ncde\tedc\n');
    const [a, b, c] = [await made(), await made(), await made()];
    const expected = await stepsOf(a.train(entries, { steps: 3, sampleEvery: 3, sample: 'ab' }));
    assert.equal(typeof expected[2].sample, 'string');
    assert.deepEqual(await stepsOf(b.train({ file }, { steps: 3, sampleEvery: 3, sample: 'ab' })), expected);
    const blob = new Blob(['ab\tba\ncde\tedc']);
    assert.deepEqual(await stepsOf(c.train({ files: [blob] }, { steps: 3, sampleEvery: 3, sample: 'ab' })), expected);
    await assert.rejects(stepsOf(a.train({ file: join(folder, 'none') })), code('not-found', /no such file/));
    await assert.rejects(stepsOf(a.train(['one text'])), code('invalid-argument', /example 0: expected \{ source, target \}/));
    for (const lm of [a, b, c]) await lm.dispose();
  });
});

describe('iterables', () => {
  async function* stream(log = { pulled: 0, closed: 0 }) {
    try {
      for (const entry of counting) {
        log.pulled += 1;
        yield entry;
      }
    } finally {
      log.closed += 1;
    }
  }

  test('are read as they are needed, again for each epoch, and closed', async () => {
    const lm = await make();
    const log = { pulled: 0, closed: 0 };
    const data = { [Symbol.asyncIterator]: () => stream(log) };
    const steps = await stepsOf(lm.train(data, { steps: 30, batchTokens: 64 }));
    assert.equal(steps.length, 30);
    assert.ok(steps.at(-1).epoch >= 3);
    const endless = { pulled: 0 };
    const numbers = (function* () {
      for (;;) {
        endless.pulled += 1;
        yield { inputIds: [1, 2, 3, 4] };
      }
    })();
    await stepsOf(lm.train(numbers, { steps: 2, batchTokens: 64 }));
    assert.ok(endless.pulled <= 512, `${endless.pulled} pulled`);
    assert.equal(numbers.next().done, true);
    await lm.dispose();
  });

  test('one that cannot be read again ends the run: quietly after its epoch, with an error where more steps were asked for', async () => {
    const lm = await make();
    assert.ok((await stepsOf(lm.train(stream(), { batchTokens: 64 }))).length > 3);
    await assert.rejects(
      stepsOf(lm.train(stream(), { steps: 1000, batchTokens: 64 })),
      code('invalid-argument', /read again, for epoch 2, got its end after \d+ steps/),
    );
    await assert.rejects(stepsOf(lm.train(stream(), { schedule: 'cosine' })), code('invalid-argument', /steps/));
    await assert.rejects(stepsOf(lm.train(stream(), { evalFraction: 0.1, steps: 2 })), code('invalid-argument', /evalData/));
    await assert.rejects(stepsOf(lm.train(stream(), { evalData: [], steps: 2 })), code('invalid-argument', /evalData/));
    const [step] = await stepsOf(lm.train(stream(), { evalData: stream(), evalEvery: 1, steps: 1 }));
    assert.ok(step.evalLoss > 0);
    await lm.dispose();
  });

  test('one without an example is read once', async () => {
    const lm = await create(
      { ...config, vocab_size: 259, eos_token_id: null },
      { seed: 1, tokenizer: { 'tokenizer.json': json(byteTokenizer()) }, worker: false },
    );
    let read = 0;
    const data = {
      *[Symbol.iterator]() {
        read += 1;
        yield* ['', ''];
      },
    };
    for (const entries of [['', ''], data])
      await assert.rejects(
        stepsOf(lm.train(entries, { steps: 3, signal: AbortSignal.timeout(5000) })),
        code('invalid-argument', /dataset: expected at least one example, got none/),
      );
    assert.equal(read, 1);
    await lm.dispose();
  });

  test('what they throw is what the training throws', async () => {
    const lm = await make();
    const bad = (async function* () {
      yield counting[0];
      throw new RangeError('the disk is on fire');
    })();
    await assert.rejects(stepsOf(lm.train(bad)), /the disk is on fire/);
    await assert.rejects(
      stepsOf(
        lm.train(
          (function* () {
            yield 5;
          })(),
        ),
      ),
      code('invalid-argument', /example 0: expected a text/),
    );
    assert.equal((await stepsOf(lm.train(counting, { steps: 1 }))).length, 1);
    await lm.dispose();
  });
});

describe('an encoder', () => {
  test('guesses masked tokens: 80 % masks, 10 % others, 10 % unchanged, never special ones', async () => {
    const { masked } = await bundle(`export { masked } from './web/train/examples.ts';`);
    const inputIds = Int32Array.from({ length: 20000 }, (_, i) => (i % 10 === 0 ? 2 : 5 + (i % 90)));
    const masks = { mask: 4, special: new Set([2, 4]), vocabSize: 100, probability: 0.15 };
    const example = { index: 3, inputIds, labels: null, tokens: inputIds.length };
    const found = masked(example, masks, 1, 2);
    assert.deepEqual(masked(example, masks, 1, 2), found);
    assert.notDeepEqual(masked(example, masks, 1, 3), found);
    const counts = { mask: 0, other: 0, same: 0 };
    for (const [t, label] of found.labels.entries()) {
      if (label === -100) assert.equal(found.inputIds[t], inputIds[t]);
      else {
        assert.equal(label, inputIds[t]);
        assert.notEqual(label, 2);
        counts[found.inputIds[t] === 4 ? 'mask' : found.inputIds[t] === label ? 'same' : 'other'] += 1;
      }
    }
    const total = counts.mask + counts.other + counts.same;
    assert.equal(total, 2700);
    // Five standard deviations of 2700 draws.
    for (const [kind, share] of [
      ['mask', 0.8],
      ['other', 0.1],
      ['same', 0.1],
    ])
      assert.ok(Math.abs(counts[kind] / total - share) < 0.04, `${kind}: ${counts[kind]} of ${total}`);
    const one = { index: 0, inputIds: Int32Array.of(2, 7, 2), labels: null, tokens: 3 };
    assert.deepEqual([...masked(one, masks, 1).labels], [-100, 7, -100]);
  });

  test('learns from texts, in windows with special tokens around each', async () => {
    const folder = (name) =>
      Object.fromEntries(readdirSync(folderOf(name)).map((file) => [file, readFileSync(join(folderOf(name), file))]));
    const files = { ...folder('tasks/bert-mask'), ...folder('tasks/wordpiece') };
    const lm = await load(files, { trainable: true, worker: false });
    const text = 'the whale of the sea and the ship. '.repeat(20);
    const body = await lm.tokenize(text, { addSpecialTokens: false });
    const options = { batchTokens: 64, maxLength: 18, learningRate: 3e-3, dropout: 0 };
    const steps = await stepsOf(lm.train([text], { ...options, epochs: 12, evalData: [text], evalEvery: 1 }));
    const epoch = steps.filter((step) => step.epoch === 1).reduce((sum, { tokens }) => sum + tokens, 0);
    assert.equal(epoch, body.length + 2 * Math.ceil(body.length / 16));
    assert.ok(steps.at(-1).evalLoss < 0.6 * steps[0].evalLoss, `${steps[0].evalLoss} to ${steps.at(-1).evalLoss}`);
    // Windows without a word have nothing to guess, and a text without any is none.
    const empty = '[SEP]'.repeat(16);
    const first = async (texts) => (await stepsOf(lm.train(texts, { ...options, batchTokens: 1000, steps: 1, shuffle: false })))[0].tokens;
    assert.equal(await first([`${empty}the whale`]), await first(['the whale']));
    await assert.rejects(
      first(['the whale', empty]),
      code('invalid-argument', /example 1: expected a token that is not special, got none/),
    );
    await lm.dispose();
  });
});

describe('what is refused, before anything is learned', () => {
  test('options and data', async () => {
    const lm = await make();
    const before = await weightsOf(lm);
    const throws = (data, options, message, expected = 'invalid-argument') =>
      assert.throws(() => lm.train(data, options), code(expected, message));
    throws(counting, { learningrate: 1 }, /unknown option 'learningrate'.*'learningRate'/);
    throws(counting, { steps: 0 }, /steps: expected an integer/);
    throws(counting, { dropout: 1 }, /dropout/);
    throws(counting, { schedule: 'exotic' }, /schedule/);
    throws(counting, { sample: { topQ: 1 } }, /topQ/);
    throws(counting, { sample: { cache: {} } }, /sample\.cache: expected none/);
    throws(counting, { sample: { signal: AbortSignal.abort() } }, /sample\.signal: expected none/);
    throws(counting, { sample: { doSample: true, numReturnSequences: 2 } }, /sample\.numReturnSequences: expected none/);
    throws(counting, { sample: { inputIds: [[1], [2]] } }, /sample: expected one prompt, got 2/);
    throws(counting, { evalData: 5 }, /evalData/);
    throws(counting, { evalData: counting, evalFraction: 0.1 }, /evalFraction/);
    throws(undefined, {}, /dataset: expected/);
    throws({ file: 5 }, {}, /file/);
    throws({ path: 'x' }, {}, /path/);
    const rejects = (data, options, message, expected = 'invalid-argument') =>
      assert.rejects(stepsOf(lm.train(data, { steps: 2, ...options })), code(expected, message));
    await rejects({ [Symbol.iterator]: () => ({}) }, {}, /iterator: expected one with a function next/);
    await rejects({ [Symbol.iterator]: () => ({ next: () => 5 }) }, {}, /example 0: expected a text/);
    await rejects([], {}, /dataset: expected at least one example, got none/);
    await rejects(['text'], {}, /no tokenizer/, 'unsupported');
    await rejects([{ source: 'a', target: 'b' }], {}, /example 0: expected one sequence/);
    await rejects([{ inputIds: [1, 2] }, { inputIds: [1, 20] }], {}, /example 1: inputIds: expected ids from 0 to 19, got 20/);
    await rejects([...counting, { inputIds: [1, -1] }], {}, /example 60: token id at 1: expected an integer >= 0, got -1/);
    throws({ [Symbol.iterator]: 5 }, {}, /dataset|unknown option/);
    await rejects([{ inputIds: [1] }], {}, /example 0: expected at least two tokens/);
    await rejects([{ inputIds: [1, 2], labels: [1] }], {}, /example 0: labels: expected 2 of them/);
    await rejects([{ inputIds: [1, 2], labels: [1, -100] }], {}, /example 0: labels: expected at least one that counts/);
    await rejects([{ inputIds: [1, 2], extra: 1 }], {}, /example 0: expected a text/);
    await rejects([{ inputIds: Array(33).fill(1) }], {}, /example 0: expected at most maxLength, 32 tokens .*got 33/);
    await rejects(counting, { maxLength: 64 }, /maxLength: expected at most 32, got 64/);
    await rejects(counting, { maxLength: 1 }, /maxLength: expected at least 2, got 1/);
    await rejects(counting, { objective: 'seq2seq' }, /objective: expected 'causal'/, 'unsupported');
    await rejects(counting, { evalData: [{ inputIds: [1, 99] }] }, /evalData, example 0: inputIds/);
    await rejects(counting, { resume: true }, /resume: expected a model that has been trained/);
    await rejects(counting, { schedule: 'paper', learningRate: 1, warmup: 5 }, /learningRate/);
    assert.deepEqual(await weightsOf(lm), before);
    assert.equal((await stepsOf(lm.train([{ inputIds: Array(33).fill(1) }], { steps: 1, truncate: true }))).length, 1);
    await lm.dispose();
  });

  test('models that cannot learn', async () => {
    for (const [options, message] of [
      [{ trainable: false }, /made by create/],
      [{ dtype: 'q8' }, /made by create/],
    ]) {
      const lm = await make(options);
      await assert.rejects(stepsOf(lm.train(counting)), code('invalid-argument', message));
      await lm.dispose();
    }
    const classifier = await load(folderOf('bert-classify'), { trainable: true, worker: false });
    await assert.rejects(stepsOf(classifier.train(counting)), code('unsupported', /predicts tokens/));
    await classifier.dispose();
  });

  test('a second training beside one that runs', async () => {
    const lm = await make();
    const first = lm.train(counting, { steps: 5 });
    await first.next();
    await assert.rejects(lm.train(counting).next(), code('busy', /another training runs/));
    assert.equal((await stepsOf(first)).length, 4);
    await lm.dispose();
  });
});

test('a training that was aborted while it started does not let another in', async () => {
  const lm = await make();
  let open;
  const opened = new Promise((resolve) => {
    open = resolve;
  });
  class Slow extends Blob {
    async arrayBuffer() {
      await opened;
      return super.arrayBuffer();
    }
  }
  const abort = new AbortController();
  const slow = lm.train({ file: new Slow(['x']) }, { signal: abort.signal }).next();
  setTimeout(() => abort.abort(), 5);
  await assert.rejects(slow, { name: 'AbortError' });
  const training = lm.train(counting, { steps: 3, batchTokens: 64 });
  await training.next();
  open();
  await new Promise((resolve) => setTimeout(resolve, 20));
  await assert.rejects(lm.train(counting).next(), code('busy', /another training runs/));
  assert.deepEqual(
    (await stepsOf(training)).map(({ step }) => step),
    [2, 3],
  );
  await lm.dispose();
});

test('what learns nothing does not lose the last training', async () => {
  const lm = await make();
  const [reference, options] = [await make(), { batchTokens: 64, learningRate: 1e-2 }];
  const expected = await stepsOf(reference.train(counting, { ...options, steps: 11 }));
  let steps = await stepsOf(lm.train(counting, { ...options, steps: 2 }));
  const aborted = () => {
    const abort = new AbortController();
    const training = stepsOf(lm.train(counting, { signal: abort.signal }));
    queueMicrotask(() => abort.abort());
    return training;
  };
  for (const fails of [
    () => stepsOf(lm.train([])),
    () => stepsOf(lm.train([{ inputIds: [1, 99] }])),
    () => stepsOf(lm.train(new Set([{ inputIds: [1, 99] }]))),
    () => stepsOf(lm.train(counting, { schedule: 'cosine', steps: 2, warmup: 9 })),
    () => lm.loadAdapter(folderOf('none')),
    () => lm.saveAdapter(),
    () => lm.mergeAdapter(),
    () => stepsOf(lm.train(counting, { resume: true, optimizer: 'muon' })),
    aborted,
  ]) {
    await assert.rejects(fails());
    await lm.removeAdapter(); // there is none
    steps = [...steps, ...(await stepsOf(lm.train(counting, { resume: true, steps: steps.length + 1 })))];
  }
  assert.deepEqual(steps, expected);
  await assert.rejects(stepsOf(lm.train([])), code('invalid-argument'));
  const files = await lm.save(undefined, { optimizer: true });
  assert.ok(files.some(({ name }) => name === 'optimizer.safetensors'));
  for (const model of [lm, reference]) await model.dispose();
});

/** Begins a training whose first step has 400 micro-batches, and aborts it after some turns of the event loop. */
async function abortedInFirstStep(lm, turns, options) {
  const abort = new AbortController();
  const many = Array.from({ length: 400 }, () => counting[0]);
  const training = lm.train(many, { batchTokens: 4000, microBatchTokens: 5, steps: 9, signal: abort.signal, ...options });
  const ended = assert.rejects(training.next(), { name: 'AbortError' });
  for (let turn = 0; turn < turns; ++turn) await new Promise((resolve) => setImmediate(resolve));
  abort.abort();
  await ended;
}

test('an abort in the first step of a new training leaves the last to go on with', async () => {
  for (const [save, prepare] of [
    ['save', () => {}],
    ['saveAdapter', (lm) => lm.addAdapter({ targetModules: 'all-linear', r: 2 })],
  ]) {
    const [lm, reference] = [await make(), await make()];
    for (const model of [lm, reference]) await prepare(model);
    const options = { batchTokens: 64, learningRate: 1e-2 };
    const expected = await stepsOf(reference.train(counting, { ...options, steps: 8 }));
    const steps = await stepsOf(lm.train(counting, { ...options, steps: 2 }));
    for (const turns of [0, 10, 40, 80, 120]) {
      await abortedInFirstStep(lm, turns);
      steps.push(...(await stepsOf(lm.train(counting, { resume: true, steps: steps.length + 1 }))));
    }
    // Twice, and what is saved after it is the last one's.
    for (const turns of [40, 80]) await abortedInFirstStep(lm, turns);
    const files = await lm[save](undefined, { optimizer: true });
    const state = files.find(({ name }) => name === 'trainer_state.json');
    assert.equal(JSON.parse(new TextDecoder().decode(state.bytes)).step, 7);
    steps.push(...(await stepsOf(lm.train(counting, { resume: true, steps: 8 }))));
    assert.deepEqual(steps, expected);
    for (const model of [lm, reference]) await model.dispose();
  }
});

test('a first training that is aborted in its first step can be gone on with', async () => {
  const [lm, reference] = [await make(), await make()];
  await abortedInFirstStep(lm, 80);
  const many = Array.from({ length: 400 }, () => counting[0]);
  const [resumed] = await stepsOf(lm.train(many, { resume: true }), 1);
  const options = { batchTokens: 4000, microBatchTokens: 5, steps: 9 };
  assert.deepEqual(resumed, (await stepsOf(reference.train(many, options), 1))[0]);
  for (const model of [lm, reference]) await model.dispose();
});

test('an adapter is saved between steps, and goes on learning after it', async () => {
  const [lm, reference] = [await make(), await make()];
  for (const model of [lm, reference]) await model.addAdapter({ targetModules: ['c_attn'], r: 2 });
  const steps = [];
  for await (const { step, loss } of lm.train(counting, { steps: 3, batchTokens: 64 })) {
    steps.push([step, loss]);
    assert.equal((await lm.saveAdapter()).length, 2);
  }
  await lm.saveAdapter();
  for await (const { step, loss } of lm.train(counting, { resume: true, steps: 6 })) steps.push([step, loss]);
  const expected = await stepsOf(reference.train(counting, { steps: 6, batchTokens: 64 }));
  assert.deepEqual(
    steps,
    expected.map(({ step, loss }) => [step, loss]),
  );
  for (const model of [lm, reference]) await model.dispose();
});

test('epochs without number: the first step comes at once, and where a schedule needs their steps an abort ends the count', async () => {
  const lm = await make({ worker: true });
  assert.equal((await stepsOf(lm.train(counting, { epochs: 1e9, signal: AbortSignal.timeout(5000) }), 1)).length, 1);
  const abort = new AbortController();
  const counted = stepsOf(lm.train(counting, { epochs: 1e9, schedule: 'cosine', signal: abort.signal }));
  const rejected = assert.rejects(counted, { name: 'AbortError' });
  const late = setTimeout(() => abort.abort(new Error('another call waits for the count')), 20_000);
  await new Promise((resolve) => setTimeout(resolve, 50));
  await lm.generate({ inputIds: [1] }, { maxNewTokens: 1 }).result;
  clearTimeout(late);
  abort.abort();
  await rejected;
  // The last step of epochs is known to be the last, whatever the schedule.
  for (const schedule of ['constant', 'cosine']) {
    const steps = await stepsOf(lm.train(counting, { epochs: 2, batchTokens: 128, evalFraction: 0.1, evalEvery: 1000, schedule }));
    assert.deepEqual(
      steps.map(({ evalLoss }) => evalLoss !== undefined),
      steps.map((_, i) => i === steps.length - 1),
    );
  }
  await lm.dispose();
});

for (const worker of [true, false]) {
  describe(worker ? 'ending, in a worker' : 'ending, in process', () => {
    test('an abort while evaluation data are waited for', async () => {
      const lm = await make({ worker });
      let closed = 0;
      const waiting = {
        [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}), return: async () => ({ done: ++closed > 0 }) }),
      };
      const training = lm.train(counting, { steps: 3, evalData: waiting, signal: AbortSignal.timeout(30) });
      const late = setTimeout(() => lm.dispose(), 5000);
      await assert.rejects(training.next(), { name: 'TimeoutError' });
      clearTimeout(late);
      assert.equal(closed, 1);
      assert.equal((await stepsOf(lm.train(counting, { steps: 2 }))).length, 2);
      await lm.dispose();
    });

    test('an abort rejects with its reason and leaves a model that goes on as if nothing had been', async () => {
      const [a, b] = [await make({ worker }), await make({ worker })];
      const options = { steps: 6, batchTokens: 600, microBatchTokens: 16, seed: 5 };
      const abort = new AbortController();
      const reason = new Error('enough');
      const training = a.train(counting, { ...options, signal: abort.signal });
      await training.next();
      await training.next();
      const third = training.next();
      setTimeout(() => abort.abort(reason), 1);
      await assert.rejects(third, (error) => error === reason);
      await assert.rejects(a.train(counting, { signal: AbortSignal.abort(reason) }).next(), (error) => error === reason);
      assert.equal((await a.generate({ inputIds: [1] }, { maxNewTokens: 2 }).result).tokenIds.length, 2);
      const rest = await stepsOf(a.train(counting, { resume: true }));
      assert.ok(rest.length >= 3, `${rest.length} steps were left`);
      const whole = await stepsOf(b.train(counting, options));
      assert.deepEqual(rest, whole.slice(6 - rest.length));
      assert.deepEqual(await weightsOf(a), await weightsOf(b));
      await a.dispose();
      await b.dispose();
    });

    test('an abort while data are waited for; dispose', async () => {
      const lm = await make({ worker });
      const abort = new AbortController();
      const waiting = lm.train(
        { [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}) }) },
        { steps: 1, signal: abort.signal },
      );
      setTimeout(() => abort.abort(), 20);
      await assert.rejects(waiting.next(), { name: 'AbortError' });
      const training = lm.train(counting, { steps: 1000 });
      await training.next();
      const next = training.next();
      const disposed = lm.dispose();
      await assert.rejects(next, code('disposed'));
      await disposed;
      await assert.rejects(lm.train(counting).next(), code('disposed'));
    });
  });
}

test('a loss that explodes ends the training and says where; the model stays usable', async () => {
  const lm = await make();
  await assert.rejects(
    stepsOf(lm.train(counting, { steps: 200, learningRate: 1e6, maxGradNorm: 0 })),
    code('diverged', /step \d+: expected .*(gradient|first).*(wte|wpe|h\.0|ln_f)/),
  );
  assert.equal((await lm.parameters()).length > 0, true);
  await lm.dispose();
});

test('a page’s tasks run while it learns in process', async () => {
  const lm = await load(random(3), { trainable: true, worker: false });
  const gaps = [];
  let last = performance.now();
  const timer = setInterval(() => {
    gaps.push(performance.now() - last);
    last = performance.now();
  }, 1);
  const text = 'the quick brown fox '.repeat(40);
  await stepsOf(lm.train(text, { steps: 6, batchTokens: 512, microBatchTokens: 64, maxLength: 64 }));
  clearInterval(timer);
  assert.ok(gaps.length > 20, `${gaps.length} turns`);
  await lm.dispose();
  // A long text is encoded in steps.
  const { tokenizer } = await trainTokenizer([text], { type: 'char' });
  const chars = await create({ ...config, vocab_size: tokenizer.vocabSize }, { tokenizer, worker: false });
  const abort = new AbortController();
  let turns = 0;
  const count = setInterval(() => ++turns === 5 && abort.abort(), 1);
  const training = chars.train(text.repeat(1000), { steps: 1, signal: abort.signal });
  await assert.rejects(training.next(), { name: 'AbortError' });
  clearInterval(count);
  assert.ok(turns < 15, `${turns} turns until the abort`);
  await chars.dispose();
});
