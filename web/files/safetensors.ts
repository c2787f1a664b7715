import { WasmformerError } from '../errors.ts';
import { brief, decodeText, duplicateKey, isObject, kindOf, own, parseJson, shortened } from './json.ts';
import { type ByteSource, safePath } from './source.ts';
import { dtypeBytes, elementCount, type TensorEntry } from './tensors.ts';

/** The format's own limit. */
const kLongestHeader = 100_000_000;
/** Known to safetensors, smaller than a byte an element. */
const kSubByte = new Set(['F4', 'F6_E2M3', 'F6_E3M2']);

function bad(where: string, message: string): WasmformerError {
  return new WasmformerError('invalid-file', `[${where}] ${message}`);
}

/**
 * The tensors of a .safetensors file: 8 bytes of header length (little endian), that many of JSON, then the data.
 * Everything is checked against the file's size before anything of that size is allocated.
 * @throws WasmformerError `invalid-file` naming the file and the tensor
 */
export async function readSafetensors(source: ByteSource, signal?: AbortSignal): Promise<Map<string, TensorEntry>> {
  const { name, size } = source;
  if (size < 8) throw bad(name, `length: expected a header of at least 8 bytes, got a file of ${size}`);
  const prefix = await source.read(0, 8, signal);
  const view = new DataView(prefix.buffer, prefix.byteOffset, 8);
  const length = view.getUint32(4, true) * 2 ** 32 + view.getUint32(0, true);
  if (length > kLongestHeader)
    throw bad(name, `header length: expected at most ${kLongestHeader} bytes, got ${length} (not a safetensors file?)`);
  if (length > size - 8)
    throw bad(name, `header length: expected at most the ${size - 8} bytes that follow, got ${length} (file cut short?)`);
  return parseHeader(source, await source.read(8, 8 + length, signal), 8 + length);
}

function parseHeader(source: ByteSource, bytes: Uint8Array, dataBegin: number): Map<string, TensorEntry> {
  const { name } = source;
  if (bytes[0] !== 0x7b) throw bad(name, 'header: expected a JSON object');
  const text = decodeText(bytes, name);
  const header = parseJson(text, name);
  if (!isObject(header)) throw bad(name, `header: expected a JSON object, got ${kindOf(header)}`);
  const twice = duplicateKey(text);
  if (twice !== null) throw bad(name, `header: expected each key once, got ${brief(twice)} twice`);

  const dataLength = source.size - dataBegin;
  const tensors = new Map<string, TensorEntry>();
  for (const [key, value] of Object.entries(header)) {
    if (key === '__metadata__') continue;
    const where = `${name}: ${shortened(key)}`;
    if (!isObject(value)) throw bad(where, `entry: expected an object, got ${kindOf(value)}`);
    const dtype = own(value, 'dtype');
    const shape = own(value, 'shape');
    const offsets = own(value, 'data_offsets');
    if (typeof dtype !== 'string') throw bad(where, `dtype: expected a string, got ${kindOf(dtype)}`);
    if (kSubByte.has(dtype)) throw new WasmformerError('unsupported', `[${where}] dtype: ${dtype} is not supported`);
    const width = dtypeBytes.get(dtype);
    if (width === undefined) throw bad(where, `dtype: expected one of ${[...dtypeBytes.keys()].join(', ')}, got ${kindOf(dtype)}`);
    if (!Array.isArray(shape)) throw bad(where, `shape: expected an array, got ${kindOf(shape)}`);
    const count = elementCount(shape, where);
    const [begin, end] = Array.isArray(offsets) && offsets.length === 2 ? (offsets as unknown[]) : [undefined, undefined];
    if (!isOffset(begin) || !isOffset(end)) throw bad(where, `data_offsets: expected two offsets, got ${brief(offsets)}`);
    if (begin > end) throw bad(where, `data_offsets: expected begin <= end, got ${begin} and ${end}`);
    if (end > dataLength)
      throw bad(where, `data_offsets: expected an end within the ${dataLength} bytes of data, got ${end} (file cut short?)`);
    if (count * width !== end - begin)
      throw bad(where, `data_offsets: expected ${count * width} bytes for ${dtype} ${brief(shape)}, got ${end - begin}`);
    tensors.set(key, { name: key, dtype, shape: shape as number[], source, begin: dataBegin + begin, end: dataBegin + end });
  }

  let at = dataBegin;
  for (const { name: key, begin, end } of [...tensors.values()].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== at)
      throw bad(
        `${name}: ${shortened(key)}`,
        `data_offsets: expected to begin at ${at - dataBegin}, got ${begin - dataBegin} (${begin < at ? 'overlap' : 'gap'})`,
      );
    at = end;
  }
  if (at !== source.size) throw bad(name, `length: expected ${at} bytes, as the tensors add up to, got ${source.size}`);
  return tensors;
}

function isOffset(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0;
}

/**
 * Which file has which tensor, from a `*.index.json`.
 * @throws WasmformerError `invalid-file` for a path that leads out of the folder, a key that stands twice, or no map
 */
export function parseIndex(text: string, where: string): Map<string, string> {
  const index = parseJson(text, where);
  if (!isObject(index)) throw bad(where, `JSON: expected an object, got ${kindOf(index)}`);
  const twice = duplicateKey(text);
  if (twice !== null) throw bad(where, `JSON: expected each key once, got ${brief(twice)} twice`);
  const map = own(index, 'weight_map');
  if (!isObject(map)) throw bad(where, `weight_map: expected an object, got ${kindOf(map)}`);
  const files = new Map<string, string>();
  for (const [tensor, file] of Object.entries(map)) {
    if (typeof file !== 'string') throw bad(where, `weight_map: ${shortened(tensor)}: expected a file name, got ${kindOf(file)}`);
    files.set(tensor, safePath(file, where));
  }
  if (files.size === 0) throw bad(where, 'weight_map: expected at least one tensor');
  return files;
}
