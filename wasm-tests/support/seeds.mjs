// Tokens drawn with fixed seeds, as JSON: the same in every engine. Runs in Node and in a page.
import { random } from './tiny.mjs';

export async function drawTokens(load, options) {
  const drawn = [];
  for (const [model, settings] of [
    [1, { temperature: 1.5 }],
    [2, { topK: 20, topP: 0.9, repetitionPenalty: 1.2 }],
    [3, { temperature: 0.7, minP: 0.02, typicalP: 0.95 }],
  ]) {
    const lm = await load(random(model), options);
    for (const seed of [0, 1, 2 ** 40 + 3]) {
      const { tokenIds, score } = await lm.generate('Once upon a time', { ...settings, seed, maxNewTokens: 40, eosTokenId: null }).result;
      drawn.push({ model, seed, tokenIds, score });
    }
    await lm.dispose();
  }
  return drawn;
}
