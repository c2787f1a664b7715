// Reads wasm-tests/fixtures: what Hugging Face transformers computed for tiny models.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The folder of all fixtures. */
export const fixtures = process.env.WASMFORMER_FIXTURES ?? fileURLToPath(new URL('../fixtures/', import.meta.url));

/** Every folder that holds a decoder-only model and what is expected of it: those whose expected.json names a family. */
export const modelFolders = readdirSync(fixtures, { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && existsSync(join(fixtures, entry.name, 'expected.json')))
  .map((entry) => entry.name)
  .filter((name) => 'family' in JSON.parse(readFileSync(join(fixtures, name, 'expected.json'), 'utf8')))
  .sort();

export const folderOf = (name) => join(fixtures, name);
export const readJson = (name, file) => JSON.parse(readFileSync(join(fixtures, name, file), 'utf8'));

/** The float32 tensors of a safetensors file, by name: { data, shape }. */
export function readTensors(path) {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length));
  const tensors = {};
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [begin, end],
    } = {},
  ] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    if (dtype !== 'F32') throw new Error(`${path}: ${name} is ${dtype}`);
    const copy = bytes.subarray(8 + length + begin, 8 + length + end);
    tensors[name] = { shape, data: new Float32Array(Uint8Array.from(copy).buffer) };
  }
  return tensors;
}

/**
 * The largest difference of two equally long lists, as a share of the spread (the standard deviation) of the expected.
 * Numbers that are not finite must be the same ones.
 */
export function relativeError(actual, expected) {
  if (actual.length !== expected.length) throw new Error(`expected ${expected.length} numbers, got ${actual.length}`);
  let sum = 0;
  let squares = 0;
  let worst = 0;
  for (let i = 0; i < expected.length; ++i) {
    if (!Number.isFinite(expected[i]) || !Number.isFinite(actual[i])) {
      if (!Object.is(expected[i], actual[i])) return Number.POSITIVE_INFINITY;
      continue;
    }
    sum += expected[i];
    squares += expected[i] ** 2;
    worst = Math.max(worst, Math.abs(actual[i] - expected[i]));
  }
  const mean = sum / expected.length;
  const spread = Math.sqrt(Math.max(0, squares / expected.length - mean * mean));
  return worst / (spread || Math.abs(mean) || 1);
}
