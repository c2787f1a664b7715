// Finds the passages of a folder's texts that are nearest in meaning to a question:
// node examples/node/search.mjs [folder] [question] [model]
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { load } from 'wasmformer';

if (/^(-h|--help)$/.test(process.argv[2])) {
  console.log('Usage: node examples/node/search.mjs [folder] [question] [model]');
  process.exit();
}

const [folder = 'docs', question = 'How are downloads kept?', model = 'sentence-transformers/all-MiniLM-L6-v2'] = process.argv.slice(2);

// Passages are what blank lines divide.
const passages = [];
for (const name of (await readdir(folder, { recursive: true })).sort()) {
  if (!/\.(md|txt)$/.test(name)) continue;
  const parts = (await readFile(join(folder, name), 'utf8')).split(/\n\s*\n/);
  for (const text of parts) if (text.trim() !== '') passages.push({ name, text: text.trim() });
}

const encoder = await load(model);
// Unit vectors, whose product is the cosine of the angle between them. What is too long for the model is read up to there.
const options = { normalize: true, truncation: true };
const [asked, ...vectors] = await encoder.embed([question, ...passages.map(({ text }) => text)], options);
const found = vectors
  .map((vector, i) => ({ ...passages[i], score: vector.reduce((sum, value, d) => sum + value * asked[d], 0) }))
  .sort((a, b) => b.score - a.score);

for (const { score, name, text } of found.slice(0, 5)) {
  console.log(`${score.toFixed(3)}  ${name}\n       ${text.replace(/\s+/g, ' ').slice(0, 120)}`);
}
await encoder.dispose();
