// How likely does the model find these texts, and which of their characters surprise it? node examples/node/score.mjs
import { defaultModel, load } from 'wasmformer';

if (/^(-h|--help)$/.test(process.argv[2])) {
  console.log('Usage: node examples/node/score.mjs');
  process.exit();
}

const texts = ['The whale swam away from the ship.', 'The whale away the swam ship from.', 'Teh whlae swma awya fmor teh shpi.'];

const lm = await load(defaultModel);
for (const [i, { tokenIds, logprobs, perplexity }] of (await lm.score(texts)).entries()) {
  const names = await lm.decode(tokenIds.map((id) => [id]));
  const surprising = names
    .map((name, t) => ({ name, probability: Math.exp(logprobs[t]) }))
    .filter(({ probability }) => probability < 0.02)
    .map(({ name, probability }) => `'${name}' ${(100 * probability).toFixed(1)} %`);
  console.log(`${texts[i]}\n  perplexity ${perplexity.toFixed(2)}; least expected: ${surprising.join(', ') || 'nothing'}\n`);
}
await lm.dispose();
