// A saved model as one file: a ZIP archive whose entries are stored as they are (PKWARE's APPNOTE.TXT, sections 4.3 and 4.4).
const encoder = new TextEncoder();
/** Bytes worked through before the page gets its turn. */
const piece = 2 ** 19;

const table = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; ++bit) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

async function checksum(bytes: Uint8Array): Promise<number> {
  let crc = 0xffffffff;
  for (let at = 0; at < bytes.length; ) {
    const end = Math.min(bytes.length, at + piece);
    for (; at < end; ++at) crc = (crc >>> 8) ^ table[(crc ^ bytes[at]) & 255];
    await new Promise((resolve) => setTimeout(resolve));
  }
  return ~crc >>> 0;
}

/** Numbers of two and four bytes, by turns of `[value, size]`, little-endian. */
function numbers(...fields: [value: number, size: 2 | 4][]): Uint8Array<ArrayBuffer> {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [, size]) => sum + size, 0)));
  let at = 0;
  for (const [value, size] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return new Uint8Array(view.buffer);
}

/** Puts files into an archive. */
export async function zip(files: readonly { name: string; bytes: Uint8Array<ArrayBuffer> }[]): Promise<Blob> {
  const body: Uint8Array<ArrayBuffer>[] = [];
  const directory: Uint8Array<ArrayBuffer>[] = [];
  const sizeOf = (parts: Uint8Array[]) => parts.reduce((sum, part) => sum + part.length, 0);
  for (const { name, bytes } of files) {
    const path = encoder.encode(name);
    // Version 2.0, names in UTF-8, stored, 1 January 1980.
    const common = numbers(
      [20, 2],
      [0x800, 2],
      [0, 2],
      [0, 2],
      [0x21, 2],
      [await checksum(bytes), 4],
      [bytes.length, 4],
      [bytes.length, 4],
      [path.length, 2],
      [0, 2],
    );
    directory.push(numbers([0x02014b50, 4], [20, 2]), common, numbers([0, 2], [0, 2], [0, 2], [0, 4], [sizeOf(body), 4]), path);
    body.push(numbers([0x04034b50, 4]), common, path, bytes);
  }
  const [offset, size, count] = [sizeOf(body), sizeOf(directory), files.length];
  const end = numbers([0x06054b50, 4], [0, 2], [0, 2], [count, 2], [count, 2], [size, 4], [offset, 4], [0, 2]);
  return new Blob([...body, ...directory, end], { type: 'application/zip' });
}

/**
 * The files of an archive, those of folders in it under their last names; stored or deflated, as other programs make them.
 * @throws Error for what is no such archive
 */
export async function unzip(archive: File): Promise<File[]> {
  const bad = () => Object.assign(new Error(`${archive.name}: expected a ZIP archive without encryption`), { code: 'invalid-file' });
  const view = async (begin: number, end: number) => new DataView(await archive.slice(begin, end).arrayBuffer());
  const tailAt = Math.max(0, archive.size - 65_557);
  const tail = await view(tailAt, archive.size);
  let at = tail.byteLength - 22;
  while (at >= 0 && tail.getUint32(at, true) !== 0x06054b50) --at;
  if (at < 0) throw bad();
  const [count, size, offset] = [tail.getUint16(at + 10, true), tail.getUint32(at + 12, true), tail.getUint32(at + 16, true)];
  const directory = await view(offset, offset + size);
  const files: File[] = [];
  let entry = 0;
  for (let i = 0; i < count; ++i) {
    if (entry + 46 > directory.byteLength || directory.getUint32(entry, true) !== 0x02014b50) throw bad();
    const field = (place: number) => directory.getUint16(entry + place, true);
    const [flags, method, pathLength] = [field(8), field(10), field(28)];
    const packed = directory.getUint32(entry + 20, true);
    const start = directory.getUint32(entry + 42, true);
    const path = new TextDecoder().decode(new Uint8Array(directory.buffer, entry + 46, pathLength));
    entry += 46 + pathLength + field(30) + field(32);
    if (path.endsWith('/')) continue;
    if (flags & 1 || (method !== 0 && method !== 8)) throw bad();
    const header = await view(start, start + 30);
    if (header.byteLength < 30) throw bad();
    const from = start + 30 + header.getUint16(26, true) + header.getUint16(28, true);
    let content: Blob = archive.slice(from, from + packed);
    if (method === 8) content = await new Response(content.stream().pipeThrough(new DecompressionStream('deflate-raw'))).blob();
    files.push(new File([content], path.slice(path.lastIndexOf('/') + 1)));
  }
  return files;
}
