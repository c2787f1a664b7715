// Draws which characters one attention head looks at, in the terminal: node examples/node/look-inside.mjs [layer] [head]
import { defaultModel, load } from 'wasmformer';

if (/^(-h|--help)$/.test(process.argv[2])) {
  console.log('Usage: node examples/node/look-inside.mjs [layer] [head]');
  process.exit();
}

const [layer = 0, head = 0] = process.argv.slice(2).map(Number);
const text = 'Call me Ishmael. Some years ago';

const lm = await load(defaultModel);
const ids = await lm.tokenize(text);
const names = (
  await lm.decode(
    ids.map((id) => [id]),
    { skipSpecialTokens: false },
  )
).map((name) => name.trim().slice(0, 1) || '·');
const [{ logits, attentions }] = await lm.forward({ inputIds: [ids] }, { attentions: { layers: [layer], heads: [head] } });

const [, , keys] = attentions[0].shape;
console.log(`Layer ${layer}, head ${head}. A row looks at the columns; darker is more.\n\n   ${names.join('')}`);
for (let t = 0; t < ids.length; ++t) {
  const row = attentions[0].data.subarray(t * keys, t * keys + t + 1);
  console.log(` ${names[t]} ${Array.from(row, (weight) => ' ░▒▓█'[Math.min(4, Math.floor(6 * Math.sqrt(weight)))]).join('')}`);
}

const [, vocabulary] = logits.shape;
const last = logits.data.subarray((ids.length - 1) * vocabulary);
const best = Array.from(last.keys())
  .sort((a, b) => last[b] - last[a])
  .slice(0, 5);
console.log(`\nAfter it: ${(await lm.decode(best.map((id) => [id]))).map((name) => `'${name}'`).join(', ')}`);
await lm.dispose();
