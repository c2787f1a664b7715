// The bench's own parts: figures, tables, and the GGUF writer against bytes that the gguf Python package wrote.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { chooseBench } from '../bench/arguments.mjs';
import { parseContender } from '../bench/contenders.mjs';
import { ggufHeader, ggufName, interleaveHeads, quantizeQ4, quantizeQ8, toHalf } from '../bench/gguf.mjs';
import { makeOnce, openModel, shapes, writeRandomModel } from '../bench/models.mjs';
import { plot, ticks } from '../bench/plot.mjs';
import { between, floorsTable, judge } from '../bench/report.mjs';
import { prompt, rows, scalingCurves } from '../bench/rows.mjs';
import { crossing, digits, exponent, firstSecond, median, ratio, speeds, translationTimes } from '../bench/stats.mjs';
import { dataOf, floors, parseProgram, shapes as trained } from '../bench/training.mjs';
import { Refusal } from '../scripts/run.mjs';

const near = (actual, expected) => assert.ok(Math.abs(actual - expected) < 1e-9 * Math.abs(expected), `${actual} is not ${expected}`);

test('medians', () => {
  assert.equal(median([9, 1, 5]), 5);
  assert.equal(median([10, 2, 9, 1]), 5.5);
  const values = [3, 1, 2];
  median(values);
  assert.deepEqual(values, [3, 1, 2]);
});

test('speeds out of the times of tokens', () => {
  // 128 tokens of prompt in half a second, then a token every 50 ms.
  const { prefill, decode } = speeds(128, [500, 550, 600, 650]);
  assert.equal(prefill, 256);
  assert.equal(decode, 20);
  assert.ok(Number.isNaN(speeds(128, [500]).decode));
  // Two tokens within a second of the first, one later.
  assert.equal(firstSecond([100, 600, 1100, 5000]), 2);
  assert.deepEqual(translationTimes([210, 220, 230, 300]), { encoder: 200, step: 10 });
});

test('a ratio says how many times better: more of a speed, less of a time', () => {
  const results = { a: { decode: [10, 30, 20], step: [2] }, b: { decode: [10], step: [8] } };
  assert.equal(ratio(results, 'decode', 'a', 'b'), 2);
  assert.equal(ratio(results, 'step', 'a', 'b'), 4);
  assert.equal(ratio(results, 'decode', 'a', 'missing'), undefined);
});

test('curves: where they cross, and their exponent', () => {
  const xs = [100, 1000, 10000];
  // n^2 and 500 n.
  near(crossing(xs, [1e4, 1e6, 1e8], [5e4, 5e5, 5e6]), 500);
  assert.equal(crossing(xs, [1, 2, 3], [4, 5, 6]), undefined);
  near(exponent(xs, [3e4, 3e6, 3e8]), 2);
  near(exponent([1024, 2048, 4096], [10, 20, 40]), 1);
  const row = rows.find(({ id }) => id === 'scaling');
  const values = Object.fromEntries(
    row.lengths.flatMap((n) => [
      [`attention at ${n}`, [n * n]],
      [`feed-forward at ${n}`, [n * 300, n * 300]],
    ]),
  );
  near(scalingCurves(row, { 'kernels f32': values }).crossing, 300);
  assert.equal(scalingCurves(row, {}), undefined);
});

test('digits', () => {
  assert.deepEqual([1234.5, 123.4, 12.34, 1.234, 0.1234, 0.01234].map(digits), ['1235', '123', '12.3', '1.23', '0.123', '0.012']);
  assert.deepEqual([undefined, Number.NaN, Infinity].map(digits), ['–', '–', '–']);
});

test('contenders by name', () => {
  assert.deepEqual(parseContender('wasmformer q8 x2 in Node'), { library: 'wasmformer', dtype: 'q8', threads: 2, node: true });
  assert.deepEqual(parseContender('transformers.js f32'), { library: 'transformers.js', dtype: 'f32', threads: 1, node: false });
});

test('rows: models that exist, floors between contenders of the row, prompts that wllama can be told', () => {
  for (const row of rows) {
    assert.ok(row.model === 'products' || shapes[row.model], row.model);
    for (const { ours, value } of row.floors) {
      assert.ok(row.contenders.includes(ours), ours);
      assert.equal(value({}, row, {}), undefined, 'nothing measured');
    }
  }
  const ids = prompt(4096, 3);
  assert.ok(ids.every((id) => id - 3 >= 33 && id - 3 <= 126));
  assert.notEqual(ids[0], prompt(1, 4)[0]);
});

test('floors are judged, and what is missing is neither met nor failed', () => {
  const row = {
    id: 'r',
    title: 'work',
    floors: [
      { what: 'decode', ours: 'a', theirs: 'b', atLeast: 1.5, value: (results) => ratio(results, 'decode', 'a', 'b') },
      { what: 'decode', ours: 'a', theirs: 'c', atLeast: 4, value: (results) => ratio(results, 'decode', 'a', 'c') },
      { what: 'start', ours: 'a', theirs: 'at most 60', atMost: 60, value: () => 61 },
      { what: 'decode', ours: 'a', theirs: 'gone', atLeast: 1, value: (results) => ratio(results, 'decode', 'a', 'gone') },
    ],
  };
  const judged = judge([
    { row, results: { a: { decode: [30] }, b: { decode: [20] }, c: { decode: [10] } }, facts: {}, errors: { gone: 'not built' } },
  ]);
  assert.deepEqual(
    judged.map(({ met }) => met),
    [true, false, false, undefined],
  );
  const lines = floorsTable(judged).split('\n');
  assert.equal(lines[2], '| work | decode | a | b | 1.50 | ≥ 1.5 | yes |');
  assert.equal(lines[4], '| work | start | a | at most 60 | 61.0 | ≤ 60 | **no** |');
  assert.equal(lines[5], '| work | decode | a | gone | – | ≥ 1 | gone: not built |');
});

test('training: what the program prints, floors, and what is beside without one', () => {
  const printed = `gemm 512                 5.00 ms   50.00 GFLOP/s
4 x 128 x (32 x 64) V 96 forward        80.00 ms   45.00 GFLOP/s     25600 tokens/s
4 x 128 x (32 x 64) V 96 step          240.00 ms   45.00 GFLOP/s      8533 tokens/s  3.00 x forward`;
  const figures = parseProgram(printed);
  assert.deepEqual(Object.keys(figures), ['gemm 512', ...['forward', 'step'].map((what) => `${trained[0].name} V 96 ${what}`)]);
  assert.deepEqual(figures['gemm 512'], { ms: 5, speed: 50 });
  const results = {
    relaxed: { forward: [80], step: [320], 'GFLOP/s of a step': [30], 'GFLOP/s of a product': [50] },
    'wasmformer f32': { training: [900, 1000, 1100] },
    'wasmformer f32 x2': { training: [1700] },
    'PyTorch-AVX2 f32': { training: [2000] },
    'jax-js f32': { training: [250] },
  };
  const judged = judge([{ row: { title: 'shape', floors: floors() }, results, facts: {}, errors: { 'TensorFlow.js f32': 'gone' } }]);
  assert.deepEqual(
    judged.map(({ value, met }) => [value, met]),
    [
      [undefined, undefined],
      [undefined, undefined],
      [4, false],
      [0.6, true],
      [1.7, true],
      [0.5, true],
      [undefined, undefined],
      [undefined, undefined],
      [4, undefined],
    ],
  );
  const lines = floorsTable(judged).split('\n').slice(2);
  assert.equal(lines[7], '| shape | tokens a second | wasmformer f32 | TensorFlow.js f32 | – | – | TensorFlow.js f32: gone |');
  assert.equal(lines[8], '| shape | tokens a second | wasmformer f32 | jax-js f32 | 4.00 | – | – |');
  for (const shape of trained) {
    const { ids, targets } = dataOf(shape);
    assert.equal(ids.length, shape.sequences * shape.length);
    assert.ok(ids.every((id, i) => id >= 0 && id < shape.V && targets[i] === ids[(i + 1) % ids.length]));
  }
});

test('the plot is well-formed, escaped and has a bar for each ratio', () => {
  const judged = [
    { title: 'a < b', what: 'decode', ours: 'wasmformer q8', theirs: 'wllama q8', value: 5.2, floor: 4, least: true, met: true },
  ];
  const curves = { lengths: [128, 256], attention: [1, 4], feedForward: [2, 4.5], crossing: undefined };
  const svg = plot({ judged, curves });
  assert.ok(svg.includes('a &lt; b') && !svg.includes('a < b'));
  assert.equal(svg.match(/<rect/g).length, 1);
  assert.ok(!/NaN|undefined|Infinity/.test(svg));
  assert.ok(svg.includes('prefers-color-scheme: dark'));
  assert.deepEqual(ticks(0.5, 12), [0.5, 1, 2, 5, 10]);
});

test('a table between two marks is replaced', () => {
  assert.equal(between('x <!-- t -->\nold\n<!-- /t --> y', 't', 'new'), 'x <!-- t -->\nnew\n<!-- /t --> y');
  assert.equal(between('no marks', 't', 'new'), 'no marks');
});

test('blocks of 8 and 4 bits are those of the gguf Python package', () => {
  const x = Float32Array.from({ length: 64 }, (_, i) => (((i * 37 + 11) % 64) - 31.5) / 16);
  x[40] = -2.5;
  // gguf.quants.quantize of 0.19
  const q8 =
    'f023ad43d66bfe9126b94fe2770a9d32c65bee8116a93ed267fa8d22b54bde7306990a2525cf44ef640eb92e814ef8a218c238e25702ac21cc41eb610bb52bd54bf59f15';
  const q4 = 'e033730c953fc851ea841da63fd962fb842e0035ea853ca75ec974eb903db852da742c96';
  assert.equal(quantizeQ8(x).toString('hex'), q8);
  assert.equal(quantizeQ4(x).toString('hex'), q4);
  assert.equal(quantizeQ8(new Float32Array(32)).toString('hex'), '00'.repeat(34));
  assert.deepEqual([1 / 3, -65504, 2 ** -14, 0.1, 2049, 2051, 0].map(toHalf), [0x3555, 0xfbff, 0x400, 0x2e66, 0x6800, 0x6802, 0]);
});

test('a GGUF header is that of the gguf Python package', () => {
  const header = ggufHeader(
    [
      ['general.architecture', 'text', 'llama'],
      ['llama.block_count', 'u32', 2],
      ['f', 'f32', 0.5],
      ['b', 'bool', true],
      ['names', 'text', ['a', 'bc']],
      ['n', 'i32', [1, -2]],
    ],
    [
      { name: 'x', shape: [2, 3], format: 'F32' },
      { name: 'q', shape: [1, 32], format: 'Q8_0' },
    ],
  );
  const expected =
    '474755460300000002000000000000000600000000000000140000000000000067656e6572616c2e6172636869746563747572650800000005000000000000006c6c' +
    '616d6111000000000000006c6c616d612e626c6f636b5f636f756e740400000002000000010000000000000066060000000000003f01000000000000006207000000' +
    '0105000000000000006e616d6573090000000800000002000000000000000100000000000000610200000000000000626301000000000000006e0900000005000000' +
    '020000000000000001000000feffffff010000000000000078020000000300000000000000020000000000000000000000000000000000000001000000000000007102' +
    '000000200000000000000001000000000000000800000020000000000000000000000000000000000000000000000000';
  const hex = header.toString('hex');
  assert.ok(hex.startsWith(expected.slice(0, 600)));
  assert.equal(header.length % 32, 0);
  assert.equal(hex.replace(/(00)+$/, ''), expected.replace(/(00)+$/, ''));
});

test('names and heads of LLaMA in GGUF', () => {
  assert.equal(ggufName('model.layers.12.self_attn.q_proj.weight'), 'blk.12.attn_q.weight');
  assert.equal(ggufName('model.layers.0.mlp.down_proj.weight'), 'blk.0.ffn_down.weight');
  assert.equal(ggufName('model.layers.3.post_attention_layernorm.weight'), 'blk.3.ffn_norm.weight');
  assert.equal(ggufName('model.embed_tokens.weight'), 'token_embd.weight');
  // Two heads of four rows each, one column: halves (0 1 | 2 3) become pairs (0 2 | 1 3).
  assert.deepEqual([...interleaveHeads(Float32Array.of(0, 1, 2, 3, 4, 5, 6, 7), 8, 1, 2)], [0, 2, 1, 3, 4, 6, 5, 7]);
});

test('random models: whole or not at all, the same every time, of moderate size', () => {
  const place = mkdtempSync(join(tmpdir(), 'bench-'));
  try {
    const folder = writeRandomModel(place, 'tiny');
    const { read, close } = openModel(folder, 'tiny');
    assert.deepEqual([...read('model.norm.weight')], Array(32).fill(1));
    const values = read('model.embed_tokens.weight');
    assert.equal(values.length, 512 * 32);
    assert.ok(values.every((value) => Math.abs(value) >= 2 ** -7 && Math.abs(value) < 2 ** -5));
    assert.ok(Math.abs(values.reduce((a, b) => a + b, 0) / values.length) < 1e-3);
    close();
    assert.throws(() =>
      makeOnce(join(place, 'broken'), (partial) => {
        writeFileSync(join(partial, 'half'), '');
        throw new Error('no');
      }),
    );
    let made = 0;
    for (let i = 0; i < 2; ++i) makeOnce(join(place, 'once'), () => void ++made);
    assert.equal(made, 1);
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
});

test('the bench says what there is, and refuses the rest before it builds anything', () => {
  const script = fileURLToPath(new URL('../scripts/bench.mjs', import.meta.url));
  const bench = (...args) => spawnSync(process.execPath, [script, ...args], { encoding: 'utf8', timeout: 20_000 });
  for (const args of [['--help'], ['quality', '-h']]) {
    const { status, stdout, stderr } = bench(...args);
    assert.deepEqual([status, stderr], [0, ''], args.join(' '));
    for (const word of ['kernels', 'training', 'quality', '--quick', '--rows', '--peers', '--runs', '--out', '--dtypes'])
      assert.ok(stdout.includes(word), word);
    assert.doesNotMatch(stdout, /==/);
  }
  for (const [args, message] of [
    [['qualty'], /^No bench is named qualty; there are: kernels, training, quality/],
    [['--quik'], /^Unknown option '--quik'/],
    [['--rows', 'gpt3'], /^--rows: expected some of matmul, .*, got gpt3/],
    [['--peers', 'llama.cpp'], /^--peers: expected some of .*wllama.*, got llama\.cpp/],
    [['--runs', '0'], /^--runs: expected a whole number from 1 on, got 0/],
    [['quality', '--token', '3'], /^Unknown option '--token'/],
    [['quality', '--dtypes', 'q2'], /^--dtypes: expected some of .*q4, got q2/],
    [['kernels', '--fast'], /^kernels: .*got --fast/],
    [['kernels', 'softmax'], /^kernels: rounds: expected a whole number .*got softmax/],
    [['training', '5', '7 x 7'], /^training: expected a part of 4 x 128 x .*, got 7 x 7/],
    [['training', 'x'], /^training: rounds: expected a whole number .*got x/],
  ]) {
    assert.throws(
      () => chooseBench(args),
      (error) => error instanceof Refusal && message.test(error.message),
      args.join(' '),
    );
  }
  const { status, stdout, stderr } = bench('qualty');
  assert.deepEqual([status, stdout], [1, '']);
  assert.match(stderr, /^No bench is named qualty.*\n$/);
  assert.deepEqual(chooseBench(['--quick', '--rows', 'gpt2']), { name: 'peers', rest: ['--quick', '--rows', 'gpt2'] });
});
