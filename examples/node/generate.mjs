// Continues a prompt, streaming: node examples/node/generate.mjs [prompt] [model]
import { defaultModel, load } from 'wasmformer';

if (/^(-h|--help)$/.test(process.argv[2])) {
  console.log('Usage: node examples/node/generate.mjs [prompt] [model]');
  process.exit();
}

const [prompt = 'It was a dark night, and', model = defaultModel] = process.argv.slice(2);

const lm = await load(model);
process.stdout.write(prompt);
const stream = lm.generate(prompt, { maxNewTokens: 300, temperature: 0.8, seed: 1 });
for await (const { text } of stream) process.stdout.write(text);

const { tokenIds, finishReason } = await stream.result;
console.log(`\n\n${tokenIds.length} tokens, ended by ${finishReason}`);
await lm.dispose();
