// The real SmolLM2-135M-Instruct: greedy texts, scores and chat prompts as transformers gives them. WASMFORMER_SMOLLM2 names the folder
// that wasm-tests/python/unpack_smollm2.py made; without it the model is fetched and unpacked.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { load } from '../../dist/node.js';

const root = fileURLToPath(new URL('../../', import.meta.url));
const python = (script, ...args) =>
  execFileSync(process.env.WASMFORMER_PYTHON ?? 'python3', [join(root, 'wasm-tests/python', script), ...args], { stdio: 'inherit' });
const folder = process.env.WASMFORMER_SMOLLM2 ?? join(root, 'build/proof/SmolLM2-135M-Instruct');
if (!existsSync(join(folder, 'expected_smollm2.json'))) python('unpack_smollm2.py', folder);
mkdirSync(join(root, 'build/proof'), { recursive: true });
const answers = join(root, 'build/proof/smollm2.json');
python('ask_smollm2.py', folder, answers);
const { prompts, scores, chats } = JSON.parse(readFileSync(answers, 'utf8'));
const recorded = JSON.parse(readFileSync(join(root, 'wasm-tests/fixtures/smollm2.json'), 'utf8'));

const lm = await load(folder, { worker: false });
after(() => lm.dispose());
const greedy = { maxNewTokens: 64, doSample: false };

for (const { text, messages, inputIds, greedy: wanted, answer, finishReason } of [...recorded.prompts, ...prompts]) {
  const title = text ?? messages.at(-1).content;
  test(`64 greedy tokens: ${title}`, async () => {
    const result = await (text === undefined ? lm.chat(messages, greedy) : lm.generate(text, greedy)).result;
    assert.equal(result.promptTokens, inputIds.length);
    assert.deepEqual(result.tokenIds, wanted);
    assert.equal(result.text, answer);
    if (finishReason) assert.equal(result.finishReason, finishReason);
  });
}

test('scores of two paragraphs', async (t) => {
  for (const { text, inputIds, logprobs, perplexity } of scores) {
    const score = await lm.score(text);
    assert.deepEqual(score.tokenIds, inputIds);
    let worst = 0;
    for (let i = 1; i < logprobs.length; ++i) worst = Math.max(worst, Math.abs(score.logprobs[i] - logprobs[i]));
    t.diagnostic(
      `${inputIds.length} tokens, perplexity ${score.perplexity} for ${perplexity}, log-probabilities ${worst.toExponential(1)} apart`,
    );
    assert.ok(worst < 2e-4);
    assert.ok(Math.abs(score.perplexity - perplexity) < 1e-4 * perplexity);
  }
});

test('chat prompts', async () => {
  for (const { messages, addGenerationPrompt, text, inputIds } of chats) {
    assert.equal(await lm.applyChatTemplate(messages, { addGenerationPrompt }), text);
    assert.deepEqual(await lm.tokenize(text, { addSpecialTokens: false }), inputIds);
  }
});
