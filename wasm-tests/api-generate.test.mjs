// generate and chat: pieces, results, options, ends.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { load } from '../dist/node.js';
import { code } from './support/errors.mjs';
import { bos, chain, eos, llama, numbers, random, recite, special } from './support/tiny.mjs';

async function collect(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

async function withModel(files, run, options) {
  const lm = await load(files, options);
  try {
    return await run(lm);
  } finally {
    await lm.dispose();
  }
}

for (const worker of [true, false]) {
  describe(worker ? 'in a worker' : 'in process', () => {
    let lm;
    before(async () => {
      lm = await load(random(1), { worker });
    });
    after(() => lm.dispose());

    test('pieces, one a token, make up the result', async () => {
      const stream = lm.generate('Once', { maxNewTokens: 12, topP: 0.9, seed: 7, minNewTokens: 12 });
      const pieces = await collect(stream);
      const result = await stream.result;
      assert.deepEqual(
        pieces.map(({ tokenId }) => tokenId),
        result.tokenIds,
      );
      assert.deepEqual(
        pieces.map(({ index }) => index),
        [...result.tokenIds.keys()],
      );
      assert.ok(pieces.every(({ sequence }) => sequence === 0));
      assert.equal(pieces.map(({ text }) => text).join(''), result.text);
      assert.equal(result.text, await lm.decode(result.tokenIds));
      assert.equal(result.finishReason, 'length');
      assert.equal(result.promptTokens, 4);
      assert.equal(result.seed, 7);
      const sum = pieces.reduce((total, { logprob }) => total + logprob, 0);
      assert.ok(Math.abs(result.score - sum) < 1e-6);
    });

    test('runs without being read, and an unread failure is nobody’s unhandled rejection', async () => {
      const { result } = lm.generate('a', { maxNewTokens: 3 });
      assert.equal((await result).tokenIds.length, 3);
      lm.generate({ inputIds: [1e6] });
      await assert.rejects(lm.generate({ inputIds: [1e6] }).result, code('invalid-argument', /1000000/));
      await assert.rejects(collect(lm.generate({ inputIds: [1e6] })), code('invalid-argument'));
    });

    test('leaving the loop cancels', async () => {
      const stream = lm.generate('a', { maxNewTokens: 400, minNewTokens: 400 });
      for await (const { index } of stream) if (index === 2) break;
      const { finishReason, tokenIds } = await stream.result;
      assert.equal(finishReason, 'aborted');
      assert.ok(tokenIds.length >= 3 && tokenIds.length < 400);
    });

    test('an abort ends the iteration within a token or two', async () => {
      const controller = new AbortController();
      const stream = lm.generate('a', { maxNewTokens: 400, minNewTokens: 400, signal: controller.signal });
      const pieces = [];
      for await (const piece of stream) {
        pieces.push(piece);
        if (piece.index === 4) controller.abort();
      }
      const { finishReason, tokenIds, text } = await stream.result;
      assert.equal(finishReason, 'aborted');
      assert.deepEqual(
        pieces.map(({ tokenId }) => tokenId),
        tokenIds,
      );
      assert.equal(pieces.map((piece) => piece.text).join(''), text);
      const before = await lm.generate('a', { signal: AbortSignal.abort() }).result;
      assert.deepEqual([before.finishReason, before.tokenIds], ['aborted', []]);
    });

    test('calls are queued in order, and an aborted one leaves the queue', async () => {
      const ended = [];
      const note = (name) => (result) => ended.push(name) && result;
      const controller = new AbortController();
      const first = lm.generate('a', { maxNewTokens: 60, minNewTokens: 60 }).result.then(note('first'));
      const second = lm.generate('b', { signal: controller.signal }).result.then(note('second'));
      const third = lm.score('abc').then(note('third'));
      const fourth = lm.forward({ inputIds: [[1, 2]] }).then(note('fourth'));
      const refused = assert.rejects(lm.forward({ inputIds: [[1]] }, { signal: controller.signal }), (reason) => reason === 'enough');
      controller.abort('enough');
      assert.equal((await second).finishReason, 'aborted');
      await refused;
      assert.equal((await first).finishReason, 'length');
      await Promise.all([third, fourth]);
      assert.deepEqual(ended, ['second', 'first', 'third', 'fourth']);
    });

    test('twenty calls at once give what each gives alone', async () => {
      const prompts = Array.from({ length: 20 }, (_, i) => ({ inputIds: [i, i + 1, 3 * i] }));
      const options = { maxNewTokens: 6, temperature: 1.5, seed: 3 };
      const together = await Promise.all(prompts.map((prompt) => lm.generate(prompt, options).result));
      for (const [i, prompt] of prompts.entries()) assert.deepEqual(together[i], await lm.generate(prompt, options).result);
    });

    test('the cache a caller holds changes nothing but the time', async () => {
      const cache = await lm.createCache();
      const text = 'Some words to begin with';
      const plain = await lm.generate(text, { maxNewTokens: 8, doSample: false }).result;
      const first = await lm.generate(text, { maxNewTokens: 8, doSample: false, cache }).result;
      assert.deepEqual(first.tokenIds, plain.tokenIds);
      const held = await cache.length();
      assert.equal(held, text.length + 7);
      const copy = await cache.clone();
      const longer = { inputIds: [...(await lm.tokenize(text)), ...plain.tokenIds, 65] };
      const wanted = await lm.generate(longer, { maxNewTokens: 8, doSample: false }).result;
      assert.deepEqual((await lm.generate(longer, { maxNewTokens: 8, doSample: false, cache }).result).tokenIds, wanted.tokenIds);
      // Another text with the same beginning, an unrelated one, and the same one again.
      for (const prompt of ['Some words or other', 'zzz', text]) {
        const alone = await lm.generate(prompt, { maxNewTokens: 8, doSample: false }).result;
        assert.deepEqual((await lm.generate(prompt, { maxNewTokens: 8, doSample: false, cache: copy }).result).tokenIds, alone.tokenIds);
      }
      await copy.truncate(3);
      assert.equal(await copy.length(), 3);
      await assert.rejects(copy.truncate(4), code('invalid-argument', /from 0 to 3, got 4/));
      await copy.dispose();
      await copy.dispose();
      await assert.rejects(copy.length(), code('disposed'));
      await assert.rejects(lm.generate('a', { cache: copy }).result, code('disposed'));
      assert.throws(() => lm.generate(['a', 'b'], { cache }), code('invalid-argument'));
      assert.throws(() => lm.generate('a', { cache: {} }), code('invalid-argument'));
      await cache.dispose();
    });
  });
}

describe('options', () => {
  let lm;
  before(async () => {
    lm = await load(random(2), { worker: false });
  });
  after(() => lm.dispose());

  test('unknown and ill-typed ones throw at once, naming the nearest', () => {
    assert.throws(() => lm.generate('a', { max_new_tokens: 3 }), code('invalid-argument', /'max_new_tokens'.*'maxNewTokens'/));
    assert.throws(() => lm.generate('a', { topp: 0.5 }), code('invalid-argument', /'topp'.*'topP'/));
    assert.throws(() => lm.generate('a', { constructor: 1 }), code('invalid-argument', /constructor/));
    assert.throws(() => lm.generate('a', { temperature: 0 }), code('invalid-argument', /temperature: expected a number > 0/));
    assert.throws(() => lm.generate('a', { topP: 1.5 }), code('invalid-argument', /topP: expected a number from 0 to 1, got 1.5/));
    assert.throws(() => lm.generate('a', { maxNewTokens: 0 }), code('invalid-argument', /maxNewTokens/));
    assert.throws(() => lm.generate('a', { maxNewTokens: 2.5 }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', { maxNewTokens: '3' }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', { temperature: Number.NaN }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', { badWordsIds: [[]] }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', { stopStrings: [''] }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', { seed: -1 }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', { signal: {} }), code('invalid-argument'));
    assert.throws(() => lm.generate('a', 5), code('invalid-argument'));
    assert.throws(() => lm.generate(5), code('invalid-argument', /prompt: expected a string/));
    assert.throws(() => lm.generate([]), code('invalid-argument'));
    assert.throws(() => lm.generate({ inputIds: [1.5] }), code('invalid-argument', /got 1.5/));
    assert.throws(() => lm.generate({ inputIds: [-1] }), code('invalid-argument'));
    assert.throws(() => lm.generate({ inputIds: [1], ids: [2] }), code('invalid-argument'));
  });

  test('what is known and not built is unsupported, unless it asks for nothing', async () => {
    for (const options of [
      { numBeamGroups: 2 },
      { penaltyAlpha: 0.6 },
      { diversityPenalty: 0.5 },
      { guidanceScale: 1.5 },
      { watermarkingConfig: {} },
      { outputAttentions: true },
      { forceWordsIds: [[1]] },
      { useCache: false },
      { tokenHealing: true },
    ]) {
      assert.throws(() => lm.generate('a', options), code('unsupported', new RegExp(Object.keys(options)[0])));
    }
    const inert = { numBeams: 1, lengthPenalty: 1, earlyStopping: false, useCache: true, outputScores: false, diversityPenalty: 0 };
    assert.equal((await lm.generate('a', { ...inert, maxNewTokens: 2, topK: undefined }).result).tokenIds.length, 2);
  });

  test('a sampling option turns sampling on; against doSample: false it throws', async () => {
    const greedy = await lm.generate('ab', { maxNewTokens: 8, minNewTokens: 8 }).result;
    const sampled = await Promise.all(
      [1, 2, 3].map((seed) => lm.generate('ab', { maxNewTokens: 8, minNewTokens: 8, temperature: 2, seed }).result),
    );
    assert.ok(sampled.some(({ tokenIds }) => String(tokenIds) !== String(greedy.tokenIds)));
    assert.throws(() => lm.generate('a', { doSample: false, topP: 0.5 }), code('invalid-argument', /topP/));
    // A seed alone asks for nothing.
    assert.deepEqual((await lm.generate('ab', { maxNewTokens: 8, minNewTokens: 8, seed: 9 }).result).tokenIds, greedy.tokenIds);
    assert.throws(() => lm.generate('a', { numReturnSequences: 2 }), code('invalid-argument', /numReturnSequences/));
  });

  test('a seed gives the same tokens again; without one the seed is reported', async () => {
    const options = { maxNewTokens: 16, minNewTokens: 16, temperature: 1.5 };
    const drawn = await lm.generate('ab', options).result;
    assert.ok(Number.isInteger(drawn.seed));
    assert.deepEqual(await lm.generate('ab', { ...options, seed: drawn.seed }).result, drawn);
    const seeds = await Promise.all([1, 2, 3, 4].map((seed) => lm.generate('ab', { ...options, seed }).result));
    assert.ok(new Set(seeds.map(({ tokenIds }) => String(tokenIds))).size === 4);
    const batch = await lm.generate(['zz', 'ab'], { ...options, seed: 5 }).result;
    assert.deepEqual(batch[1].tokenIds.length, 16);
  });

  test('return sequences and arrays of prompts are numbered prompt by prompt', async () => {
    const stream = lm.generate(['ab', 'c'], { maxNewTokens: 5, minNewTokens: 5, numReturnSequences: 3, temperature: 1.5, seed: 1 });
    const pieces = await collect(stream);
    const results = await stream.result;
    assert.equal(results.length, 6);
    for (const [sequence, { tokenIds, text, promptTokens }] of results.entries()) {
      const own = pieces.filter((piece) => piece.sequence === sequence);
      assert.deepEqual(
        own.map(({ tokenId }) => tokenId),
        tokenIds,
      );
      assert.equal(own.map((piece) => piece.text).join(''), text);
      assert.equal(promptTokens, sequence < 3 ? 2 : 1);
    }
    assert.ok(Array.isArray(await lm.generate(['ab'], { maxNewTokens: 1 }).result));
    assert.ok(Array.isArray(await lm.generate({ inputIds: [[1, 2]] }, { maxNewTokens: 1 }).result));
  });

  test('logprobs reports the chosen token and the best', async () => {
    const stream = lm.generate('ab', { maxNewTokens: 4, minNewTokens: 4, logprobs: 3, doSample: false });
    const pieces = await collect(stream);
    const { logprobs } = await stream.result;
    for (const [i, { tokenId, logprob, top }] of pieces.entries()) {
      assert.equal(top.length, 3);
      assert.deepEqual(top[0], { tokenId, logprob });
      assert.ok(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
      assert.deepEqual(logprobs[i], { tokenId, logprob, top });
    }
    const [plain] = await collect(lm.generate('ab', { maxNewTokens: 1 }));
    assert.ok(!('top' in plain));
    assert.ok(!('logprobs' in (await lm.generate('ab', { maxNewTokens: 1 }).result)));
  });

  test('without any length 256 tokens; maxLength counts the prompt', async () => {
    assert.equal((await lm.generate('ab', { eosTokenId: null }).result).tokenIds.length, 256);
    assert.equal((await lm.generate('ab', { eosTokenId: null, maxLength: 10 }).result).tokenIds.length, 8);
    assert.equal((await lm.generate('ab', { eosTokenId: null, maxLength: 10, maxNewTokens: 3 }).result).tokenIds.length, 3);
    await assert.rejects(lm.generate('abcd', { maxLength: 4 }).result, code('invalid-argument', /maxLength/));
  });

  test('maxTime ends with time', async () => {
    const { finishReason, tokenIds } = await lm.generate('ab', { maxTime: 0, maxNewTokens: 400, eosTokenId: null }).result;
    assert.equal(finishReason, 'time');
    assert.equal(tokenIds.length, 1, 'the current pass is finished, as in Python');
    const later = await lm.generate('ab', { maxTime: 0.05, maxNewTokens: 1e6, eosTokenId: null }).result;
    assert.equal(later.finishReason, 'time');
    assert.ok(later.tokenIds.length > 1);
  });

  test('an empty prompt starts from the start token', async () => {
    const empty = await lm.generate('', { maxNewTokens: 4, doSample: false }).result;
    assert.equal(empty.promptTokens, 1);
    assert.deepEqual(empty.tokenIds, (await lm.generate({ inputIds: [bos] }, { maxNewTokens: 4, doSample: false }).result).tokenIds);
  });
});

describe('generation_config.json', () => {
  test('supplies the defaults, sampling included; null switches a value off', () =>
    withModel(
      random(3, { generationConfig: { do_sample: true, temperature: 1.7, top_k: 5, max_new_tokens: 9, eos_token_id: null } }),
      async (lm) => {
        const a = await lm.generate('ab', { seed: 1 }).result;
        const b = await lm.generate('ab', { seed: 1, doSample: true, temperature: 1.7, topK: 5, maxNewTokens: 9 }).result;
        assert.deepEqual(a, b);
        assert.equal(a.tokenIds.length, 9);
        const others = await Promise.all([2, 3, 4].map((seed) => lm.generate('ab', { seed }).result));
        assert.ok(others.some(({ tokenIds }) => String(tokenIds) !== String(a.tokenIds)));
        const greedy = await lm.generate('ab', { doSample: false, seed: 1 }).result;
        assert.deepEqual(greedy.tokenIds, (await lm.generate('ab', { doSample: false, seed: 2 }).result).tokenIds);
        assert.equal((await lm.generate('ab', { maxLength: 6 }).result).tokenIds.length, 9, 'maxNewTokens wins, as in Python');
        assert.equal((await lm.generate('ab', { maxLength: 6, maxNewTokens: null }).result).tokenIds.length, 4);
        assert.equal((await lm.generate('ab', { maxNewTokens: null }).result).tokenIds.length, 256);
      },
      { worker: false },
    ));

  test('asking for groups of beams is an error until they are overridden', () =>
    withModel(
      random(3, { generationConfig: { num_beams: 4, num_beam_groups: 2 } }),
      async (lm) => {
        assert.throws(() => lm.generate('ab'), code('unsupported', /numBeamGroups: 2 \(from generation_config.json\)/));
        assert.equal((await lm.generate('ab', { numBeamGroups: 1, maxNewTokens: 2 }).result).tokenIds.length, 2);
      },
      { worker: false },
    ));

  test('end-of-sequence tokens may be a list', () =>
    withModel(
      chain((token) => (token + 1) % 250, { generationConfig: { eos_token_id: [eos, 70] } }),
      async (lm) => {
        const { tokenIds, finishReason, text } = await lm.generate('A').result;
        assert.deepEqual(tokenIds, [66, 67, 68, 69, 70]);
        assert.deepEqual([finishReason, text], ['stop', 'BCDEF']);
      },
      { worker: false },
    ));
});

describe('text', () => {
  test('is cut only where UTF-8 is complete', () =>
    withModel(
      recite('A😀b你'),
      async (lm) => {
        const stream = lm.generate('A');
        const pieces = await collect(stream);
        assert.deepEqual(
          pieces.map(({ text }) => text),
          ['', '', '', '😀', 'b', '', '', '你', ''],
        );
        const { text, finishReason, tokenIds } = await stream.result;
        assert.deepEqual([text, finishReason, tokenIds.at(-1)], ['😀b你', 'stop', eos]);
      },
      { worker: false },
    ));

  test('what is cut off by the length limit comes with the last piece', () =>
    withModel(
      recite('A😀'),
      async (lm) => {
        const stream = lm.generate('A', { maxNewTokens: 3 });
        const pieces = await collect(stream);
        const { text, tokenIds } = await stream.result;
        assert.equal(pieces.map((piece) => piece.text).join(''), text);
        assert.equal(text, await lm.decode(tokenIds));
        assert.equal(text, '\ufffd');
      },
      { worker: false },
    ));

  test('special tokens are left out unless asked for', () =>
    withModel(
      chain((token) => ({ 65: special, [special]: 66, 66: eos })[token]),
      async (lm) => {
        assert.equal((await lm.generate('A').result).text, 'B');
        assert.equal((await lm.generate('A', { skipSpecialTokens: false }).result).text, '<tool>B<eos>');
        assert.equal((await lm.generate('A', { stopStrings: '<tool>' }).result).finishReason, 'stop');
        assert.deepEqual((await lm.generate('A', { stopStrings: '<tool>' }).result).tokenIds, [special]);
      },
      { worker: false },
    ));

  test('stop strings are cut, and what may become one is held back', () =>
    withModel(
      recite('ABCDEFGHIJ'),
      async (lm) => {
        const stream = lm.generate('A', { stopStrings: ['EFX', 'GHI'] });
        const pieces = await collect(stream);
        assert.deepEqual(
          pieces.map(({ text }) => text),
          ['B', 'C', 'D', '', '', 'EF', '', ''],
        );
        const { text, finishReason, tokenIds } = await stream.result;
        assert.deepEqual([text, finishReason, tokenIds.length], ['BCDEF', 'stop', 8]);
        const held = await lm.generate('A', { stopStrings: 'DEFX', maxNewTokens: 4 }).result;
        assert.deepEqual([held.text, held.finishReason], ['BCDE', 'length']);
        // Inside one piece, at the very beginning, and never.
        assert.equal((await lm.generate('A', { stopStrings: ['B'] }).result).text, '');
        assert.equal((await lm.generate('A', { stopStrings: ['Z'] }).result).text, 'BCDEFGHIJ');
      },
      { worker: false },
    ));

  test('a stop string made of parts of characters is found', () =>
    withModel(
      recite('A你b'),
      async (lm) => {
        assert.deepEqual((({ text, finishReason }) => [text, finishReason])(await lm.generate('A', { stopStrings: '你' }).result), [
          '',
          'stop',
        ]);
      },
      { worker: false },
    ));

  test('one sequence of a batch stops, the others go on', () =>
    withModel(
      recite('ABCDEFGH'),
      async (lm) => {
        const [a, b] = await lm.generate(['A', 'D'], { stopStrings: 'C' }).result;
        assert.deepEqual([a.text, a.finishReason], ['B', 'stop']);
        assert.deepEqual([b.text, b.finishReason], ['EFGH', 'stop']);
      },
      { worker: false },
    ));

  test('words like constructor are words', () =>
    withModel(
      random(4),
      async (lm) => {
        for (const word of ['constructor', '__proto__', 'toString', 'hasOwnProperty']) {
          assert.equal(await lm.decode(await lm.tokenize(word)), word);
          assert.equal((await lm.generate(word, { maxNewTokens: 1 }).result).promptTokens, word.length);
        }
        assert.deepEqual(await lm.tokenize(['a', 'bc']), [[97], [98, 99]]);
        assert.deepEqual(await lm.decode([[97], [98, 99]]), ['a', 'bc']);
      },
      { worker: false },
    ));
});

describe('context', () => {
  const draw = numbers(5);
  const gpt2 = () => {
    // GPT-2's names and shapes; its learned positions are a wall.
    const [d, v, n] = [8, 264, 16];
    const weights = {};
    const put = (name, shape, fill) => {
      const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
      for (let i = 0; i < data.length; ++i) data[i] = fill ?? draw() * 0.3;
      weights[name] = { shape, data };
    };
    put('wte.weight', [v, d]);
    put('wpe.weight', [n, d]);
    for (const name of ['h.0.ln_1', 'h.0.ln_2', 'ln_f']) {
      put(`${name}.weight`, [d], 1);
      put(`${name}.bias`, [d], 0);
    }
    for (const [name, from, to] of [
      ['attn.c_attn', d, 3 * d],
      ['attn.c_proj', d, d],
      ['mlp.c_fc', d, 4 * d],
      ['mlp.c_proj', 4 * d, d],
    ]) {
      put(`h.0.${name}.weight`, [from, to]);
      put(`h.0.${name}.bias`, [to], 0);
    }
    return weights;
  };
  const files = async () => {
    const { safetensors } = await import('./support/tiny.mjs');
    const config = {
      model_type: 'gpt2',
      n_embd: 8,
      n_head: 2,
      n_layer: 1,
      n_positions: 16,
      vocab_size: 264,
      layer_norm_epsilon: 1e-5,
      activation_function: 'gelu_new',
      eos_token_id: eos,
      bos_token_id: bos,
    };
    return { 'config.json': new TextEncoder().encode(JSON.stringify(config)), 'model.safetensors': safetensors(gpt2()) };
  };
  const ids = (length) => ({ inputIds: Array.from({ length }, (_, i) => i) });

  test('a learned position table is a wall', async () =>
    withModel(
      await files(),
      async (lm) => {
        assert.equal(lm.info().contextIsWall, true);
        const options = { eosTokenId: null, maxNewTokens: 100 };
        const { tokenIds, finishReason } = await lm.generate(ids(10), options).result;
        // The last token generated is never fed, so that one more fits than the table has rows.
        assert.deepEqual([tokenIds.length, finishReason], [7, 'length']);
        assert.equal((await lm.generate(ids(16), options).result).tokenIds.length, 1);
        await assert.rejects(lm.generate(ids(17), options).result, code('invalid-argument', /at most 16 tokens.*got 17/));
        const cut = await lm.generate(ids(40), { ...options, truncation: true }).result;
        assert.equal(cut.promptTokens, 8);
        assert.match(cut.notes[0], /cut from 40 to 8/);
        const left = await lm.generate({ inputIds: ids(40).inputIds.slice(-8) }, options).result;
        assert.deepEqual(cut.tokenIds, left.tokenIds);
        const right = await lm.generate(ids(8), options).result;
        assert.deepEqual((await lm.generate(ids(40), { ...options, truncation: 'right' }).result).tokenIds, right.tokenIds);
        const room = await lm.generate(ids(40), { eosTokenId: null, maxNewTokens: 4, truncation: 'left' }).result;
        assert.deepEqual([room.promptTokens, room.tokenIds.length], [12, 4]);
        await assert.rejects(lm.forward({ inputIds: [ids(17).inputIds] }), code('invalid-argument'));
      },
      { worker: false },
    ));

  test('rotary positions go on past the configured length, and the result says so', () =>
    withModel(
      random(6, { config: { max_position_embeddings: 16 } }),
      async (lm) => {
        assert.equal(lm.info().contextIsWall, false);
        assert.equal(lm.info().contextLength, 16);
        const far = await lm.generate(ids(10), { eosTokenId: null, maxNewTokens: 20 }).result;
        assert.equal(far.tokenIds.length, 20);
        assert.match(far.notes[0], /30 tokens are more than the 16/);
        assert.equal((await lm.generate(ids(10), { eosTokenId: null, maxNewTokens: 6 }).result).notes, undefined);
        assert.equal((await lm.generate(ids(20), { eosTokenId: null, maxNewTokens: 4, truncation: true }).result).promptTokens, 12);
      },
      { worker: false },
    ));
});

describe('chat', () => {
  const chatTemplate =
    '{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}{{ extra }}';
  test('goes through the model’s template', () =>
    withModel(
      random(7, { chatTemplate }),
      async (lm) => {
        assert.equal(lm.tokenizer.hasChatTemplate, true);
        const messages = [
          { role: 'system', content: 'be' },
          { role: 'user', content: 'hi' },
        ];
        assert.equal(await lm.applyChatTemplate(messages), '[system]be[user]hi[a]');
        assert.equal(
          await lm.applyChatTemplate(messages, { addGenerationPrompt: false, templateVariables: { extra: '!' } }),
          '[system]be[user]hi!',
        );
        assert.equal(await lm.applyChatTemplate('hi', { chatTemplate: '{{ messages[0].content }}' }), 'hi');
        const a = await lm.chat(messages, { maxNewTokens: 5, seed: 1, temperature: 1 }).result;
        const b = await lm.generate('[system]be[user]hi[a]', { maxNewTokens: 5, seed: 1, temperature: 1, addSpecialTokens: false }).result;
        assert.deepEqual(a, b);
        assert.throws(() => lm.chat([]), code('invalid-argument'));
        assert.throws(() => lm.chat([{ content: 'x' }]), code('invalid-argument'));
        assert.throws(() => lm.chat('hi', { tool: [] }), code('invalid-argument', /'tools'/));
      },
      { worker: false },
    ));

  test('without a template it says so', () =>
    withModel(
      random(7),
      async (lm) => {
        assert.equal(lm.tokenizer.hasChatTemplate, false);
        await assert.rejects(lm.chat('hi').result, code('unsupported', /chat template/));
      },
      { worker: false },
    ));
});

test('a model without a tokenizer works with ids and says so otherwise', () =>
  withModel(
    llama((name, shape) => new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(name.endsWith('norm.weight') ? 1 : 0.01), {
      tokenizer: null,
    }),
    async (lm) => {
      assert.equal(lm.tokenizer, null);
      const { tokenIds, text } = await lm.generate({ inputIds: [1, 2] }, { maxNewTokens: 2, eosTokenId: null }).result;
      assert.deepEqual([tokenIds.length, text], [2, '']);
      assert.deepEqual(lm.info().tasks, ['generate']);
      await assert.rejects(lm.generate('a').result, code('unsupported', /tokenizer.*{ inputIds }/));
      await assert.rejects(lm.generate({ inputIds: [1] }, { stopStrings: 'a' }).result, code('unsupported'));
      await assert.rejects(lm.tokenize('a'), code('unsupported'));
      await assert.rejects(lm.score('a'), code('unsupported'));
    },
  ));

test('chunks of a long prompt: an abort takes effect between two of them', async () => {
  await withModel(random(8, { config: { num_hidden_layers: 3, max_position_embeddings: 20000 } }), async (lm) => {
    const inputIds = Array.from({ length: 12000 }, (_, i) => i % 250);
    const whole = performance.now();
    await lm.forward({ inputIds: [inputIds.slice(0, 3000)] });
    const quarter = performance.now() - whole;
    const controller = new AbortController();
    const began = performance.now();
    setTimeout(() => controller.abort(), quarter / 4);
    const { tokenIds, finishReason } = await lm.generate({ inputIds }, { signal: controller.signal }).result;
    assert.deepEqual([tokenIds.length, finishReason], [0, 'aborted']);
    assert.ok(performance.now() - began < 3 * quarter, 'long before the prompt is through');
    // The instance is as good as before.
    assert.equal((await lm.generate('ab', { maxNewTokens: 2, eosTokenId: null }).result).tokenIds.length, 2);
  });
});
