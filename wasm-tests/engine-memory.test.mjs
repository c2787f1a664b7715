// Loading a 500 MB file of float32 weights: the process peaks at no more than 1.15 times its size beyond an empty one.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, statSync, writeFileSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { llama } from './support/tiny.mjs';

const folder = mkdtempSync(join(tmpdir(), 'wasmformer-memory-'));
after(() => rmSync(folder, { recursive: true }));

const config = {
  hidden_size: 1024,
  intermediate_size: 4096,
  num_hidden_layers: 6,
  num_attention_heads: 16,
  num_key_value_heads: 16,
  vocab_size: 12000,
  max_position_embeddings: 2048,
};
const file = join(folder, 'model.safetensors');
{
  const header = {};
  let offset = 0;
  const files = llama(
    (name, shape) => {
      const size = shape.reduce((a, b) => a * b, 1) * 4;
      header[name] = { dtype: 'F32', shape, data_offsets: [offset, (offset += size)] };
      return new Float32Array(0);
    },
    { config },
  );
  const text = Buffer.from(JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.length));
  const handle = openSync(file, 'w');
  writeSync(handle, Buffer.concat([prefix, text]));
  // The weights are a hole in the file: zeros that take no room on the disk.
  ftruncateSync(handle, 8 + text.length + offset);
  closeSync(handle);
  for (const name of ['config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer_config.json'])
    writeFileSync(join(folder, name), files[name]);
}
const { size } = statSync(file);

/** The most memory a script's process held, in bytes (Node reports kilobytes on every platform). */
function peak(text) {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    ['--input-type=module', '-e', `${text}\nconsole.log(process.resourceUsage().maxRSS);`],
    { encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  return Number(stdout.trim().split('\n').at(-1)) * 1024;
}

test(`the file has ${(size / 1e6).toFixed(0)} MB`, () => assert.ok(size > 490e6 && size < 560e6));

for (const worker of [true, false]) {
  test(worker ? 'in a worker' : 'in process', () => {
    const empty = peak('');
    const loaded = peak(`
      import { load } from ${JSON.stringify(new URL('../dist/node.js', import.meta.url).href)};
      const lm = await load(${JSON.stringify(folder)}, { worker: ${worker} });
      const { total } = await lm.memory();
      if (total < ${size}) throw new Error('not loaded');`);
    const ratio = (loaded - empty) / size;
    assert.ok(ratio <= 1.15, `${((loaded - empty) / 1e6).toFixed(0)} MB, ${ratio.toFixed(3)} times the file`);
  });
}
