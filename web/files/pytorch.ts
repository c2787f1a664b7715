import { WasmformerError } from '../errors.ts';
import { PickledTensor, readPickle } from './pickle.ts';
import type { ByteSource } from './source.ts';
import { dtypeBytes, elementCount, type TensorEntry } from './tensors.ts';
import { readZip } from './zip.ts';

const kLargestPickle = 64 * 2 ** 20;

/**
 * The tensors of a file `torch.save` wrote (torch 1.6 and later: a zip archive). The pickle inside is read as a
 * description; nothing in it is run.
 * @throws WasmformerError `invalid-file`, `unsupported` for the older format
 */
export async function readPytorch(source: ByteSource, signal?: AbortSignal): Promise<Map<string, TensorEntry>> {
  const { name } = source;
  const first = await source.read(0, Math.min(4, source.size), signal);
  if (first[0] === 0x80) {
    throw new WasmformerError(
      'unsupported',
      `[${name}] format: expected a zip archive (torch 1.6 or later), got torch's older format; save it again with a newer torch, or as safetensors`,
    );
  }
  const entries = await readZip(source, signal);
  const pickle = [...entries.values()].filter((entry) => entry.name === 'data.pkl' || /^[^/]+\/data\.pkl$/.test(entry.name));
  if (pickle.length !== 1 || pickle[0] === undefined) {
    throw new WasmformerError('invalid-file', `[${name}] archive: expected one data.pkl, got ${pickle.length}`);
  }
  const root = pickle[0].name.slice(0, -'data.pkl'.length);
  if (pickle[0].size > kLargestPickle) {
    throw new WasmformerError('invalid-file', `[${name}] data.pkl: expected at most ${kLargestPickle} bytes, got ${pickle[0].size}`);
  }
  const order = entries.get(`${root}byteorder`);
  if (order !== undefined && order.size < 16 && new TextDecoder().decode(await order.read(0, order.size, signal)) === 'big') {
    throw new WasmformerError('unsupported', `[${name}] byte order: expected little endian, got big endian`);
  }
  const described = readPickle(await pickle[0].read(0, pickle[0].size, signal), name);
  const tensors = new Map<string, TensorEntry>();
  for (const [key, value] of stateDict(described, name)) {
    if (typeof key === 'string' && value instanceof PickledTensor) tensors.set(key, place(key, value, entries, root, name));
  }
  return tensors;
}

/** The dictionary of weights: the document itself, or what training scripts put under a name in it. */
function stateDict(described: unknown, name: string): Map<unknown, unknown> {
  const holdsTensors = (value: unknown): value is Map<unknown, unknown> =>
    value instanceof Map && [...value.values()].some((item) => item instanceof PickledTensor);
  if (holdsTensors(described)) return described;
  if (described instanceof Map) {
    for (const key of ['state_dict', 'model_state_dict', 'model']) {
      const inner = described.get(key);
      if (holdsTensors(inner)) return inner;
    }
  }
  throw new WasmformerError('invalid-file', `[${name}] data.pkl: expected a dictionary of tensors`);
}

function place(key: string, tensor: PickledTensor, entries: Map<string, ByteSource>, root: string, file: string): TensorEntry {
  const where = `${file}: ${key.slice(0, 120)}`;
  const { storage, offset, shape, strides } = tensor;
  const source = entries.get(`${root}data/${storage.key}`);
  if (source === undefined)
    throw new WasmformerError('invalid-file', `[${where}] storage: expected an entry data/${storage.key} in the archive`);
  const width = dtypeBytes.get(storage.dtype) as number;
  const held = Math.floor(source.size / width);
  if (storage.length > held)
    throw new WasmformerError('invalid-file', `[${where}] storage: expected ${storage.length} elements, got ${held}`);
  const count = elementCount(shape, where);
  let contiguous = true;
  let reach = count === 0 ? 0 : 1;
  let step = 1;
  for (let i = shape.length - 1; i >= 0; --i) {
    const size = shape[i] as number;
    const stride = strides[i] as number;
    if (size !== 1 && stride !== step) contiguous = false;
    if (count !== 0) reach += (size - 1) * stride;
    step *= size;
  }
  if (!(offset + reach <= storage.length)) {
    throw new WasmformerError(
      'invalid-file',
      `[${where}] view: expected within the ${storage.length} elements of its storage, got ${offset + reach}`,
    );
  }
  const begin = offset * width;
  return {
    name: key,
    dtype: storage.dtype,
    shape,
    source,
    begin,
    end: begin + (count === 0 ? 0 : reach) * width,
    ...(contiguous || count === 0 ? {} : { strides }),
  };
}
