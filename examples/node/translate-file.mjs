// Translates a file line by line, each line as soon as it is done: node examples/node/translate-file.mjs [file] [model]
// The model may be any on the Hub that translates one pair of languages, Helsinki-NLP/opus-mt-en-de for instance.
import { open } from 'node:fs/promises';
import { load, pinyinModel } from 'wasmformer';

if (/^(-h|--help)$/.test(process.argv[2])) {
  console.log('Usage: node examples/node/translate-file.mjs [file] [model]');
  process.exit();
}

const [file, model = pinyinModel] = process.argv.slice(2);

const mt = await load(model);
const lines = file ? (await open(file)).readLines() : ['银行行长也说，孩子们都长大了。', '', '他还没有还我那本书。'];
const began = performance.now();
let tokens = 0;
for await (const line of lines) {
  const { text, tokenIds, notes = [] } = await mt.translate(line);
  console.log(text);
  for (const note of notes) console.error(`  (${note})`);
  tokens += tokenIds.length;
}
const seconds = (performance.now() - began) / 1000;
console.error(`${tokens} tokens in ${seconds.toFixed(1)} seconds`);
await mt.dispose();
