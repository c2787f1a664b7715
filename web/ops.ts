import type { Flat } from './engine/flat.ts';
import { WasmformerError } from './errors.ts';
import { checkIds, count, reading, resolveProcessors } from './options.ts';
import type { Service } from './service.ts';
import type { Ops, Tensor } from './types.ts';

const where = 'processLogits';

function fail(place: string, what: string, expected: string, got: unknown): never {
  throw new WasmformerError('invalid-argument', `[${place}] ${what}: expected ${expected}, got ${got}`);
}

/** A copy of logits. NaN and infinities are numbers too. */
function checkScores(scores: ArrayLike<number>): Float32Array {
  const length = scores?.length;
  if (!(Number.isInteger(length) && length > 0)) {
    throw new WasmformerError('invalid-argument', `[${where}] scores: expected an array of numbers, at least one`);
  }
  for (let i = 0; i < length; ++i) {
    if (typeof scores[i] !== 'number') fail(where, 'scores', `a number at ${i}`, typeof scores[i]);
  }
  return Float32Array.from(scores);
}

/** Whether a value is to be read as numbers. */
const isTensor = (value: any) => Array.isArray(value) || ArrayBuffer.isView(value) || ('data' in value && 'shape' in value);

/** A copy of a tensor that was given as one, or as numbers in nested arrays. Whether data and shape agree is left to C++. */
export function tensorFrom(place: string, name: string, value: any): Tensor {
  if (value !== Object(value) || !isTensor(value)) fail(place, name, 'a tensor or nested arrays of numbers', typeof value);
  if ('shape' in value) {
    const { shape: given } = value;
    const shape: number[] = Array.isArray(given) || ArrayBuffer.isView(given) ? [...(given as number[])] : [-1];
    if (!shape.every(count.test)) fail(place, `${name}.shape`, 'an array of whole numbers below 2^31', shape);
    const { data } = tensorFrom(place, `${name}.data`, value.data);
    return { data, shape };
  }
  if (ArrayBuffer.isView(value)) return { data: new Float32Array(value as Float32Array), shape: [(value as Float32Array).length] };
  const numbers: number[] = [];
  const shapeOf = (item: any, at: string): number[] => {
    if (typeof item === 'number' || typeof item === 'boolean') {
      numbers.push(+item);
      return [];
    }
    if (!Array.isArray(item) && !ArrayBuffer.isView(item)) fail(place, at, 'a number', item === null ? 'null' : typeof item);
    const shapes = Array.from(item as any[], (part, i) => shapeOf(part, `${at}[${i}]`));
    const odd = shapes.findIndex((shape) => `${shape}` !== `${shapes[0]}`);
    if (odd > 0) fail(place, `${at}[${odd}]`, `the shape (${shapes[0].join(', ')}) of its neighbours`, `(${shapes[odd].join(', ')})`);
    return [shapes.length, ...(shapes[0] ?? [])];
  };
  const shape = shapeOf(value, name);
  return { data: Float32Array.from(numbers), shape };
}

/** The bare operations, and what their arguments are called before the last, an object of the others. */
const operations = {
  attention: ['q', 'k', 'v'],
  multiHeadAttention: ['x', 'weights'],
  layerNorm: ['x'],
  rmsNorm: ['x'],
  softmax: ['x'],
  feedForward: ['x'],
  sinusoidalPositions: ['length', 'size'],
  rope: ['x'],
  encoderLayer: ['x', 'weights'],
  decoderLayer: ['x', 'memory', 'weights'],
};

/** Makes `ops` over an engine without a model. */
export function createOps(service: Service): Ops {
  const run = async (name: string, positional: string[], args: unknown[]) => {
    const tensors: Record<string, Tensor> = Object.create(null);
    const options: Flat = Object.create(null);
    // Tensors and plain values apart, under dotted names. What they have to be, C++ knows.
    const collect = (path: string, value: any) => {
      if (value === undefined || value === null) return;
      if (path in tensors || path in options) fail(name, path, 'it once', 'it twice');
      if (typeof value !== 'object') options[path || 'options'] = value;
      else if (isTensor(value)) tensors[path || 'options'] = tensorFrom(name, path || 'options', value);
      else for (const [key, item] of Object.entries(value)) collect(path ? `${path}.${key}` : key, item);
    };
    reading(name, () => [...positional, ''].forEach((path, i) => void collect(path, args[i])));
    const results = await service.compute<Record<string, Tensor>>('mechanism', [name, tensors, options]);
    return Object.keys(results).length > 1 ? results : results.output;
  };
  return {
    async processLogits(scores, inputIds, given = {}) {
      const args = reading(where, () => {
        const { promptLength, ...options } = given;
        const ids = checkIds(where, inputIds);
        const length = promptLength ?? ids.length;
        if (!(Number.isInteger(length) && length >= 0 && length <= ids.length)) {
          fail(where, 'promptLength', `an integer from 0 to ${ids.length}`, promptLength);
        }
        return [checkScores(scores), length, ids, resolveProcessors(where, options)];
      });
      return service.compute('processLogits', args);
    },
    ...(Object.fromEntries(
      Object.entries(operations).map(([name, positional]) => [name, (...args: unknown[]) => run(name, positional, args)]),
    ) as unknown as Omit<Ops, 'processLogits'>),
  };
}
