// The real SmolLM2-135M-Instruct as GGUF (Q4_1, its embedding Q8_0): numbers, greedy tokens and ids as transformers' own reading of the
// file gives them. WASMFORMER_GGUF names the file; without it the file is fetched.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../../dist/node.js';
import { relativeError } from '../support/fixtures.mjs';

const root = fileURLToPath(new URL('../../', import.meta.url));
const file = process.env.WASMFORMER_GGUF ?? join(root, 'build/proof/SmolLM2-135M-Instruct-GGUF/model.gguf');
const answers = join(root, 'build/proof/gguf.json');
mkdirSync(join(root, 'build/proof'), { recursive: true });
execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [join(root, 'wasm-tests/python/ask_gguf.py'), file, answers], {
  stdio: 'inherit',
});
const { prompts, logits, chat } = JSON.parse(readFileSync(answers, 'utf8'));

const lm = await load(file, { dtype: 'f32', worker: false });
after(() => lm.dispose());

test('the logits of a prompt', async (t) => {
  const [result] = await lm.forward({ inputIds: [prompts[0].inputIds] });
  const [length, width] = result.logits.shape;
  const error = relativeError(result.logits.data.subarray((length - 1) * width), Float32Array.from(logits));
  t.diagnostic(`${error.toExponential(1)} of the spread`);
  assert.ok(error < 1e-4);
});

for (const { text, inputIds, greedy, smallestLead } of prompts) {
  test(`64 greedy tokens: ${text}`, async (t) => {
    assert.deepEqual(await lm.tokenize(text), inputIds);
    const { tokenIds } = await lm.generate(text, { maxNewTokens: 64, doSample: false }).result;
    t.diagnostic(`the smallest lead is ${smallestLead}`);
    assert.deepEqual(tokenIds, greedy);
  });
}

test('the chat template', async () => {
  assert.equal(
    await lm.applyChatTemplate([{ role: 'user', content: 'What is the capital of France?' }], { addGenerationPrompt: true }),
    chat,
  );
});
