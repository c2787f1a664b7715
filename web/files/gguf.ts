import { WasmformerError } from '../errors.ts';
import { brief, type JsonObject, kindOf, shortened } from './json.ts';
import type { ByteSource, ModelFolder } from './source.ts';
import { blockFormats, elementCount, storedBytes, type TensorEntry } from './tensors.ts';

/** What a GGUF file says of itself, and where its tensors lie. */
export interface Gguf {
  /** Values by key, without a prototype; arrays of bytes as a `Uint8Array`. */
  metadata: JsonObject;
  /** Under the file's own names. */
  tensors: Map<string, TensorEntry>;
}

/** Tokens and merges of the largest vocabularies take a tenth of it. */
const kLongestHeader = 2 ** 27;
/** What is read at first: a small model's header, and what a server sends at once. */
const kFirstRead = 2 ** 19;
/** What a DataView calls a value's type, by its number; empty for those that are read otherwise. */
const kKinds = ['Uint8', 'Int8', 'Uint16', 'Int16', 'Uint32', 'Int32', 'Float32', 'Uint8', '', '', 'BigUint64', 'BigInt64', 'Float64'];
const kGetters = kKinds.map((kind) => kind && `get${kind}`);
/** Bytes of a value, at the least: a string has its length in front. */
const kBytes = kKinds.map((kind) => Number(/\d*$/.exec(kind)?.[0] || 64) / 8);
const [kBool, kString, kArray] = [7, 8, 9];
/** Tensor formats by their number in ggml.h; what it no longer has is a question mark. */
const kFormats =
  'F32 F16 Q4_0 Q4_1 ? ? Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 ? ? ? TQ1_0 TQ2_0 ? ? ? MXFP4 NVFP4 Q1_0'.split(
    ' ',
  );

/** More bytes of the header are needed than were read. */
class Short extends Error {}

function bad(where: string, message: string): WasmformerError {
  return new WasmformerError('invalid-file', `[${where}] ${message}`);
}

class Header {
  #at = 0;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #size: number;
  readonly #text = new TextDecoder('utf-8', { ignoreBOM: true });
  /** What messages name: the file, and the key or tensor that is being read. */
  where: string;

  constructor({ name, size }: ByteSource, bytes: Uint8Array) {
    this.where = name;
    this.#size = size;
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  get at(): number {
    return this.#at;
  }

  /** Goes over `count` bytes; where they begin. */
  #take(count: number, what: string): number {
    const begin = this.#at;
    if (count > this.#size - begin)
      throw bad(this.where, `${what}: expected ${count} more bytes, got ${this.#size - begin} (file cut short?)`);
    if (count > kLongestHeader - begin) throw bad(this.where, `${what}: expected a header of at most ${kLongestHeader} bytes`);
    if (count > this.#bytes.length - begin) throw new Short();
    this.#at += count;
    return begin;
  }

  number(type: number, what: string): number {
    const at = this.#take(kBytes[type] as number, what);
    return Number(
      (this.#view as unknown as Record<string, (at: number, little: boolean) => number | bigint>)[kGetters[type] as string]?.(at, true),
    );
  }

  u32(what: string): number {
    return this.number(4, what);
  }

  /** How many things follow, here or later, each of at least `least` bytes. */
  count(what: string, least: number): number {
    const at = this.#at;
    const count = this.number(10, what);
    if (count > (this.#size - this.#at) / least)
      throw bad(this.where, `${what}: expected at most what the file's ${this.#size} bytes hold, got ${this.#view.getBigUint64(at, true)}`);
    return count;
  }

  text(what: string): string {
    const length = this.count(`${what}: length`, 1);
    const begin = this.#take(length, what);
    return this.#text.decode(this.#bytes.subarray(begin, begin + length));
  }

  value(type: number): unknown {
    if (type === kString) return this.text('value');
    if (type !== kArray) {
      if (!kKinds[type]) throw bad(this.where, `type: expected 0 to 12, got ${type}`);
      const value = this.number(type, 'value');
      return type === kBool ? value !== 0 : value;
    }
    const of = this.u32('element type');
    if (of === kArray || (of !== kString && !kKinds[of]))
      throw bad(this.where, `element type: expected a number, truth value or string, got ${of === kArray ? 'arrays in an array' : of}`);
    const count = this.count('elements', kBytes[of] as number);
    if (of < 2) {
      const begin = this.#take(count, 'elements');
      return this.#bytes.slice(begin, begin + count);
    }
    const list: unknown[] = [];
    while (list.length < count) list.push(this.value(of));
    return list;
  }
}

/**
 * The header of a GGUF file, version 2 or 3, little endian: counts, metadata, and the place and format of each tensor
 * (ggml's docs/gguf.md). Every count and length is held against the file's size before anything of that size is made.
 * @throws WasmformerError `invalid-file` naming the key or tensor; `unsupported` for other versions and formats
 */
export async function readGguf(source: ByteSource, signal?: AbortSignal): Promise<Gguf> {
  let bytes = await source.read(0, Math.min(kFirstRead, source.size), signal);
  for (;;) {
    try {
      return parse(source, bytes);
    } catch (reason) {
      if (!(reason instanceof Short)) throw reason;
    }
    const longer = new Uint8Array(Math.min(4 * bytes.length, source.size, kLongestHeader));
    longer.set(bytes);
    longer.set(await source.read(bytes.length, longer.length, signal), bytes.length);
    bytes = longer;
  }
}

function parse(source: ByteSource, bytes: Uint8Array): Gguf {
  const { name } = source;
  const header = new Header(source, bytes);
  if (header.u32('magic') !== 0x46554747) throw bad(name, 'magic: expected GGUF, got other bytes');
  const version = header.u32('version');
  if (version !== 2 && version !== 3) {
    const got = version % 2 ** 16 === 0 ? 'big endian' : version;
    throw new WasmformerError('unsupported', `[${name}] GGUF version: expected 2 or 3, little endian, got ${got}`);
  }
  const tensorCount = header.count('number of tensors', 24);
  const keyCount = header.count('number of keys', 13);
  const metadata: JsonObject = Object.create(null);
  for (let i = 0; i < keyCount; ++i) {
    header.where = `${name}: key ${i}`;
    const key = header.text('name');
    header.where = `${name}: ${shortened(key)}`;
    if (key in metadata) throw bad(header.where, 'expected each key once, got it twice');
    metadata[key] = header.value(header.u32('type'));
  }
  const alignment = metadata['general.alignment'] ?? 32;
  if (typeof alignment !== 'number' || alignment < 1 || Math.log2(alignment) % 1 !== 0)
    throw bad(`${name}: general.alignment`, `expected a power of two, got ${kindOf(alignment)}`);
  const found: { where: string; name: string; dtype: string; shape: number[]; offset: number; length: number }[] = [];
  for (let i = 0; i < tensorCount; ++i) {
    header.where = `${name}: tensor ${i}`;
    const tensor = header.text('name');
    const where = `${name}: ${shortened(tensor)}`;
    header.where = where;
    const rank = header.u32('dimensions');
    if (rank < 1 || rank > 4) throw bad(where, `dimensions: expected 1 to 4, got ${rank}`);
    const shape = Array.from({ length: rank }, () => header.count('dimension', 1 / 8)).reverse();
    const type = header.u32('type');
    const dtype = kFormats[type];
    const offset = header.count('offset', 1);
    if (dtype === undefined) throw bad(where, `type: expected 0 to ${kFormats.length - 1}, got ${type}`);
    const count = elementCount(shape, where);
    const length = storedBytes(dtype, count);
    if (length === undefined) throw new WasmformerError('unsupported', `[${where}] format: ${dtype} (${type}) is not supported`);
    if ((shape.at(-1) as number) % (blockFormats.get(dtype)?.[0] ?? 1) !== 0)
      throw bad(where, `shape: expected rows of whole blocks of ${dtype}, got ${brief(shape)}`);
    if (offset % alignment !== 0) throw bad(where, `offset: expected a multiple of ${alignment}, got ${offset}`);
    found.push({ where, name: tensor, dtype, shape, offset, length });
  }
  const data = Math.ceil(header.at / alignment) * alignment;
  const tensors = new Map<string, TensorEntry>();
  let least = 0;
  for (const { where, name: tensor, dtype, shape, offset, length } of found.sort((a, b) => a.offset - b.offset || a.length - b.length)) {
    if (tensors.has(tensor)) throw bad(where, 'expected each tensor once, got it twice');
    if (offset < least) throw bad(where, `offset: expected at least ${least}, where the tensor before ends, got ${offset} (overlap)`);
    least = offset + length;
    if (data + least > source.size)
      throw bad(where, `offset: expected an end within the file's ${source.size} bytes, got ${data + least} (file cut short?)`);
    tensors.set(tensor, { name: tensor, dtype, shape, source, begin: data + offset, end: data + least });
  }
  return { metadata, tensors };
}

/**
 * A GGUF file of a folder, together with the other parts of one that is split: `...-00001-of-00003.gguf`.
 * @param guarded runs the reading of one file
 * @throws WasmformerError as `readGguf`; `invalid-file` where the parts do not belong together
 */
export async function readGgufParts(
  folder: ModelFolder,
  file: string,
  guarded: <T>(file: string, work: () => Promise<T>) => Promise<T>,
  signal?: AbortSignal,
): Promise<Gguf> {
  const [, begin, , count = '1'] = /^(.*-)(\d{5})-of-(\d{5})\.gguf$/i.exec(file) ?? [];
  let whole: Gguf | undefined;
  for (let part = 0; part < Number(count); ++part) {
    const name = begin === undefined ? file : `${begin}${String(part + 1).padStart(5, '0')}-of-${count}${file.slice(-5)}`;
    const source = await folder.open(name, signal);
    const read = await guarded(name, () => readGguf(source, signal));
    // Browsers open few connections to one host: a part that waits for its turn must not hold one.
    if (begin !== undefined) await source.settle?.(signal);
    const parts = read.metadata['split.count'] ?? 1;
    const number = read.metadata['split.no'] ?? 0;
    if (parts !== Number(count) || number !== part) {
      const expected = `part ${part + 1} of ${Number(count)}, as its name says`;
      throw bad(`${folder.name}: ${name}`, `split.count: expected ${expected}, got part ${Number(number) + 1} of ${kindOf(parts)}`);
    }
    whole ??= { metadata: read.metadata, tensors: new Map() };
    for (const [key, entry] of read.tensors) {
      if (whole.tensors.has(key)) throw bad(`${folder.name}: ${name}`, `${shortened(key)}: expected each tensor once, got it twice`);
      whole.tensors.set(key, entry);
    }
  }
  if (whole === undefined) throw bad(`${folder.name}: ${file}`, 'name: expected the number of parts, got 0');
  const all = whole.metadata['split.tensors.count'] ?? whole.tensors.size;
  if (all !== whole.tensors.size)
    throw bad(`${folder.name}: ${file}`, `split.tensors.count: expected ${kindOf(all)} tensors in all parts, got ${whole.tensors.size}`);
  return whole;
}
