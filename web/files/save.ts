import { WasmformerError } from '../errors.ts';
import type { FilePlatform } from '../platform/files.ts';
import type { SavedFile } from '../types.ts';
import type { JsonObject } from './json.ts';

/** A file to be written, front to back. */
export interface Output {
  name: string;
  /** Bytes. */
  size: number;
  chunks(): Iterable<Uint8Array>;
}

/** A tensor to be written; its numbers are asked for when it is its turn. */
export interface OutputTensor {
  name: string;
  shape: readonly number[];
  data(): Float32Array;
}

export function jsonFile(name: string, value: unknown): Output {
  return bytesFile(name, new TextEncoder().encode(`${JSON.stringify(value, null, 2)}\n`));
}

export function bytesFile(name: string, bytes: Uint8Array): Output {
  return { name, size: bytes.length, chunks: () => [bytes] };
}

/** A .safetensors file of float32 tensors, laid out as the safetensors library does: the header's end at a multiple of 8 bytes, by name. */
export function safetensorsFile(name: string, tensors: readonly OutputTensor[]): Output {
  const sorted = [...tensors].sort((a, b) => (a.name < b.name ? -1 : 1));
  const header: JsonObject = { __metadata__: { format: 'pt' } };
  let end = 0;
  for (const { name, shape } of sorted) {
    const begin = end;
    end += 4 * shape.reduce((product, size) => product * size, 1);
    header[name] = { dtype: 'F32', shape, data_offsets: [begin, end] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const head = new Uint8Array(8 + Math.ceil(text.length / 8) * 8).fill(0x20);
  head.set(text, 8);
  new DataView(head.buffer).setBigUint64(0, BigInt(head.length - 8), true);
  return {
    name,
    size: head.length + end,
    *chunks() {
      yield head;
      for (const tensor of sorted) {
        const { buffer, byteOffset, byteLength } = tensor.data();
        yield new Uint8Array(buffer, byteOffset, byteLength);
      }
    },
  };
}

/** Where files go: a folder's path (Node), a handle of a folder (browsers), or nowhere: they are returned. */
export type Destination = string | FileSystemDirectoryHandle | undefined;

/** Writes files. A file appears whole or not at all. `stale`: names of files that are not to be beside them. */
export async function writeFiles(
  files: readonly Output[],
  to: Destination,
  platform: FilePlatform,
  turn: () => Promise<void>,
  stale: readonly string[] = [],
): Promise<SavedFile[] | undefined> {
  if (typeof to === 'string') {
    if (!platform.local) {
      throw new WasmformerError('unsupported', '[save] folder: a page has no paths: pass a directory handle, or nothing to get the files');
    }
    return platform.local.write(to, files, stale);
  }
  const saved: SavedFile[] = [];
  for (const { name, size, chunks } of files) {
    if (to) {
      const stream = await (await to.getFileHandle(name, { create: true })).createWritable();
      try {
        for (const chunk of chunks()) await stream.write(chunk as Uint8Array<ArrayBuffer>);
      } catch (reason) {
        await stream.abort().catch(() => {});
        throw reason;
      }
      await stream.close();
      continue;
    }
    const bytes = new Uint8Array(size);
    let at = 0;
    for (const chunk of chunks()) {
      bytes.set(chunk, at);
      at += chunk.length;
      await turn();
    }
    saved.push({ name, bytes });
  }
  if (!to) return saved;
  for (const name of stale) {
    await to.removeEntry(name).catch((reason) => {
      if (reason?.name !== 'NotFoundError') throw reason;
    });
  }
  return undefined;
}
