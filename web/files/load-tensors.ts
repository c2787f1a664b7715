import { WasmformerError } from '../errors.ts';
import type { FileContext } from './context.ts';
import { type ByteSource, fill } from './source.ts';
import { blockFormats, dtypeBytes, storedBytes, type TensorEntry } from './tensors.ts';

/** A tensor the model's configuration calls for. */
export interface Parameter {
  name: string;
  shape: readonly number[];
  /** What a file may put before the name, or leave out of it: `model.`, `transformer.` ... */
  prefix?: string;
  /** Another name that some files have it under. */
  alias?: string;
  /** The configuration's key that, false, does without it and all others that have it: a part that files may lack. */
  option?: string;
}

export interface TensorMatch {
  /** Of the parameter. */
  index: number;
  parameter: Parameter;
  entry: TensorEntry;
}

const kWeights = ['F32', 'F16', 'BF16', 'F64', ...blockFormats.keys()];

/**
 * Finds each parameter's tensor, under its name with or without its prefix. Tensors nobody asked for (mask buffers, a
 * head that is tied) are listed as unused.
 * @param accepted the dtypes a file may have
 * @returns `dtypes`: what `loadTensors` gives for each parameter, the file's dtype, but F32 for F64; `without`: the options
 * of the parts that are not there, whose parameters are left out
 * @throws WasmformerError `missing-tensor` naming the first few, `shape-mismatch`, `unsupported` for a dtype
 */
export function matchTensors(
  parameters: readonly Parameter[],
  tensors: ReadonlyMap<string, TensorEntry>,
  accepted: readonly string[] = kWeights,
): { matches: TensorMatch[]; dtypes: string[]; unused: string[]; without: string[] } {
  const used = new Set<string>();
  const missing: string[] = [];
  const matches: TensorMatch[] = [];
  const entries = parameters.map(({ name, prefix = '', alias }) => {
    const names = [name, prefix + name];
    // A bare base model's file lacks the prefix, or its first part: `decoder.` is left of OPT's `model.decoder.`.
    for (let at = 0; name.startsWith(prefix) && (at = prefix.indexOf('.', at) + 1) > 0; ) names.push(name.slice(at));
    if (alias !== undefined) names.push(alias);
    // What BERT's norms were called at first.
    names.push(...names.map((one) => one.replace(/(LayerNorm\.)weight$/, '$1gamma').replace(/(LayerNorm\.)bias$/, '$1beta')));
    return names.map((candidate) => tensors.get(candidate)).find((found) => found !== undefined);
  });
  const options = new Set(parameters.flatMap(({ option }) => option ?? []));
  const without = [...options].filter((key) => parameters.every(({ option }, index) => option !== key || !entries[index]));
  parameters.forEach((parameter, index) => {
    const entry = entries[index];
    if (entry === undefined) {
      if (!without.includes(parameter.option as string)) missing.push(parameter.name);
      return;
    }
    used.add(entry.name);
    matches.push({ index, parameter, entry });
  });
  if (missing.length > 0) {
    const more = missing.length > 4 ? ` and ${missing.length - 4} more` : '';
    throw new WasmformerError(
      'missing-tensor',
      `[load] weights: expected tensor ${missing.slice(0, 4).join(', ')}${more}, found none of the name among ${tensors.size}`,
    );
  }
  for (const { parameter, entry } of matches) {
    const expected = [...parameter.shape];
    if (expected.length !== entry.shape.length || expected.some((size, i) => size !== entry.shape[i])) {
      throw new WasmformerError(
        'shape-mismatch',
        `[load] ${entry.name}: expected shape [${expected.join(', ')}], got [${entry.shape.join(', ')}]`,
      );
    }
    if (!accepted.includes(entry.dtype)) {
      throw new WasmformerError(
        'unsupported',
        `[load] ${entry.name}: expected weights of dtype ${accepted.join(', ')}, got ${entry.dtype}`,
      );
    }
  }
  const unused = [...tensors.keys()].filter((name) => !used.has(name));
  return { matches, dtypes: matches.map(({ entry }) => (entry.dtype === 'F64' ? 'F32' : entry.dtype)), unused, without };
}

/** Whole rows of one parameter. */
export interface Slab {
  /** Of the parameter. */
  index: number;
  rowBegin: number;
  rowCount: number;
  /** The rows in the file's dtype, in blocks where it has them, F64 rounded to F32; overwritten by the next slab. */
  bytes: Uint8Array;
}

const kSlab = 4 * 2 ** 20;
/** Rows that belong together: of a matrix stored (in, out), the inputs that share a scale when quantised. */
const kTogether = 32;

/** How many rows to take at once, if a row and a slab are of such sizes. */
export function rowsASlab(slabBytes: number, rowBytes: number): number {
  return Math.max(1, Math.floor(slabBytes / rowBytes / kTogether)) * kTogether;
}

/**
 * Streams the tensors in the order they lie in their files, one pass a file, in slabs of whole rows (a row is what one
 * index of the first dimension selects, or of the last in a tensor stored by columns; a vector's rows are its elements).
 * Holds one slab, plus one whole tensor for a view that is not contiguous. Afterwards the rest of each file is fetched
 * into the cache, if there is one.
 * @param options.slabBytes a slab's size, for a multiple of 32 rows
 */
export async function* loadTensors(
  matches: readonly TensorMatch[],
  options: { slabBytes?: number; signal?: AbortSignal | undefined; context?: FileContext } = {},
): AsyncGenerator<Slab> {
  const { slabBytes = kSlab, signal, context } = options;
  const files = new Map<ByteSource, TensorMatch[]>();
  for (const match of matches) {
    const file = fileOf(match.entry.source);
    const list = files.get(file);
    if (list) list.push(match);
    else files.set(file, [match]);
  }
  let buffer = new Uint8Array(0);
  const room = (length: number): Uint8Array => {
    if (buffer.length < length) buffer = new Uint8Array(length);
    return buffer.subarray(0, length);
  };
  context?.settle(new Set([...files.keys()].map(({ name }) => name)));
  for (const [file, list] of files) context?.expect(file.name, list.length > 0 ? file.size : 0);
  for (const [file, list] of files) {
    list.sort((a, b) => position(a.entry) - position(b.entry) || a.entry.end - b.entry.end);
    for (let first = 0, next = 0; first < list.length; first = next) {
      // Tied weights lie in the same place: read once, handed out to each.
      const { entry } = list[first] as TensorMatch;
      for (next = first + 1; next < list.length && sameBytes(entry, (list[next] as TensorMatch).entry); ++next);
      const sharing = list.slice(first, next);
      const [rows = 1, ...inner] = entry.columns ? [...entry.shape].reverse() : entry.shape;
      const rowBytes = storedBytes(
        entry.dtype,
        inner.reduce((product, size) => product * size, 1),
      ) as number;
      if (rows * rowBytes === 0) continue;
      if (entry.strides !== undefined) {
        yield* stridedSlabs(entry, sharing, rows, rowBytes, rowsASlab(slabBytes, rowBytes), room, signal);
      } else {
        const { headRows = 1 } = entry;
        const perSlab = Math.ceil(rowsASlab(slabBytes, rowBytes) / headRows) * headRows;
        for (let rowBegin = 0; rowBegin < rows; rowBegin += perSlab) {
          signal?.throwIfAborted();
          const rowCount = Math.min(perSlab, rows - rowBegin);
          const bytes = room(rowCount * rowBytes);
          await fill(entry.source, bytes, entry.begin + rowBegin * rowBytes, signal);
          if (headRows > 1) joinHalves(bytes, rowBytes, headRows);
          const rounded = narrowed(entry, bytes);
          for (const { index } of sharing) yield { index, rowBegin, rowCount, bytes: rounded };
          context?.report(file.name, Math.min(file.size, position(entry) + (rowBegin + rowCount) * rowBytes), file.size, true);
        }
      }
    }
    await file.complete?.(signal);
    context?.report(file.name, file.size, file.size, true);
  }
}

async function* stridedSlabs(
  entry: TensorEntry,
  sharing: readonly TensorMatch[],
  rows: number,
  rowBytes: number,
  perSlab: number,
  room: (length: number) => Uint8Array,
  signal: AbortSignal | undefined,
): AsyncGenerator<Slab> {
  const strides = entry.strides as readonly number[];
  const width = dtypeBytes.get(entry.dtype) as number;
  const held = await entry.source.read(entry.begin, entry.end, signal);
  const inner = entry.shape.slice(1);
  for (let rowBegin = 0; rowBegin < rows; rowBegin += perSlab) {
    signal?.throwIfAborted();
    const rowCount = Math.min(perSlab, rows - rowBegin);
    const bytes = room(rowCount * rowBytes);
    const at = new Array<number>(inner.length).fill(0);
    let out = 0;
    for (let row = rowBegin; row < rowBegin + rowCount; ++row) {
      let from = row * (strides[0] as number);
      for (let item = 0; item < rowBytes / width; ++item) {
        for (let b = 0; b < width; ++b) bytes[out++] = held[from * width + b] as number;
        for (let d = inner.length - 1; d >= 0; --d) {
          const stride = strides[d + 1] as number;
          at[d] = (at[d] as number) + 1;
          from += stride;
          if ((at[d] as number) < (inner[d] as number)) break;
          from -= stride * (inner[d] as number);
          at[d] = 0;
        }
      }
    }
    const rounded = narrowed(entry, bytes);
    for (const { index } of sharing) yield { index, rowBegin, rowCount, bytes: rounded };
  }
}

/** Rows 0, n/2, 1, n/2 + 1 ... of each head become 0, 1 ... n - 1, in place. */
function joinHalves(bytes: Uint8Array, rowBytes: number, headRows: number): void {
  for (let head = 0; head < bytes.length; head += headRows * rowBytes) {
    const turned = bytes.slice(head, head + headRows * rowBytes);
    for (let row = 0; row < headRows; ++row) {
      const to = row % 2 === 0 ? row / 2 : (headRows + row - 1) / 2;
      bytes.set(turned.subarray(row * rowBytes, (row + 1) * rowBytes), head + to * rowBytes);
    }
  }
}

/** F64 becomes F32, and what F32 asks for is added, in place; other dtypes stay as they are. `bytes` begins its buffer. */
function narrowed(entry: TensorEntry, bytes: Uint8Array): Uint8Array {
  if (entry.add !== undefined) {
    const numbers = new Float32Array(bytes.buffer, 0, bytes.length / 4);
    for (let i = 0; i < numbers.length; ++i) numbers[i] = (numbers[i] as number) + entry.add;
  }
  if (entry.dtype !== 'F64') return bytes;
  const count = bytes.length / 8;
  const wide = new Float64Array(bytes.buffer, 0, count);
  const narrow = new Float32Array(bytes.buffer, 0, count);
  for (let i = 0; i < count; ++i) narrow[i] = wide[i] as number;
  return bytes.subarray(0, 4 * count);
}

/** The file on disk or on the server; an archive's entries lie in one. */
function fileOf(source: ByteSource): ByteSource {
  return source.within === undefined ? source : fileOf(source.within.source);
}

function position(entry: TensorEntry): number {
  return (entry.source.within?.offset ?? 0) + entry.begin;
}

function sameBytes(a: TensorEntry, b: TensorEntry): boolean {
  const same = (x: readonly number[] | undefined, y: readonly number[] | undefined): boolean =>
    x?.length === y?.length && (x ?? []).every((n, i) => n === y?.[i]);
  return (
    a.source === b.source &&
    a.begin === b.begin &&
    a.end === b.end &&
    a.dtype === b.dtype &&
    same(a.shape, b.shape) &&
    same(a.strides, b.strides)
  );
}
