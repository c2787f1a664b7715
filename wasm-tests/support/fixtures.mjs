// Reads wasm-tests/fixtures: what Hugging Face transformers computed for tiny models.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The folder of all fixtures. */
export const fixtures = process.env.WASMFORMER_FIXTURES ?? fileURLToPath(new URL('../fixtures/', import.meta.url));

export const folderOf = (name) => join(fixtures, name);
/** A file of a fixture, by the fixture's name or its folder. */
export const readJson = (name, file) => JSON.parse(readFileSync(join(resolve(fixtures, name), file), 'utf8'));

/** Every folder of `place` that holds a model and what is expected of it in a form that `holds` accepts. */
export const foldersWhere = (holds, place = fixtures) =>
  readdirSync(place, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && existsSync(join(place, entry.name, 'expected.json')))
    .map((entry) => entry.name)
    .filter((name) => holds(JSON.parse(readFileSync(join(place, name, 'expected.json'), 'utf8'))))
    .sort();

/** Decoder-only models. */
export const modelFolders = foldersWhere((expected) => 'family' in expected);

/** The float32 tensors of a safetensors file, by name: { data, shape }. */
export function readTensors(path) {
  const bytes = readFileSync(path);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [begin, end] = [] } = {}] of Object.entries(header)) {
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
