// translate, summarize, embed, fillMask, classify, answer: against what transformers' pipelines and sentence-transformers make of the
// same models and texts (wasm-tests/python/task_fixtures.py).
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { create, load } from '../dist/node.js';
import { bundle } from './support/bundle.mjs';
import { folderOf, readJson } from './support/fixtures.mjs';
import { startHub } from './support/hub.mjs';
import { random } from './support/tiny.mjs';

const folder = folderOf('tasks');
const expected = readJson('tasks', 'expected.json');

/** The files of folders, those of the first where two have one. */
function filesOf(...names) {
  const files = {};
  for (const name of names)
    for (const file of readdirSync(join(folder, name))) files[file] ??= new Uint8Array(readFileSync(join(folder, name, file)));
  return files;
}

const json = (value) => new TextEncoder().encode(JSON.stringify(value));
const changed = (files, file, change) => ({ ...files, [file]: json({ ...JSON.parse(new TextDecoder().decode(files[file])), ...change }) });

const code =
  (wanted, message = /./) =>
  (error) => {
    assert.equal(error.code, wanted, error.stack);
    assert.match(error.message, message);
    return true;
  };

async function withModel(files, run, options = { worker: false }) {
  const lm = await load(files, options);
  try {
    return await run(lm);
  } finally {
    await lm.dispose();
  }
}

/** Equal, numbers within a tolerance. */
function assertClose(actual, wanted, tolerance = 2e-5, path = '') {
  if (typeof wanted === 'number' && !Number.isInteger(wanted)) {
    assert.ok(Math.abs(actual - wanted) <= tolerance * Math.max(1, Math.abs(wanted)), `${path}: expected ${wanted}, got ${actual}`);
  } else if (typeof wanted === 'object' && wanted !== null) {
    assert.deepEqual(Object.keys(actual).sort(), Object.keys(wanted).sort(), path);
    for (const key of Object.keys(wanted)) assertClose(actual[key], wanted[key], tolerance, `${path}.${key}`);
  } else if (typeof wanted === 'number') {
    assert.ok(Math.abs(actual - wanted) <= tolerance, `${path}: expected ${wanted}, got ${actual}`);
  } else {
    assert.equal(actual, wanted, path);
  }
}

for (const { model, tokenizer, runs } of expected.fillMask) {
  test(`fillMask as the pipeline: ${model}`, () =>
    withModel(filesOf(model, tokenizer), async (lm) => {
      assert.deepEqual(lm.info().tasks, ['fillMask', 'embed']);
      for (const { text, expected: wanted, ...options } of runs) assertClose(await lm.fillMask(text, options), wanted, 2e-5, text);
      const texts = runs.slice(0, 3).map(({ text }) => text);
      assertClose(
        await lm.fillMask(texts, { topK: 2 }),
        runs
          .slice(0, 3)
          .map(({ expected: wanted }) => (Array.isArray(wanted[0]) ? wanted.map((row) => row.slice(0, 2)) : wanted.slice(0, 2))),
      );
      assert.deepEqual(await lm.fillMask([]), []);
    }));
}

test('fillMask: what will not do', () =>
  withModel(filesOf('bert-mask', 'wordpiece'), async (lm) => {
    assert.equal(lm.tokenizer.maskToken, '[MASK]');
    await assert.rejects(lm.fillMask('no mask'), code('invalid-argument', /\[fillMask\] text: expected a mask, \[MASK\], got none/));
    await assert.rejects(
      lm.fillMask('a [MASK]', { targets: ['wholeheartedly'] }),
      code('invalid-argument', /one token each.*wholeheartedly/),
    );
    await assert.rejects(lm.fillMask('a [MASK]', { topk: 3 }), code('invalid-argument', /'topk'.*'topK'/));
    await assert.rejects(lm.fillMask(5), code('invalid-argument', /expected a string or an array of these, got 5/));
    const long = `[MASK] ${'whale '.repeat(60)}`;
    await assert.rejects(lm.fillMask(long), code('invalid-argument', /at most 48 tokens.*truncation/));
    assert.equal((await lm.fillMask(long, { truncation: true })).length, 5);
    // The last mask goes with what is cut.
    await assert.rejects(lm.fillMask(`${'whale '.repeat(60)} [MASK]`, { truncation: true }), code('invalid-argument', /a mask/));
  }));

for (const { model, tokenizer, runs } of expected.classify) {
  test(`classify texts as the pipeline: ${model}`, () =>
    withModel(filesOf(model, tokenizer), async (lm) => {
      assert.deepEqual(lm.info().tasks, ['classify', 'embed']);
      for (const { input, expected: wanted, ...options } of runs)
        assertClose(await lm.classify(input, options), wanted, 2e-5, JSON.stringify(input));
      const plain = runs.slice(0, 2);
      assertClose(
        await lm.classify(plain.map(({ input }) => input)),
        plain.map(({ expected: wanted }) => wanted),
      );
    }));
}

for (const { model, tokenizer, runs } of expected.tokens) {
  test(`classify tokens as the pipeline: ${model}`, () =>
    withModel(filesOf(model, tokenizer), async (lm) => {
      for (const { text, expected: wanted, ...options } of runs) {
        const found = await lm.classify(text, options);
        assertClose(found, wanted, 2e-5, `${options.aggregation} ${text}`);
        for (const one of found) assert.equal(text.slice(...one.offsets), one.text);
      }
      await assert.rejects(lm.classify('a', { topK: 2 }), code('invalid-argument', /topK.*labels tokens/));
    }));
}

test('classify: long texts, and what will not do', () =>
  withModel(filesOf('bert-moods', 'wordpiece'), async (lm) => {
    const long = 'the white whale swam in the sea '.repeat(8);
    await assert.rejects(
      lm.classify(long),
      code('invalid-argument', /\[classify\] text: expected at most 48 tokens, got \d+ \(window: true.*truncation: true/),
    );
    const ids = await lm.tokenize(long, { addSpecialTokens: false });
    const windows = [];
    for (let begin = 0; begin < ids.length; begin += 10) {
      windows.push([2, ...ids.slice(begin, begin + 18), 3]);
      if (begin + 18 >= ids.length) break;
    }
    const logits = (await lm.forward({ inputIds: windows })).map((one) => Array.from(one.logits.data));
    const rows = logits.map((row) => row.map((x) => Math.exp(x) / row.reduce((sum, y) => sum + Math.exp(y), 0)));
    const means = [0, 1, 2].map((label) => rows.reduce((sum, row) => sum + row[label], 0) / rows.length);
    const found = await lm.classify(long, { window: { size: 20, overlap: 8 } });
    for (const { label, score } of found) assertClose(score, means[['bad', 'so-so', 'good'].indexOf(label)]);
    assert.equal((await lm.classify({ text: 'What?', pair: long }, { truncation: true })).length, 3);
    await assert.rejects(lm.classify('a', { aggregation: 'simple' }), code('invalid-argument', /aggregation.*labels texts/));
    await assert.rejects(lm.classify({ text: 'a' }), code('invalid-argument', /pair/));
    await assert.rejects(lm.classify('a', { window: { size: 8, overlap: 8 } }), code('invalid-argument', /overlap/));
    await assert.rejects(lm.classify(long, { window: { size: 10, overlap: 9 } }), code('invalid-argument', /9 overlap and 2 stand around/));
  }));

for (const { model, tokenizer, runs } of expected.answer) {
  test(`answer by the pipeline's formula: ${model}`, () =>
    withModel(filesOf(model, tokenizer), async (lm) => {
      for (const { question, context, expected: wanted, ...options } of runs) {
        const given = { docStride: 20, ...options };
        assertClose(await lm.answer(question, context, given), wanted, 2e-5, `${question} ${JSON.stringify(options)}`);
        const best = await lm.answer(question, context, { ...given, topK: undefined });
        if (options.impossible !== true) assert.equal(context.slice(...best.offsets), best.text);
      }
      await assert.rejects(lm.answer('What?', '  '), code('invalid-argument', /context: expected a text with at least one token/));
      await assert.rejects(lm.answer('What?'), code('invalid-argument', /question and a context/));
      await assert.rejects(lm.answer('the white whale '.repeat(20), 'the sea'), code('invalid-argument', /tokens/));
    }));
}

describe('embed', () => {
  const { model, tokenizer, texts, cases } = expected.embed;
  const base = filesOf(model, tokenizer);
  const modules = (...types) =>
    json(
      types.map((type, idx) => ({
        idx,
        name: `${idx}`,
        path: idx === 0 ? '' : `${idx}_${type}`,
        type: `sentence_transformers.models.${type}`,
      })),
    );
  const flags = {
    cls: 'cls_token',
    max: 'max_tokens',
    mean: 'mean_tokens',
    mean_sqrt_len_tokens: 'mean_sqrt_len_tokens',
    weightedmean: 'weightedmean_tokens',
    lasttoken: 'lasttoken',
  };

  for (const { pooling, prompt, vectors } of cases) {
    test(`${pooling}${prompt && ', the prompt left out'} as sentence-transformers, from its files`, () => {
      const pool = prompt
        ? { pooling_mode: pooling, include_prompt: false }
        : Object.fromEntries([pooling].flat().map((name) => [`pooling_mode_${flags[name]}`, true]));
      // Older files have flags, whose order is fixed.
      const wanted = pooling.length === 2 && !prompt ? vectors.map((v) => [...v.slice(16), ...v.slice(0, 16)]) : vectors;
      const files = {
        ...base,
        'modules.json': modules('Transformer', 'Pooling'),
        '1_Pooling/config.json': json({ word_embedding_dimension: 16, ...pool }),
      };
      return withModel(files, async (lm) => {
        const found = await lm.embed(texts, prompt ? { prompt } : {});
        for (const [i, vector] of found.entries()) assertClose(Array.from(vector), wanted[i], 2e-5, texts[i]);
        assert.equal(lm.info().embedding.from, 'modules.json');
      });
    });
  }

  test('without such files: the mean, and by option', () =>
    withModel(base, async (lm) => {
      assert.deepEqual(lm.info().embedding, {
        pooling: ['mean'],
        normalize: false,
        maxLength: 48,
        prompts: {},
        promptName: null,
        from: 'default',
      });
      const vectorsOf = (mode) => cases.find(({ pooling, prompt }) => pooling === mode && prompt === '').vectors;
      assertClose(Array.from(await lm.embed(texts[0])), vectorsOf('mean')[0]);
      assertClose(Array.from(await lm.embed(texts[0], { pooling: 'last' })), vectorsOf('lasttoken')[0]);
      const both = cases.find(({ pooling }) => Array.isArray(pooling));
      assertClose(Array.from(await lm.embed(texts[3], { pooling: both.pooling })), both.vectors[3]);
      const [one] = await lm.embed([texts[0]], { normalize: true });
      assert.ok(one instanceof Float32Array);
      assertClose(
        one.reduce((sum, x) => sum + x * x, 0),
        1.0000001,
      );
      assert.deepEqual(await lm.embed([]), []);
      const [first, , , , , again] = await lm.embed(texts);
      assert.deepEqual(again, first);
      await assert.rejects(lm.embed('a', { pooling: 'middle' }), code('invalid-argument', /one or several of mean, cls/));
      await assert.rejects(lm.embed('a', { normalise: true }), code('invalid-argument', /'normalise'.*'normalize'/));
      await assert.rejects(lm.embed('a', { promptName: 'query' }), code('invalid-argument', /promptName.*it has none/));
      await assert.rejects(lm.embed(['a', null]), code('invalid-argument', /got null/));
    }));

  test('length, case, prompts and normalisation as the files say', () => {
    const files = {
      ...base,
      'modules.json': modules('Transformer', 'Pooling', 'Normalize'),
      'sentence_bert_config.json': json({ max_seq_length: 12, do_lower_case: true }),
      '1_Pooling/config.json': json({ word_embedding_dimension: 16, pooling_mode_cls_token: true }),
      'config_sentence_transformers.json': json({ prompts: { query: 'query: ', passage: '' }, default_prompt_name: 'passage' }),
    };
    return withModel(files, async (lm) => {
      assert.deepEqual(lm.info().embedding, {
        pooling: ['cls'],
        normalize: true,
        maxLength: 12,
        prompts: { query: 'query: ', passage: '' },
        promptName: 'passage',
        from: 'modules.json',
      });
      const long = 'the white whale swam in the sea and was white';
      await assert.rejects(lm.embed(long), code('invalid-argument', /\[embed\] text: expected at most 12 tokens.*truncation/));
      const ids = await lm.tokenize(long, { addSpecialTokens: false });
      const [{ lastHiddenState }] = await lm.forward({ inputIds: [[2, ...ids.slice(0, 10), 3]] });
      const cls = Array.from(lastHiddenState.data.subarray(0, 16));
      const norm = Math.hypot(...cls);
      assertClose(
        Array.from(await lm.embed(long, { truncation: true })),
        cls.map((x) => x / norm),
      );
      assertClose(Array.from(await lm.embed(long, { truncation: true, normalize: false })), cls);
      assert.deepEqual(await lm.embed('The SEA', { promptName: 'query' }), await lm.embed('query: the sea'));
      await assert.rejects(lm.embed('a', { promptName: 'question' }), code('invalid-argument', /query, passage.*question/));
    });
  });

  test('a module that is not built is named when it is needed', () => {
    const files = { ...base, 'modules.json': modules('Transformer', 'Pooling', 'Dense') };
    return withModel(files, async (lm) => {
      await assert.rejects(lm.embed('a'), code('unsupported', /Dense \(2_Dense\)/));
      assert.equal((await lm.forward({ inputIds: [[2, 3]] })).length, 1);
    });
  });

  test('a decoder embeds where its files, or the call, say how', () =>
    withModel(random(1), async (lm) => {
      assert.deepEqual(lm.info().tasks, ['generate']);
      await assert.rejects(lm.embed('abc'), code('unsupported', /\[embed\] model: expected one made for it, got llama .*generate/));
      const [{ hiddenStates }] = await lm.forward({ inputIds: [await lm.tokenize('abc')] }, { hiddenStates: true });
      const last = hiddenStates.at(-1);
      const row = Array.from(last.data.subarray((last.shape[0] - 1) * last.shape[1]));
      assertClose(Array.from(await lm.embed('abc', { pooling: 'last' })), row);
    }));
});

describe('translate', () => {
  const { sentences } = expected.translate;
  const greedy = sentences.filter(({ numBeams }) => numBeams === 1);
  const beams = sentences.filter(({ numBeams }) => numBeams === undefined);
  const translations = new Map(beams.map(({ text, translation }) => [text, translation.trim()]));
  let mt;
  before(async () => {
    mt = await load(filesOf('marian'));
  });
  after(() => mt.dispose());

  test('beams from generation settings, and greedily, as MarianMT', async () => {
    assert.deepEqual(mt.info().tasks, ['generate', 'translate', 'summarize']);
    for (const { text, inputIds, tokenIds, translation, score } of beams) {
      const found = await mt.translate(text);
      assert.equal(found.text, translation.trim(), text);
      assert.deepEqual(found.tokenIds, tokenIds);
      assertClose(found.score, score);
      assert.equal(found.sourceTokens.length, inputIds.length);
      assert.equal(found.tokens.length, tokenIds.length);
      assert.equal(found.segments.length, 1);
    }
    for (const { text, tokenIds } of greedy) assert.deepEqual((await mt.translate(text, { numBeams: 1 })).tokenIds, tokenIds);
  });

  test('a long text: sentence by sentence, everything between them as it was', async () => {
    const [a, b, c, d] = ['Call me Ishmael.', 'The white whale swam in the sea!', 'Where is Dr. Ahab?', 'a < b & c > d'];
    const shape = (one) => `\r\n  ${one(a)} ${one(b)}\t\u3000${one(c)}\r\n\r\n\n${one(d)}\r***\n \u{1F600}\u2028${one(a)}  \n`;
    const text = shape((one) => one);
    const found = await mt.translate(text);
    assert.equal(
      found.text,
      shape((one) => translations.get(one)),
    );
    assert.deepEqual(
      found.segments.map(({ source }) => text.slice(...source)),
      [a, b, c, d, a],
    );
    for (const segment of found.segments) assert.equal(found.text.slice(...segment.target), segment.text);
    assert.deepEqual(
      found.tokenIds,
      found.segments.flatMap(({ tokenIds }) => tokenIds),
    );
    for (const empty of ['', ' \n\r\n ', '***']) {
      const same = await mt.translate(empty);
      assert.deepEqual([same.text, same.segments, same.tokens, same.score], [empty, [], [], 0]);
    }
    assert.deepEqual(await mt.translate([]), []);
    const several = await mt.translate([a, text, b]);
    assert.deepEqual(
      several.map((one) => one.text),
      [translations.get(a), found.text, translations.get(b)],
    );
  });

  test('a language code stands before each sentence, given in the text or as targetLanguage', async () => {
    const [one, two] = ['The whale.', 'Call me.'];
    const wanted = `${translations.get(`>>deu<< ${one}`)} ${translations.get(`>>deu<< ${two}`)}`;
    assert.deepEqual(mt.tokenizer.languages, ['deu', 'zho']);
    assert.equal((await mt.translate(`>>deu<< ${one} ${two}`)).text, wanted);
    const found = await mt.translate(`${one} ${two}`, { targetLanguage: 'deu' });
    assert.equal(found.text, wanted);
    assert.equal((await mt.translate(one, { targetLanguage: 'zho' })).text, translations.get(`>>zho<< ${one}`));
    await assert.rejects(mt.translate(one, { targetLanguage: 'fra' }), code('invalid-argument', /deu, zho/));
    await assert.rejects(mt.translate('>>fra<< a'), code('invalid-argument', /deu, zho/));
  });

  test('links of source and target words are those of the penultimate layer', async () => {
    for (const { text, attention, tokenIds } of beams.slice(0, 6)) {
      const whole = `\n${text}`;
      const { alignment, segments, text: translation } = await mt.translate(whole, { alignment: true });
      assert.deepEqual(alignment, segments[0].alignment);
      // Words by white space and punctuation, and the share of attention that their tokens have in Python's weights.
      const wordsIn = (string, pieces, from) => {
        const words = [];
        let at = from;
        for (const [t, piece] of pieces.entries()) {
          // A special token is not in the text.
          if (piece.trim() === '' || piece === '<unk>') continue;
          const begin = string.indexOf(piece.trim(), at);
          at = begin + piece.trim().length;
          const last = words.at(-1);
          const joined =
            last?.end === begin &&
            /[\p{L}\p{N}]/u.test(string[begin - 1]) &&
            /[\p{L}\p{N}]/u.test(string[begin]) &&
            !/[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}]/u.test(string.slice(begin - 1, begin + 1));
          if (joined) Object.assign(last, { end: at, tokens: [...last.tokens, t] });
          else words.push({ begin, end: at, tokens: [t] });
        }
        return words;
      };
      const pieces = (await mt.tokenStrings(await mt.tokenize(text))).slice(0, -1);
      if (pieces.includes('<unk>')) continue;
      const sources = wordsIn(whole, pieces, 1);
      const targets = wordsIn(translation, (await mt.tokenStrings(tokenIds, { target: true })).slice(0, -1), 0);
      const wanted = targets.map((target) => {
        const shares = sources.map((source) => {
          let sum = 0;
          for (const t of target.tokens) for (const s of source.tokens) sum += attention[t][s] / target.tokens.length;
          return sum;
        });
        const score = Math.max(...shares);
        const source = sources[shares.indexOf(score)];
        return { source: [source.begin, source.end], target: [target.begin, target.end], score };
      });
      assertClose(alignment, wanted, 1e-4, text);
    }
    await assert.rejects(
      mt.translate('a', { alignment: { layer: 3 } }),
      code('invalid-argument', /alignment.layer: expected a whole number below 3/),
    );
    await assert.rejects(mt.translate('a', { alignment: { row: 3 } }), code('invalid-argument', /'row'/));
    const [one, other] = await Promise.all([0, 1].map((head) => mt.translate('Call me Ishmael.', { alignment: { layer: 1, head } })));
    assert.notDeepEqual(one.alignment, other.alignment);
  });

  test('too long for the model: split further, cut by option, or an error', async () => {
    const long = 'the white whale, the sea, and the white whale and the sea and the white whale';
    const found = await mt.translate(long);
    assert.ok(found.segments.length > 1);
    assert.match(found.notes.join(), /a sentence of \d+ tokens was split/);
    assert.equal(found.segments.map(({ source }) => long.slice(...source)).join(' '), long);
    assert.match(long.slice(...found.segments[0].source), /,$|the white whale/);
    await assert.rejects(
      mt.translate(long, { split: false }),
      code('invalid-argument', /\[translate\] text: expected at most 32 tokens, got \d+ \(truncation/),
    );
    const cut = await mt.translate(long, { truncation: true });
    assert.equal(cut.segments.length, 1);
    assert.match(cut.notes[0], /cut to 32/);
    assert.equal(cut.sourceTokens.length, 32);
    const glued = await mt.translate('w'.repeat(80));
    assert.equal(
      glued.segments.map(({ source: [from, to] }) => to - from).reduce((a, b) => a + b),
      80,
    );
  });

  test('sentences are reported; an abort rejects; a listener may end it', async () => {
    const seen = [];
    const text = 'Call me Ishmael. The white whale swam in the sea! No. 7';
    await mt.translate([text, 'No. 7'], { numBeams: 1, onSentence: (sentence) => seen.push(sentence) });
    assert.deepEqual(
      seen.map(({ index, source, done, total }) => [index, text.slice(...source), done, total]),
      [
        [0, 'Call me Ishmael.', 1, 4],
        [0, 'The white whale swam in the sea!', 2, 4],
        [0, 'No. 7', 3, 4],
        [1, text.slice(0, 5), 4, 4],
      ],
    );
    await assert.rejects(
      mt.translate(text, {
        onSentence: () => {
          throw new Error('enough');
        },
      }),
      /enough/,
    );
    const controller = new AbortController();
    const refused = assert.rejects(mt.translate(text, { signal: controller.signal }), (reason) => reason === 'stop');
    controller.abort('stop');
    await refused;
    assert.equal((await mt.translate('No. 7')).text, translations.get('No. 7'));
  });

  test('attention on request, with the tokens of both axes', async () => {
    const { text, tokenIds, attention } = beams[0];
    const found = await mt.translate(text, { attentions: true });
    assert.equal(found.crossAttentions.length, 3);
    const { shape, data } = found.crossAttentions[1];
    assert.deepEqual(shape, [2, found.targetTokens.length, found.sourceTokens.length]);
    const row = Array.from({ length: shape[2] }, (_, s) => (data[s] + data[shape[1] * shape[2] + s]) / 2);
    assertClose(row, attention[0], 1e-4);
    assert.ok(found.targetTokens.length >= tokenIds.length);
  });

  test('options that mean nothing here', async () => {
    for (const [options, message] of [
      [{ numReturnSequences: 2 }, /numReturnSequences.*generate/],
      [{ decoderInputIds: [1] }, /decoderInputIds/],
      [{ sourceLangauge: 'en' }, /'sourceLangauge'.*'sourceLanguage'/],
      [{ split: 'words' }, /split.*"lines"/],
    ]) {
      await assert.rejects(mt.translate('a', options), code('invalid-argument', message));
    }
    await assert.rejects(mt.embed('a'), code('unsupported', /generate, translate, summarize/));
    await assert.rejects(mt.translate(['a', 7]), code('invalid-argument', /got 7/));
  });

  test('words in config.json: prefixes and settings by task', async () => {
    const params = {
      summarization: { prefix: 'sum: ', max_length: 6, num_beams: 1, no_repeat_ngram_size: 0 },
      translation_en_to_de: { prefix: 'Call me ', num_beams: 1 },
      translation_en_to_fr: { prefix: 'fr: ', num_beams: 1 },
    };
    await withModel(changed(filesOf('marian'), 'config.json', { task_specific_params: params }), async (lm) => {
      const one = await lm.translate('Ishmael.', { sourceLanguage: 'en', targetLanguage: 'de', alignment: true });
      assert.deepEqual(one.tokenIds, greedy[0].tokenIds);
      assert.ok(one.alignment.every(({ source: [begin, end] }) => begin >= 0 && end <= 8));
      await assert.rejects(lm.translate('a'), code('invalid-argument', /en to de, en to fr/));
      await assert.rejects(lm.translate('a', { targetLanguage: 'es' }), code('invalid-argument', /en to de, en to fr.*es/));

      const ids = await lm.tokenize('sum: The white whale');
      const alone = await lm.generate({ inputIds: ids }, { maxLength: 6, numBeams: 1, noRepeatNgramSize: 0 }).result;
      const summary = await lm.summarize('The white whale');
      assert.deepEqual(summary.tokenIds, alone.tokenIds);
      assert.equal((await lm.summarize('The white whale', { maxLength: 4, minLength: 4 })).tokenIds.length, 3);
      const long = 'the white whale and the sea '.repeat(5);
      await assert.rejects(lm.summarize(long), code('invalid-argument', /window: true.*truncation: true/));
      const parts = await lm.summarize(long, { window: { size: 20, overlap: 4 } });
      assert.ok(parts.segments.length > 1);
      for (const { sourceTokens } of parts.segments) assert.match(sourceTokens.join('').trim(), /^sum:/);
      assert.equal(parts.text, parts.segments.map(({ text }) => text).join(' '));
      assert.equal((await lm.summarize(long, { truncation: true })).segments.length, 1);
      assert.equal((await lm.summarize('')).text, '');
    });
  });
});

describe('languages that the decoder is told', () => {
  // These are not made anew with the others.
  const sentencepiece = fileURLToPath(new URL('./fixtures/sentencepiece/', import.meta.url));
  const kinds = JSON.parse(readFileSync(join(sentencepiece, 'classes.json'), 'utf8'));
  const tokenizerOf = (name) => {
    const { copies, files } = kinds.find((kind) => kind.name === name);
    const read = Object.entries(copies).map(([file, from]) => [file, new Uint8Array(readFileSync(join(sentencepiece, from)))]);
    return Object.fromEntries([...read, ...Object.entries(files).map(([file, text]) => [file, new TextEncoder().encode(text)])]);
  };
  const small = {
    vocab_size: 700,
    d_model: 16,
    encoder_layers: 1,
    decoder_layers: 1,
    encoder_attention_heads: 2,
    decoder_attention_heads: 2,
    encoder_ffn_dim: 16,
    decoder_ffn_dim: 16,
    max_position_embeddings: 64,
    eos_token_id: 2,
    bos_token_id: 0,
    pad_token_id: 1,
  };
  const text = 'The whale.';
  const greedy = { numBeams: 1, maxNewTokens: 5 };

  for (const [name, model_type, start, target, source] of [
    ['nllb', 'm2m_100', 2, 'fra_Latn', 'eng_Latn'],
    ['m2m100', 'm2m_100', 2, 'zh', 'en'],
    ['mbart50', 'mbart', 2, 'zh_CN', 'en_XX'],
    // mbart-large-cc25 and mbart-large-en-ro: the decoder begins with its language.
    ['mbart', 'mbart', undefined, 'zh_CN', 'en_XX'],
  ]) {
    test(name, async () => {
      const lm = await create(
        { model_type, ...small, ...(start === undefined ? {} : { decoder_start_token_id: start }) },
        { tokenizer: tokenizerOf(name), worker: false, seed: 4 },
      );
      try {
        assert.ok(lm.tokenizer.languages.includes(target));
        const found = await lm.translate(text, { ...greedy, sourceLanguage: source, targetLanguage: target });
        const id = (await lm.translate(text, { ...greedy, sourceLanguage: target, targetLanguage: target })).sourceTokens.findIndex(
          (token) => token.includes(target),
        );
        assert.ok(id >= 0);
        const ids = await Promise.all([...Array(700).keys()].map(async (one) => [(await lm.tokenStrings([one]))[0], one]));
        const language = ids.find(([token]) => token === target || token === `__${target}__`)[1];
        const { sourceTokens } = found;
        assert.ok(
          sourceTokens.some((token) => token.includes(source)),
          sourceTokens.join(),
        );
        const sourceIds = sourceTokens.map((token) => ids.find(([other]) => other === token)[1]);
        const alone = await lm.generate(
          { inputIds: sourceIds },
          { ...greedy, ...(start === undefined ? { decoderStartTokenId: language } : { forcedBosTokenId: language }) },
        ).result;
        assert.deepEqual(found.tokenIds, alone.tokenIds);
        if (start !== undefined) assert.equal(found.tokenIds[0], language);
        await assert.rejects(lm.translate(text, greedy), code('invalid-argument', /\[translate\] targetLanguage: expected a code such as/));
        await assert.rejects(lm.translate(text, { targetLanguage: 'xx' }), code('invalid-argument', /targetLanguage: expected a code/));
        // A start, or a first token, that the caller chose will do.
        const chosen = start === undefined ? { decoderStartTokenId: language } : { forcedBosTokenId: language };
        assert.deepEqual((await lm.translate(text, { ...greedy, sourceLanguage: source, ...chosen })).tokenIds, alone.tokenIds);
      } finally {
        await lm.dispose();
      }
    });
  }
});

test('the files of sentence-transformers are asked for only where they may be', async () => {
  const repo = (files, extra = {}) => ({ commit: 'a'.repeat(40), files: { ...files, ...extra } });
  const bert = filesOf('bert', 'wordpiece');
  const modules = json([
    { idx: 0, name: '0', path: '', type: 'sentence_transformers.models.Transformer' },
    { idx: 1, name: '1', path: '1_Pooling', type: 'sentence_transformers.models.Pooling' },
  ]);
  const hub = await startHub({
    'org/plain': repo(bert),
    'org/sentence': repo(bert, { 'modules.json': modules, '1_Pooling/config.json': json({ pooling_mode: 'cls' }) }),
    'org/decoder': repo(random(1)),
  });
  const ours = (path) => /modules|_bert_config|Pooling|config_sentence/.test(path);
  const asked = async (name) => {
    hub.log.length = 0;
    const lm = await load(name, { endpoint: hub.url, cacheDir: false, worker: false });
    const { embedding } = lm.info();
    await lm.dispose();
    return {
      paths: hub.log
        .map(({ path }) => path)
        .filter(ours)
        .map((path) =>
          path
            .split('/main/')
            .pop()
            .replace(/^.*?a{40}\//, ''),
        ),
      embedding,
    };
  };
  try {
    for (const listed of [true, false]) {
      hub.api = listed;
      const plain = await asked('org/plain');
      assert.deepEqual(new Set(plain.paths), new Set(listed ? [] : ['modules.json']));
      assert.equal(plain.embedding.from, 'default');
      const sentence = await asked('org/sentence');
      const all = ['modules.json', '1_Pooling/config.json'];
      assert.deepEqual(
        new Set(sentence.paths),
        new Set(listed ? all : [...all, 'sentence_bert_config.json', 'config_sentence_transformers.json']),
      );
      assert.deepEqual(sentence.embedding.pooling, ['cls']);
      assert.deepEqual((await asked('org/decoder')).paths, []);
    }
  } finally {
    await hub.close();
  }
});

test('a model without a tokenizer, and one of another kind, say so', async () => {
  const { 'tokenizer.json': _, 'tokenizer_config.json': __, ...bare } = filesOf('bert-mask', 'wordpiece');
  await withModel(bare, (lm) => assert.rejects(lm.fillMask('[MASK]'), code('unsupported', /no tokenizer/)));
  await withModel(filesOf('bert-mask', 'wordpiece'), async (lm) => {
    await assert.rejects(
      lm.classify('a'),
      code('unsupported', /\[classify\] model: expected one made for it, got bert \(head: masked-language\).*fillMask, embed/),
    );
    await assert.rejects(lm.translate('a'), code('unsupported', /\[translate\]/));
    await assert.rejects(lm.answer('a', 'b'), code('unsupported', /\[answer\]/));
  });
});

test('NaN in a model is NaN in scores, and nothing hangs', () => {
  const files = filesOf('bert-moods', 'wordpiece');
  const bytes = Uint8Array.from(files['model.safetensors']);
  const header = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  const { 'classifier.bias': bias } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + header)));
  new DataView(bytes.buffer).setFloat32(8 + header + bias.data_offsets[0], Number.NaN, true);
  return withModel({ ...files, 'model.safetensors': bytes }, async (lm) => {
    const found = await lm.classify('the sea', { function: 'none' });
    assert.deepEqual(found.map(({ label }) => label).sort(), ['bad', 'good', 'so-so']);
    assert.deepEqual([found[2].label, found[2].score], ['bad', Number.NaN]);
  });
});

describe('sentences', async () => {
  const { sentencesOf, splitNear, wordsOf, isInWord, isSpaced } = await bundle(`export * from './web/engine/words.ts';`);

  test('scripts that put spaces between sentences, by most of a text', () => {
    for (const text of ['nǐ hǎo 。', 'Er ist hier.', '7', 'Он здесь.', 'He lives in 北京.', 'สวัสดี'])
      assert.equal(isSpaced(text), true, text);
    for (const text of ['你好。', '我爱学习 Python。', 'これはペンです。', 'カレーとNHK', '！', ''])
      assert.equal(isSpaced(text), false, text);
  });

  const split = (text, language, how = true) => Array.from(sentencesOf(text, 0, how, language), ([begin, end]) => text.slice(begin, end));

  for (const [name, text, wanted, language] of [
    ['Chinese', '你好。今天天气很好！我们去公园吗？好。', ['你好。', '今天天气很好！', '我们去公园吗？', '好。'], 'zho_Hans'],
    ['quotes in Chinese', '他说：“我走了。”然后离开。', ['他说：“我走了。”', '然后离开。'], 'zh_CN'],
    [
      'abbreviations',
      'Mr. Smith met Dr. J. R. Brown, i.e. Bob. They left.',
      ['Mr. Smith met Dr. J. R. Brown, i.e. Bob.', 'They left.'],
      'en_XX',
    ],
    [
      'German',
      'Das ist z. B. Herr Dr. Müller. Er wohnt in der St. Anna Str. 5.',
      ['Das ist z. B. Herr Dr. Müller.', 'Er wohnt in der St. Anna Str. 5.'],
      'deu_Latn',
    ],
    ['numbers', '1. First. It costs 3.14 in 1990. Then more.', ['1. First.', 'It costs 3.14 in 1990.', 'Then more.'], 'en'],
    ['emoji and families', 'Hi 👩‍👩‍👧‍👦! Bye 🇨🇳.', ['Hi 👩‍👩‍👧‍👦!', 'Bye 🇨🇳.'], 'en'],
    ['Arabic', 'مرحبا بالعالم. كيف حالك؟ أنا بخير.', ['مرحبا بالعالم.', 'كيف حالك؟', 'أنا بخير.'], 'ar_AR'],
    ['an unknown language', 'One. Two.', ['One.', 'Two.'], '??'],
    ['lines', 'a\r\n\r\nb\u2028c\x85d\n\n', ['a', 'b', 'c', 'd'], 'en'],
    ['nothing to translate', '--- *** … 😀\n!', [], 'en'],
  ]) {
    test(name, () => assert.deepEqual(split(text, language), wanted));
  }
  test('whole lines, whole texts', () => {
    assert.deepEqual(split('A b. C d.\nE.', 'en', 'lines'), ['A b. C d.', 'E.']);
    assert.deepEqual(split(' A b. C d.\nE. ', 'en', false), ['A b. C d.\nE.']);
  });
  test('where a long sentence is split', () => {
    const at = (text) => splitNear(`..${text}`, 2, 2 + text.length) - 2;
    assert.equal(at('one two, three four five'), 9);
    assert.equal(at('it cost 1,000,000 dollars in all'), 18);
    assert.equal(at('我们去公园，然后回家'), 6);
    assert.equal(at('abcdef'), 3);
    assert.ok([2, 4].includes(at('👍🏽👍🏽')) || at('👍🏽👍🏽') === 4);
    assert.equal(at('e\u0301e\u0301'), 2);
    assert.equal(splitNear('a', 0, 1), 0);
    assert.equal(splitNear('\u{1F600}', 0, 2), 0);
  });
  test('words of tokens', () => {
    const text = 'Un-happi ness 你好 x\u{10400}y';
    const of = (...tokens) => wordsOf(text, tokens).map(({ offsets, tokens: own }) => [text.slice(...offsets), own]);
    assert.deepEqual(of([0, 2], [2, 3], [3, 5], [5, 8], [8, 13], [0, 0]), [
      ['Un', [0]],
      ['-', [1]],
      ['happi', [2, 3]],
      ['ness', [4]],
    ]);
    assert.deepEqual(of([13, 15], [15, 16]), [
      ['你', [0]],
      ['好', [1]],
    ]);
    assert.ok(isInWord(text, 19) && !isInWord(text, 17) && !isInWord(text, 0) && !isInWord(text, text.length));
  });
});
