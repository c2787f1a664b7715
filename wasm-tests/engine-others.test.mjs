// What is not one folder a family: score, llama2.c files, the original encoder-decoder, gradients.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { load } from '../dist/node.js';
import { close } from './support/compare.mjs';
import { folderOf, readJson, readTensors } from './support/fixtures.mjs';

test('score gives Python’s log-probabilities and perplexity', async () => {
  for (const { model, inputIds, logprobs, perplexity } of readJson('score', 'expected.json').cases) {
    const lm = await load(folderOf(model), { worker: false });
    const score = await lm.score({ inputIds });
    assert.ok(Number.isNaN(score.logprobs[0]));
    for (let i = 1; i < inputIds.length; ++i) {
      assert.ok(Math.abs(score.logprobs[i] - logprobs[i]) <= 1e-4 * Math.max(1, Math.abs(logprobs[i])), `${model}, token ${i}`);
    }
    assert.ok(Math.abs(score.perplexity / perplexity - 1) < 1e-4, model);
    await lm.dispose();
  }
});

test('a llama2.c file with its tokenizer', async () => {
  const { cases } = readJson('llama2c', 'expected.json');
  const tensors = readTensors(join(folderOf('llama2c'), 'expected.safetensors'));
  const lm = await load(folderOf('llama2c'));
  assert.equal(lm.info().format, 'llama2.c');
  for (const [i, { text, ids, greedy, greedyText }] of cases.entries()) {
    assert.deepEqual(await lm.tokenize(text), ids);
    const [{ logits }] = await lm.forward({ inputIds: [ids] });
    close(logits, tensors[`case.${i}.logits`], `case ${i}`);
    const stream = lm.generate(text, { maxNewTokens: greedy.length, doSample: false });
    let joined = '';
    for await (const piece of stream) joined += piece.text;
    const result = await stream.result;
    assert.deepEqual(result.tokenIds, greedy);
    assert.equal(joined, result.text);
    assert.equal(result.text, greedyText);
  }
  await lm.dispose();
});

test('the original encoder-decoder: all states, all attentions, greedy decoding', async () => {
  const { cases, maxNewTokens } = readJson('transformer', 'expected.json');
  const tensors = readTensors(join(folderOf('transformer'), 'expected.safetensors'));
  const lm = await load(folderOf('transformer'));
  assert.equal(lm.info().encoderDecoder, true);
  for (const [i, { inputIds, decoderInputIds, greedy, finishReason }] of cases.entries()) {
    const [result] = await lm.forward(
      { inputIds: [inputIds], decoderInputIds: [decoderInputIds] },
      { hiddenStates: true, attentions: true },
    );
    close(result.logits, tensors[`case.${i}.logits`], `case ${i}, logits`);
    for (const [field, name] of [
      ['encoderHiddenStates', 'encoder_hidden'],
      ['encoderAttentions', 'encoder_attention'],
      ['decoderHiddenStates', 'decoder_hidden'],
      ['decoderAttentions', 'decoder_attention'],
      ['crossAttentions', 'cross_attention'],
    ]) {
      const wanted = Object.keys(tensors).filter((key) => key.startsWith(`case.${i}.${name}.`)).length;
      assert.equal(result[field].length, wanted, field);
      for (const [l, tensor] of result[field].entries()) close(tensor, tensors[`case.${i}.${name}.${l}`], `case ${i}, ${field} ${l}`);
    }
    const generated = await lm.generate({ inputIds }, { maxNewTokens }).result;
    assert.deepEqual(generated.tokenIds, greedy);
    assert.equal(generated.finishReason, finishReason);
  }
  await lm.dispose();
});

describe('gradients', () => {
  const expected = readJson('gradients', 'expected.json');
  for (const [name, { inputIds, labels = inputIds, decoderInputIds, loss }] of Object.entries(expected)) {
    test(name, async () => {
      const tensors = readTensors(join(folderOf('gradients'), `${name}.safetensors`));
      const lm = await load(folderOf(name), { trainable: true, worker: false });
      const found = await lm.gradients({ inputIds, labels, ...(decoderInputIds && { decoderInputIds }) });
      assert.ok(Math.abs(found.loss - loss) < 1e-5 * loss, `${found.loss} for ${loss}`);
      const names = Object.keys(found.gradients);
      assert.ok(names.length > 0);
      for (const [key, wanted] of Object.entries(tensors)) {
        const match = names.find((other) => other === key || other.endsWith(`.${key}`) || key.endsWith(`.${other}`));
        assert.ok(match, key);
        close(found.gradients[match], wanted, key);
      }
      await lm.dispose();
    });
  }

  test('a model that was not loaded for it refuses', async () => {
    const lm = await load(folderOf('gpt2-minimal'), { worker: false });
    await assert.rejects(lm.gradients({ inputIds: [[1, 2]], labels: [[1, 2]] }), (error) =>
      ['unsupported', 'invalid-argument'].includes(error.code),
    );
    await lm.dispose();
  });
});
