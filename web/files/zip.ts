import { WasmformerError } from '../errors.ts';
import { decodeText } from './json.ts';
import { type ByteSource, checkRange, fill } from './source.ts';

const kEnd = 0x06054b50;
const kEnd64 = 0x06064b50;
const kLocator64 = 0x07064b50;
const kCentral = 0x02014b50;
const kLocal = 0x04034b50;
const kMostEntries = 100_000;
const kLargestDirectory = 64 * 2 ** 20;

function bad(name: string, message: string): WasmformerError {
  return new WasmformerError('invalid-file', `[${name}] zip: ${message}`);
}

function u64(view: DataView, at: number): number {
  return view.getUint32(at + 4, true) * 2 ** 32 + view.getUint32(at, true);
}

/**
 * One stored entry, as a file of its own. Where its bytes begin stands in its local header only, which is read when the
 * entry is: in a download that goes front to back it passes by anyway.
 */
class ZipEntrySource implements ByteSource {
  readonly name: string;
  readonly size: number;
  readonly within: { source: ByteSource; offset: number };
  readonly #limit: number;
  #begin: Promise<number> | undefined;

  constructor(archive: ByteSource, name: string, size: number, offset: number, limit: number) {
    this.name = name;
    this.size = size;
    this.within = { source: archive, offset };
    this.#limit = limit;
  }

  async *stream(begin: number, end: number, signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    checkRange(this, begin, end);
    const at = await this.#locate(signal);
    yield* this.within.source.stream(at + begin, at + end, signal);
  }

  async read(begin: number, end: number, signal?: AbortSignal): Promise<Uint8Array> {
    checkRange(this, begin, end);
    const at = await this.#locate(signal);
    return this.within.source.read(at + begin, at + end, signal);
  }

  async readInto(target: Uint8Array, begin: number, signal?: AbortSignal): Promise<void> {
    checkRange(this, begin, begin + target.length);
    const at = await this.#locate(signal);
    await fill(this.within.source, target, at + begin, signal);
  }

  complete(signal?: AbortSignal): Promise<void> {
    return this.within.source.complete?.(signal) ?? Promise.resolve();
  }

  #locate(signal: AbortSignal | undefined): Promise<number> {
    this.#begin ??= this.#readLocal(signal).catch((reason) => {
      this.#begin = undefined;
      throw reason;
    });
    return this.#begin;
  }

  async #readLocal(signal: AbortSignal | undefined): Promise<number> {
    const { source, offset } = this.within;
    const header = await source.read(offset, offset + 30, signal);
    const view = new DataView(header.buffer, header.byteOffset, 30);
    if (view.getUint32(0, true) !== kLocal) throw bad(source.name, `${this.name}: expected a local header at ${offset}`);
    if (view.getUint16(8, true) !== 0) throw bad(source.name, `${this.name}: expected a stored entry, got a compressed one`);
    const begin = offset + 30 + view.getUint16(26, true) + view.getUint16(28, true);
    if (begin + this.size > this.#limit)
      throw bad(source.name, `${this.name}: expected ${this.size} bytes before the next entry, got ${this.#limit - begin}`);
    return begin;
  }
}

/**
 * The entries of a zip archive whose entries are all stored, as PyTorch writes it; zip64 too. Nothing is inflated, so
 * no archive can grow, and entries must not overlap.
 * @throws WasmformerError `invalid-file`
 */
export async function readZip(source: ByteSource, signal?: AbortSignal): Promise<Map<string, ByteSource>> {
  const { name, size } = source;
  // The end record is the last thing in the file, but for a comment of at most 65535 bytes.
  let tailBegin = Math.max(0, size - 22);
  let tail = await source.read(tailBegin, size, signal);
  let at = findEnd(tail);
  if (at < 0 && size > 22) {
    tailBegin = Math.max(0, size - 22 - 65_535);
    tail = await source.read(tailBegin, size, signal);
    at = findEnd(tail);
  }
  if (at < 0) throw bad(name, 'expected an end record (file cut short, or no zip archive?)');
  const end = new DataView(tail.buffer, tail.byteOffset + at, 22);
  let count = end.getUint16(10, true);
  let length = end.getUint32(12, true);
  let begin = end.getUint32(16, true);
  let directoryEnd = tailBegin + at;
  if (count === 0xffff || length === 0xffffffff || begin === 0xffffffff) {
    if (directoryEnd < 20) throw bad(name, 'expected a zip64 locator');
    const locator = await source.read(directoryEnd - 20, directoryEnd, signal);
    const where = new DataView(locator.buffer, locator.byteOffset, 20);
    if (where.getUint32(0, true) !== kLocator64) throw bad(name, 'expected a zip64 locator');
    const at64 = u64(where, 8);
    if (!(at64 <= directoryEnd - 20 - 56)) throw bad(name, `zip64 end record: expected inside the file, got ${at64}`);
    const record = await source.read(at64, at64 + 56, signal);
    const view = new DataView(record.buffer, record.byteOffset, 56);
    if (view.getUint32(0, true) !== kEnd64) throw bad(name, 'expected a zip64 end record');
    count = u64(view, 32);
    length = u64(view, 40);
    begin = u64(view, 48);
    directoryEnd = at64;
  }
  if (count > kMostEntries) throw bad(name, `entries: expected at most ${kMostEntries}, got ${count}`);
  if (length > kLargestDirectory || !(begin + length <= directoryEnd)) {
    throw bad(name, `directory: expected within the first ${directoryEnd} bytes, got ${length} at ${begin}`);
  }
  return parseDirectory(source, await source.read(begin, begin + length, signal), count, begin);
}

function findEnd(tail: Uint8Array): number {
  const view = new DataView(tail.buffer, tail.byteOffset, tail.length);
  for (let at = tail.length - 22; at >= 0; --at) {
    if (view.getUint32(at, true) === kEnd && at + 22 + view.getUint16(at + 20, true) === tail.length) return at;
  }
  return -1;
}

function parseDirectory(source: ByteSource, bytes: Uint8Array, count: number, directoryBegin: number): Map<string, ByteSource> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const found: { name: string; size: number; offset: number }[] = [];
  let at = 0;
  for (let i = 0; i < count; ++i) {
    if (at + 46 > bytes.length || view.getUint32(at, true) !== kCentral)
      throw bad(source.name, `directory: expected ${count} entries, got ${i}`);
    const flags = view.getUint16(at + 8, true);
    const method = view.getUint16(at + 10, true);
    let packed = view.getUint32(at + 20, true);
    let size = view.getUint32(at + 24, true);
    const nameLength = view.getUint16(at + 28, true);
    const extraLength = view.getUint16(at + 30, true);
    const commentLength = view.getUint16(at + 32, true);
    let offset = view.getUint32(at + 42, true);
    const next = at + 46 + nameLength + extraLength + commentLength;
    if (next > bytes.length) throw bad(source.name, 'directory: cut short');
    const name = decodeText(bytes.subarray(at + 46, at + 46 + nameLength), source.name);
    if (name.length > 200) throw bad(source.name, `directory: expected names of at most 200 characters, got ${name.length}`);
    for (let extra = at + 46 + nameLength, stop = extra + extraLength; extra + 4 <= stop; ) {
      const body = extra + 4;
      const bodyEnd = body + view.getUint16(extra + 2, true);
      if (bodyEnd > stop) break;
      if (view.getUint16(extra, true) === 1) {
        let field = body;
        const wide = (narrow: number): number => {
          if (narrow !== 0xffffffff) return narrow;
          if (field + 8 > bodyEnd) throw bad(source.name, `${name}: zip64 field: cut short`);
          field += 8;
          return u64(view, field - 8);
        };
        size = wide(size);
        packed = wide(packed);
        offset = wide(offset);
      }
      extra = bodyEnd;
    }
    if ((flags & 1) !== 0) throw bad(source.name, `${name}: expected no encryption`);
    if (method !== 0) throw bad(source.name, `${name}: expected a stored entry, got compression method ${method}`);
    if (packed !== size) throw bad(source.name, `${name}: expected a stored entry to take ${size} bytes, got ${packed}`);
    if (!(offset + 30 + size <= directoryBegin))
      throw bad(source.name, `${name}: expected inside the file, got ${size} bytes at ${offset}`);
    found.push({ name, size, offset });
    at = next;
  }
  const entries = new Map<string, ByteSource>();
  found.sort((a, b) => a.offset - b.offset);
  found.forEach(({ name, size, offset }, i) => {
    if (entries.has(name)) throw bad(source.name, `${name}: expected once, got twice`);
    const limit = found[i + 1]?.offset ?? directoryBegin;
    if (offset + 30 + size > limit) throw bad(source.name, `${name}: overlaps the next entry`);
    entries.set(name, new ZipEntrySource(source, name, size, offset, limit));
  });
  return entries;
}
