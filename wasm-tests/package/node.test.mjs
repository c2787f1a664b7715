import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { installPackage, root, shippedModel } from './install.mjs';

let installed;
before(async () => {
  installed = await installPackage();
  // A folder whose name needs escaping in an address, as users have them.
  cpSync(shippedModel(), join(installed.folder, 'my model #1'), { recursive: true });
});
after(() => installed?.remove());

/** Runs a script in the folder where the package is installed: `{ stdout, stderr, seconds }`; it must end by itself with code 0. */
function runScript(text, { seconds = 60, args = [] } = {}) {
  writeFileSync(join(installed.folder, 'script.mjs'), text);
  return runProgram([...args, 'script.mjs'], seconds);
}

function runProgram(args, seconds = 60) {
  const start = performance.now();
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, args, {
    cwd: installed.folder,
    encoding: 'utf8',
    timeout: seconds * 1000,
    killSignal: 'SIGKILL',
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  assert.equal(signal, null, `ended by ${signal} after ${seconds} s\n${stdout}\n${stderr}`);
  assert.equal(status, 0, `exit code ${status}\n${stdout}\n${stderr}`);
  return { stdout, stderr, seconds: (performance.now() - start) / 1000 };
}

const generation = `
  const stream = lm.generate('It was a ', { maxNewTokens: 24, temperature: 0.8, seed: 7 });
  let joined = '';
  let pieces = 0;
  for await (const piece of stream) { joined += piece.text; pieces += 1; }
  const { text, tokenIds, finishReason } = await stream.result;
  if (joined !== text) throw new Error('the pieces do not join to the text');
  if (pieces !== tokenIds.length) throw new Error('not one piece a token');
  console.log(JSON.stringify({ text, tokens: tokenIds.length, finishReason }));
`;

test('imports and generates', () => {
  const { stdout, stderr } = runScript(`
    import { load } from 'wasmformer';
    const lm = await load('./my model #1');
    ${generation}
    await lm.dispose();
  `);
  const { text, tokens, finishReason } = JSON.parse(stdout);
  assert.equal(finishReason, 'length');
  assert.equal(tokens, 24);
  assert.ok(text.length > 0);
  assert.equal(stderr, '', 'nothing is printed');
});

test('a worker and the calling thread give the same text', () => {
  const texts = ['true', 'false'].map(
    (worker) =>
      runScript(`
    import { load } from 'wasmformer';
    const lm = await load('./my model #1', { worker: ${worker} });
    ${generation}
    await lm.dispose();
  `).stdout,
  );
  assert.equal(texts[0], texts[1]);
});

test('a script that forgets dispose ends by itself', () => {
  for (const worker of [true, false]) {
    runScript(
      `
      import { load } from 'wasmformer';
      const lm = await load('./my model #1', { worker: ${worker} });
      ${generation}
    `,
      { seconds: 30 },
    );
  }
});

test('a script that leaves a generation in the middle ends by itself', () => {
  runScript(
    `
    import { load } from 'wasmformer';
    const lm = await load('./my model #1');
    for await (const piece of lm.generate('It was a ', { maxNewTokens: 10000 })) break;
  `,
    { seconds: 30 },
  );
});

test('a script that does not wait for its load ends by itself', () => {
  runScript(
    `
    import { load } from 'wasmformer';
    load('./my model #1');
  `,
    { seconds: 30 },
  );
});

test('`await using` gives the memory back', () => {
  // Node 20 has the symbol but not the syntax.
  runScript(`
    import { load } from 'wasmformer';
    const lm = await load('./my model #1');
    await lm[Symbol.asyncDispose]();
    await lm.dispose();
    let code;
    try { await lm.generate('x').result; } catch (error) { code = error.code; }
    if (code !== 'disposed') throw new Error('expected disposed, got ' + code);
  `);
});

test('the command-line program generates, and describes a folder', () => {
  const cli = join('node_modules/.bin/wasmformer');
  const { stdout } = runProgram([
    cli,
    'It was a ',
    '--model',
    './my model #1',
    '--max-new-tokens',
    '24',
    '--temperature',
    '0.8',
    '--seed',
    '7',
  ]);
  assert.ok(stdout.trim().length > 10, stdout);
  const { stdout: info } = runProgram([cli, 'info', './my model #1']);
  assert.match(info, /llama/i);
  assert.match(info, /param/i);
  assert.match(info, /f32/i);
});

test('the models in the package are exported, as constants and by name', () => {
  const { stdout } = runScript(`
    import { readFileSync } from 'node:fs';
    import { load, pinyinModel } from 'wasmformer';
    const config = new URL(import.meta.resolve('wasmformer/examples/models/pinyin/config.json'));
    const { model_type: type } = JSON.parse(readFileSync(config));
    const mt = await load(pinyinModel, { offline: true });
    const { text, tokens, sourceTokens, crossAttentions: [{ shape }] } = await mt.translate('银行行长', { attentions: true });
    console.log(JSON.stringify({ type, text, shape, tokens: tokens.length, sources: sourceTokens.length }));
    await mt.dispose();
  `);
  // The last row has read the last token and writes none.
  assert.deepEqual(JSON.parse(stdout), { type: 'transformer', text: 'yín háng háng zhǎng', shape: [4, 6, 5], tokens: 5, sources: 5 });
});

test('the types are complete without those of Node, in every resolution that has exports', () => {
  const app = join(installed.folder, 'types');
  mkdirSync(app, { recursive: true });
  writeFileSync(
    join(app, 'use.ts'),
    `
    import { type Answer, type AnswerOptions, load, WasmformerError } from 'wasmformer';
    export async function use(signal: AbortSignal): Promise<string> {
      const lm = await load('org/name', { onProgress: (progress) => void progress, signal });
      try {
        const stream = lm.generate('text', { maxNewTokens: 3, topP: 0.9, seed: 1, signal });
        for await (const piece of stream) { const text: string = piece.text; const id: number = piece.tokenId; void text; void id; }
        const { text, finishReason } = await stream.result;
        const reason: string = finishReason;
        void reason;
        return text;
      } catch (error) {
        if (error instanceof WasmformerError) return error.code;
        throw error;
      } finally {
        await lm.dispose();
      }
    }
    // @ts-expect-error: an unknown option is a mistake that the types show
    load('org/name', { noSuchOption: 1 });
    export async function answers(n: number, options: AnswerOptions): Promise<void> {
      const lm = await load('org/name');
      const one: Answer = await lm.answer('q', 'c');
      const best: Answer = await lm.answer('q', 'c', { topK: 1, impossible: true });
      const three: Answer[] = await lm.answer('q', 'c', { topK: 3, impossible: true });
      // @ts-expect-error: one or several
      const many: Answer[] = await lm.answer('q', 'c', { topK: n });
      // @ts-expect-error: one or several
      const any: Answer = await lm.answer('q', 'c', options);
      const [{ logits, startLogits }] = await lm.forward({ inputIds: [[1]] });
      // @ts-expect-error: a model for questions has none
      void logits.shape;
      void [one, best, three, many, any, startLogits?.shape];
    }
  `,
  );
  for (const [module, moduleResolution] of [
    ['ESNext', 'Bundler'],
    ['NodeNext', 'NodeNext'],
  ]) {
    writeFileSync(
      join(app, 'tsconfig.json'),
      JSON.stringify({
        compilerOptions: {
          module,
          moduleResolution,
          target: 'ES2022',
          lib: ['ES2022', 'DOM', 'DOM.AsyncIterable'],
          types: [],
          strict: true,
          skipLibCheck: false,
          noEmit: true,
        },
        include: ['use.ts'],
      }),
    );
    const { status, stdout } = spawnSync(join(root, 'node_modules/.bin/tsc'), ['-p', app], { encoding: 'utf8' });
    assert.equal(status, 0, `${moduleResolution}: ${stdout}`);
  }
});
