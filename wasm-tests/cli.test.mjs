// The command line, as a process.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { startHub } from './support/hub.mjs';
import { random, recite } from './support/tiny.mjs';

const program = fileURLToPath(new URL('../dist/cli.js', import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), 'wasmformer-cli-'));
after(() => rmSync(scratch, { recursive: true }));

function folder(name, files) {
  const path = mkdtempSync(join(scratch, name));
  for (const [file, bytes] of Object.entries(files)) writeFileSync(join(path, file), bytes);
  return path;
}
const chatTemplate = '{% for m in messages %}{{ m.content }}{% endfor %}';
const reciter = folder('recite', recite('ABCDE 😀!', { chatTemplate }));
const model = folder('random', random(1));

function run(args, { input, onStdout, onStderr, env } = {}) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [program, ...args], { env: { ...process.env, ...env } });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (chunk) => {
      stdout += chunk;
      onStdout?.(child, stdout);
    });
    child.stderr.on('data', (chunk) => {
      stderr += chunk;
      onStderr?.(child, stderr);
    });
    child.stdin.end(input ?? '');
    const timer = setTimeout(() => child.kill('SIGKILL'), 60_000);
    child.on('close', (status, signal) => {
      clearTimeout(timer);
      resolve({ status, signal, stdout, stderr });
    });
  });
}

test('continues a prompt: text on stdout, speed on stderr', async () => {
  const { status, stdout, stderr } = await run(['A', '--model', reciter]);
  assert.deepEqual([status, stdout], [0, 'BCDE 😀!\n']);
  assert.match(stderr, /^11 tokens, \d+(\.\d)? tokens\/s \(prompt 1, first after \d+ ms, stop, seed \d+\)\n$/);
});

test('the default model is the one in the package', async () => {
  const { status, stdout, stderr } = await run([
    'It was a dark night, and',
    '--max-new-tokens',
    '60',
    '--temperature',
    '0.8',
    '--seed',
    '1',
  ]);
  assert.equal(status, 0, stderr);
  assert.ok(stdout.trim().length > 20, stdout);
  const again = await run(['It was a dark night, and', '--max-new-tokens', '60', '--temperature', '0.8', '--seed', '1']);
  assert.equal(again.stdout, stdout);
});

test('options in kebab-case; lists, negative numbers, switches, JSON', async () => {
  const json = async (...args) => JSON.parse((await run(['ab', '--model', model, '--json', ...args])).stdout);
  const plain = await json('--max-new-tokens', '4', '--no-do-sample', '--eos-token-id', 'null');
  assert.equal(plain.tokenIds.length, 4);
  assert.equal(plain.promptTokens, 2);
  const other = await json('--max-new-tokens', '4', '--suppress-tokens', `${plain.tokenIds[0]}`, '--no-worker');
  assert.notEqual(other.tokenIds[0], plain.tokenIds[0]);
  await json(
    '--max-new-tokens',
    '2',
    '--suppress-tokens',
    '1,2,3',
    '--presence-penalty',
    '-0.5',
    '--no-repeat-ngram-size',
    '2',
    '--bad-words-ids',
    '[[1],[2,3]]',
  );
  const several = await json('--max-new-tokens', '2', '--num-return-sequences', '2', '--temperature=1.2', '--seed', '3');
  assert.equal(several.length, 2);
  assert.equal(several[0].seed, 3);
});

test('a model that samples by itself gives several continuations, with no sampling option', async () => {
  const sampling = folder('sampling', { ...random(1), 'generation_config.json': JSON.stringify({ do_sample: true }) });
  const args = ['a', '--num-return-sequences', '2', '--max-new-tokens', '2', '--seed', '1', '--json'];
  const { status, stdout, stderr } = await run([...args, '--model', sampling]);
  assert.equal(status, 0, stderr);
  assert.equal(JSON.parse(stdout).length, 2);
  assert.match((await run([...args, '--model', model])).stderr, /expected 1 without sampling/);
});

test('stop strings, chat, standard input', async () => {
  assert.equal((await run(['A', '--model', reciter, '--stop-strings', 'E'])).stdout, 'BCD\n');
  assert.equal((await run(['A', '--model', reciter, '--chat'])).stdout, 'BCDE 😀!\n');
  assert.equal((await run(['-', '--model', reciter], { input: 'A' })).stdout, 'BCDE 😀!\n');
  assert.equal((await run(['--model', reciter], { input: 'A' })).stdout, 'BCDE 😀!\n');
});

test('mistakes: exit code 2, the reason on stderr, nothing on stdout', async () => {
  for (const [args, message] of [
    [['a', '--max-new-token', '3'], /Unknown option '--max-new-token': the nearest known is '--max-new-tokens'/],
    [['a', '--max-new-tokens', 'many'], /maxNewTokens: expected an integer from 1 to 2147483647, got "many"/],
    [['a', '--temperature', '-1'], /temperature/],
    [['a', '--num-beam-groups', '2'], /--num-beam-groups/],
    [['a', 'b'], /one prompt/],
    [['cache', 'burn'], /cache list/],
    [['a', '--dtype', 'q2'], /dtype: expected .*'q8', 'q4', got "q2"/],
  ]) {
    const { status, stdout, stderr } = await run([...args, '--model', reciter]);
    assert.deepEqual([status, stdout], [2, ''], stderr);
    assert.match(stderr, message);
  }
});

test('an option of another command is refused', async () => {
  for (const [args, message] of [
    [['info', model, '--temperature', '1'], /info takes no --temperature/],
    [['info', '--stop-strings', 'a', model], /info takes no --stop-strings/],
    [['info', model, '--chat'], /info takes no --chat/],
    [['info', model, '--model', model], /expected one source, got 2/],
    [['cache', 'list', '--threads', '1'], /cache list takes no --threads/],
    [['cache', 'list', '--model', model], /cache list takes no --model/],
    [['cache', 'clear', '--cache-dir', join(scratch, 'no'), '--json'], /cache clear takes no --json/],
    [['cache', 'clear', '--no-worker'], /cache clear takes no --worker/],
  ]) {
    const { status, stdout, stderr } = await run(args);
    assert.deepEqual([status, stdout], [2, ''], stderr);
    assert.match(stderr, message);
  }
});

test('failures: exit code 1 and the error’s code', async () => {
  const { status, stdout, stderr } = await run(['a', '--model', join(scratch, 'none')]);
  assert.deepEqual([status, stdout], [1, '']);
  assert.match(stderr, /^wasmformer: [a-z-]+: \[/);
});

test('--help and --version', async () => {
  const help = await run(['--help']);
  assert.equal(help.status, 0);
  assert.match(help.stdout, /--max-new-tokens/);
  assert.equal((await run(['-h'])).stdout, help.stdout);
  const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
  assert.equal((await run(['--version'])).stdout, `${version}\n`);
});

test('info prints architecture, parameters, memory by dtype', async () => {
  const whole = folder('whole', random(1));
  const { status, stdout } = await run(['info', whole]);
  assert.equal(status, 0);
  assert.match(stdout, /architecture +llama, 1 layers, 4 heads/);
  assert.match(stdout, /^head +language$/m);
  assert.match(stdout, /^made for +generate$/m);
  assert.match(stdout, /parameters +[\d,]+/);
  for (const dtype of ['as in file', 'f32', 'f16', 'bf16', 'q8', 'q4'])
    assert.match(stdout, new RegExp(`memory ${dtype} +weights [\\d.]+ [kM]B`));
  const found = JSON.parse((await run(['info', whole, '--json'])).stdout);
  assert.ok(found.memory.f32.weights > found.memory.f16.weights);
});

test('cache list and clear', async () => {
  const cacheDir = join(scratch, 'cache');
  assert.deepEqual(await run(['cache', 'list', '--cache-dir', cacheDir]), { status: 0, signal: null, stdout: '', stderr: '' });
  const { status, stdout } = await run(['cache', 'clear', '--cache-dir', cacheDir]);
  assert.deepEqual([status, stdout], [0, '0.0 kB freed\n']);
});

test('a Hub model: downloaded once, listed, used offline, removed', async () => {
  const hub = await startHub({ 'someone/reciter': { commit: 'c'.repeat(40), files: recite('ABCDE') } });
  const cacheDir = join(scratch, 'kept');
  const options = ['A', '--model', 'someone/reciter', '--cache-dir', cacheDir];
  try {
    const first = await run([...options, '--endpoint', hub.url]);
    assert.deepEqual([first.status, first.stdout], [0, 'BCDE\n'], first.stderr);
    const bytes = hub.log.reduce((sum, { sent }) => sum + sent, 0);
    assert.equal((await run([...options, '--endpoint', hub.url])).stdout, 'BCDE\n');
    assert.ok(hub.log.reduce((sum, { sent }) => sum + sent, 0) < bytes * 1.1, 'the second run downloads no weights');
    const list = await run(['cache', 'list', '--cache-dir', cacheDir]);
    assert.match(list.stdout, /MB {2}someone\/reciter@main {2}model\.safetensors/);
  } finally {
    await hub.close();
  }
  assert.equal((await run([...options, '--endpoint', hub.url, '--offline'])).stdout, 'BCDE\n');
  assert.match((await run(['cache', 'clear', 'someone/reciter', '--cache-dir', cacheDir])).stdout, /^\d\.\d MB freed\n$/);
  const gone = await run([...options, '--endpoint', hub.url, '--offline']);
  assert.equal(gone.status, 1);
  assert.match(gone.stderr, /offline/);
});

test('an interrupt ends cleanly with what there is', async () => {
  const { status, signal, stdout, stderr } = await run(['ab', '--model', model, '--max-new-tokens', '1000000', '--eos-token-id', 'null'], {
    onStdout: (child, text) => {
      if (text.length > 20 && !child.interrupted) {
        child.interrupted = true;
        child.kill('SIGINT');
      }
    },
  });
  assert.deepEqual([status, signal], [130, null]);
  assert.ok(stdout.endsWith('\n'));
  assert.match(stderr, /aborted/);
});

test('a reader that leaves ends the program', async () => {
  const { signal } = await run(['ab', '--model', model, '--max-new-tokens', '1000000', '--eos-token-id', 'null'], {
    onStdout: (child) => child.stdout.destroy(),
  });
  assert.notEqual(signal, 'SIGKILL');
});

const corpus = folder('corpus', {
  'corpus.txt': 'To be, or not to be, that is the question.\n'.repeat(100),
  'pairs.tsv': Array.from({ length: 60 }, (_, i) => `${i} and ${i + 1}\t${i + 1} und ${i}\n`).join(''),
  'other.txt': 'Is that a question?\n'.repeat(20),
});
const small = [
  '--layers',
  '1',
  '--d-model',
  '16',
  '--heads',
  '2',
  '--context',
  '16',
  '--batch-tokens',
  '128',
  '--threads',
  '1',
  '--seed',
  '3',
];
const trained = (name, ...args) => {
  const out = join(scratch, name);
  return { out, args: ['train', join(corpus, 'corpus.txt'), '--out', out, ...small, ...args] };
};

test('train makes a model that can be loaded, and tells how it goes', async () => {
  const { out, args } = trained('char', '--steps', '20', '--eval-every', '10', '--sample-every', '20', '--prompt', 'To be');
  const { status, stdout, stderr } = await run(args);
  assert.equal(status, 0, stderr);
  assert.match(stderr, /^gpt2, [\d,]+ weights, 21 tokens, 1 threads$/m);
  assert.match(stderr, /^step 1\/20, loss 3\.\d{3}, [\d,]+ tokens\/s, 0:\d\d left$/m);
  assert.match(stderr, /^step 10\/20, loss \d\.\d{3}, held out \d\.\d{3}, /m);
  assert.match(stderr, /^.*char: 20 steps, loss \d\.\d{3}, held out \d\.\d{3}$/m);
  assert.match(stdout, /^--- step 20\nTo be[\s\S]*\n---\n$/);
  const files = ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json'];
  assert.deepEqual(
    files.filter((file) => !readdirSync(out).includes(file)),
    [],
  );
  const { model_type, n_layer, n_embd, n_positions, vocab_size } = JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
  assert.deepEqual([model_type, n_layer, n_embd, n_positions, vocab_size], ['gpt2', 1, 16, 16, 21]);
  const written = await run(['To be', '--model', out, '--max-new-tokens', '5', '--json']);
  assert.equal(JSON.parse(written.stdout).tokenIds.length, 5, written.stderr);
});

test('train by passes over a small text: the rise is as short as they are', async () => {
  const { args } = trained('passes', '--epochs', '1', '--no-eval');
  const { status, stderr } = await run(args);
  assert.equal(status, 0, stderr);
  assert.match(stderr, /passes: \d+ steps, loss/);
});

test('an interrupted training is saved and gone on with, as if nothing had been', async () => {
  const whole = trained('whole', '--steps', '120');
  assert.equal((await run(whole.args)).status, 0);
  const cut = trained('cut', '--steps', '120');
  const stopped = await run(cut.args, {
    onStderr: (child, text) => {
      if (!/^step \d/m.test(text) || child.interrupted) return;
      child.interrupted = child.kill('SIGINT');
      // As npx does, to which the terminal sends an interrupt too.
      setTimeout(() => child.kill('SIGINT'), 5);
    },
  });
  assert.equal(stopped.status, 130, stopped.stderr);
  const [, step, command] = /saved after step (\d+)\. To go on: npx wasmformer (.*)\n$/.exec(stopped.stderr) ?? assert.fail(stopped.stderr);
  assert.ok(step > 0 && step < 120, step);
  const going = await run(command.split(' '));
  assert.equal(going.status, 0, going.stderr);
  assert.match(going.stderr, new RegExp(`^step ${+step + 1}/120, `, 'm'));
  const weights = ({ out }) => readFileSync(join(out, 'model.safetensors'));
  assert.ok(weights(cut).equals(weights(whole)));
  const over = await run(command.split(' '));
  assert.match(over.stderr, /trained to its end, 120 steps; --steps with more of them goes on/);
  const more = await run([...command.split(' '), '--steps', '130']);
  assert.match(more.stderr, /130 steps, loss/);
});

test('train on pairs and on masked words, with another vocabulary, from a published model, as JSON', async () => {
  const [pairs, text] = ['pairs.tsv', 'corpus.txt'].map((file) => join(corpus, file));
  const train = async (name, ...args) => {
    const out = join(scratch, name);
    const { status, stdout, stderr } = await run([
      'train',
      ...args,
      '--out',
      out,
      '--steps',
      '4',
      '--batch-tokens',
      '128',
      '--threads',
      '1',
    ]);
    assert.equal(status, 0, stderr);
    return { stdout, config: JSON.parse(readFileSync(join(out, 'config.json'), 'utf8')) };
  };
  const size = ['--layers', '1', '--d-model', '16', '--heads', '2', '--context', '32'];
  const translate = await train('translate', pairs, '--preset', 'translate-small', '--tokenizer', 'char', ...size);
  assert.equal(translate.config.model_type, 'transformer');
  assert.match(translate.stdout, /^--- step 4\n/);
  const bert = await train('bert', text, '--preset', 'bert-small', '--no-eval', ...size);
  assert.equal(bert.config.model_type, 'bert');
  const wrong = await run(['train', text, '--out', join(scratch, 'bert'), '--resume', '--prompt', 'To']);
  assert.deepEqual([wrong.status, /writes no samples/.test(wrong.stderr)], [2, true]);
  const again = await run(['train', text, '--out', join(scratch, 'bert'), '--resume', '--steps', '6']);
  assert.equal(again.status, 0, again.stderr);
  const llama = await train(
    'llama',
    text,
    '--preset',
    'llama-small',
    '--vocab-size',
    '270',
    '--eval',
    join(corpus, 'other.txt'),
    '--json',
    ...size,
  );
  assert.deepEqual([llama.config.model_type, llama.config.vocab_size], ['llama', 270]);
  const steps = llama.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  assert.deepEqual(
    steps.map(({ step }) => step),
    [1, 2, 3, 4],
  );
  assert.ok(steps[3].evalLoss > 0 && steps[0].tokensPerSecond > 0);
  const { config } = await train('tuned', text, '--model', model, '--lr', '0.001', '--max-length', '32');
  assert.equal(config.model_type, 'llama');
});

test('mistakes in train: exit code 2, the reason on stderr, nothing written', async () => {
  const text = join(corpus, 'corpus.txt');
  const out = join(scratch, 'never');
  for (const [args, message] of [
    [[], /expected a text file/],
    [[text], /expected --out FOLDER/],
    [[join(corpus, 'none.txt'), '--out', out], /none\.txt: no such file/],
    [[text, '--out', out, '--preset', 'char-tiny'], /--preset: expected one of char-small, .*, got 'char-tiny'/],
    [[text, '--out', out, '--layer', '2'], /Unknown option '--layer': the nearest known is '--layers'/],
    [[text, '--out', out, '--layers', '0'], /--layers: expected an integer from 1/],
    [[text, '--out', out, '--steps', 'many'], /steps: expected an integer from 1 .* got "many"/],
    [[text, '--out', out, '--dropout', '1'], /dropout: expected a number >= 0 and < 1, got 1/],
    [[text, '--out', out, '--lr', 'x'], /learningRate: expected a number >= 0/],
    [[text, '--out', out, '--lr', ''], /learningRate: expected a number >= 0.*, got ""/],
    [[text, '--out', text], /--out: expected a folder that can be written to, got .*corpus\.txt \(EEXIST\)/],
    [[text, '--out', '/proc/none/model'], /--out: expected a folder that can be written to/],
    [[text, '--out', out, '--tokenizer', 'wordpiece'], /--tokenizer: expected char, byte, bpe for char-small, got 'wordpiece'/],
    [[text, '--out', out, '--resume'], /--resume: expected a folder that a training was saved in/],
    [[text, '--out', out, '--resume', '--heads', '2'], /--heads belongs to a new model/],
    [[text, '--out', out, '--model', model, '--preset', 'bpe-small'], /--preset belongs to a new model: it cannot be given with --model/],
    [[text, '--out', out, '--no-eval', '--eval-every', '3'], /--no-eval/],
    [[text, '--out', model], /holds a model already; --resume goes on with it/],
    [['--out', out, '--help-me'], /Unknown option '--help-me'/],
  ]) {
    const { status, stdout, stderr } = await run(['train', ...args]);
    assert.deepEqual([status, stdout], [2, ''], stderr);
    assert.match(stderr, message);
    assert.match(stderr, /wasmformer train --help/);
  }
  assert.match((await run(['--threads', '1', 'train', text])).stderr, /expected 'train' before its options/);
  assert.match((await run(['train', '--help'])).stdout, /--preset NAME[\s\S]*char-small[\s\S]*--batch-tokens/);
});
