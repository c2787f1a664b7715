import { WasmformerError } from '../errors.ts';
import { brief, decodeText } from './json.ts';

/** A tensor as `torch.save` describes it. */
export class PickledTensor {
  constructor(
    readonly storage: PickledStorage,
    /** In elements, as are the strides. */
    readonly offset: number,
    readonly shape: readonly number[],
    readonly strides: readonly number[],
  ) {}
}

/** The memory of one or several tensors: the entry `data/<key>` of the archive. */
export class PickledStorage {
  constructor(
    readonly dtype: string,
    readonly key: string,
    /** Elements. */
    readonly length: number,
  ) {}
}

class Global {
  constructor(readonly name: string) {}
}

const kMark = Symbol('mark');

const kStorages: ReadonlyMap<string, string> = new Map([
  ['torch.DoubleStorage', 'F64'],
  ['torch.FloatStorage', 'F32'],
  ['torch.HalfStorage', 'F16'],
  ['torch.BFloat16Storage', 'BF16'],
  ['torch.LongStorage', 'I64'],
  ['torch.IntStorage', 'I32'],
  ['torch.ShortStorage', 'I16'],
  ['torch.CharStorage', 'I8'],
  ['torch.ByteStorage', 'U8'],
  ['torch.BoolStorage', 'BOOL'],
]);

/** All a checkpoint may call. Each is only a name here: nothing is looked up, imported or run. */
const kCallable = new Set(['collections.OrderedDict', 'torch._utils._rebuild_tensor_v2', 'torch._utils._rebuild_parameter', 'torch.Size']);

function safeInteger(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value);
}

/**
 * Reads a pickle (protocols 2 to 5) that holds tensors, numbers, strings, tuples, lists and dictionaries. Of calls it
 * knows the four that build tensors; any other, and any opcode not needed for these, is an error naming it.
 * Dictionaries become Maps.
 * @throws WasmformerError `invalid-file`
 */
export function readPickle(bytes: Uint8Array, where: string): unknown {
  const bad = (message: string): WasmformerError => new WasmformerError('invalid-file', `[${where}] pickle: ${message}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const memo = new Map<number, unknown>();
  const stack: unknown[] = [];
  let at = 0;

  const take = (length: number): number => {
    const begin = at;
    if (!(length <= bytes.length - at)) throw bad(`cut short at byte ${begin}`);
    at += length;
    return begin;
  };
  const u8 = (): number => view.getUint8(take(1));
  const u32 = (): number => view.getUint32(take(4), true);
  const text = (length: number): string => {
    const begin = take(length);
    return decodeText(bytes.subarray(begin, begin + length), where);
  };
  const line = (): string => {
    const end = bytes.indexOf(10, at);
    if (end < 0 || end - at > 256) throw bad(`name: expected one of at most 256 bytes at byte ${at}`);
    const begin = at;
    at = end + 1;
    return decodeText(bytes.subarray(begin, end), where);
  };
  const pop = (): unknown => {
    if (stack.length === 0 || stack[stack.length - 1] === kMark) throw bad(`expected a value on the stack at byte ${at}`);
    return stack.pop();
  };
  const peek = (): unknown => {
    const value = pop();
    stack.push(value);
    return value;
  };
  const popMark = (): unknown[] => {
    const mark = stack.lastIndexOf(kMark);
    if (mark < 0) throw bad(`expected a mark on the stack at byte ${at}`);
    return stack.splice(mark).slice(1);
  };
  const setItems = (items: unknown[]): void => {
    const map = peek();
    if (!(map instanceof Map) || items.length % 2 !== 0) throw bad(`expected a dictionary and pairs at byte ${at}`);
    for (let i = 0; i < items.length; i += 2) {
      const key = items[i];
      if (typeof key !== 'string' && typeof key !== 'number') throw bad(`dictionary key: expected a string, at byte ${at}`);
      if (map.has(key)) throw bad(`dictionary: expected each key once, got ${brief(key)} twice`);
      map.set(key, items[i + 1]);
    }
  };
  const global = (module: string, name: string): void => {
    const full = `${module}.${name}`;
    if (!kCallable.has(full) && !kStorages.has(full)) {
      throw bad(`refers to ${JSON.stringify(full.slice(0, 120))}, which no checkpoint of weights needs; nothing was run`);
    }
    stack.push(new Global(full));
  };

  for (;;) {
    const begin = at;
    const opcode = u8();
    switch (opcode) {
      case 0x80: // PROTO
        if (u8() > 5) throw bad('protocol: expected at most 5');
        break;
      case 0x95: // FRAME
        take(8);
        break;
      case 0x28: // MARK
        stack.push(kMark);
        break;
      case 0x2e: // STOP
        return pop();
      case 0x30: // POP
        stack.pop();
        break;
      case 0x31: // POP_MARK
        popMark();
        break;
      case 0x4e: // NONE
        stack.push(null);
        break;
      case 0x88: // NEWTRUE
        stack.push(true);
        break;
      case 0x89: // NEWFALSE
        stack.push(false);
        break;
      case 0x4a: // BININT
        stack.push(view.getInt32(take(4), true));
        break;
      case 0x4b: // BININT1
        stack.push(u8());
        break;
      case 0x4d: // BININT2
        stack.push(view.getUint16(take(2), true));
        break;
      case 0x8a: {
        // LONG1: little endian, two's complement
        const length = u8();
        if (length > 8) throw bad(`integer: expected at most 8 bytes, got ${length}`);
        const from = take(length);
        let value = 0n;
        for (let i = 0; i < length; ++i) value |= BigInt(bytes[from + i] as number) << BigInt(8 * i);
        const number = Number(BigInt.asIntN(8 * length, value));
        if (!Number.isSafeInteger(number)) throw bad('integer: expected less than 2^53');
        stack.push(number);
        break;
      }
      case 0x47: // BINFLOAT
        stack.push(view.getFloat64(take(8), false));
        break;
      case 0x58: // BINUNICODE
        stack.push(text(u32()));
        break;
      case 0x8c: // SHORT_BINUNICODE
        stack.push(text(u8()));
        break;
      case 0x8d: {
        // BINUNICODE8
        const from = take(8);
        if (view.getUint32(from + 4, true) !== 0) throw bad(`string: expected less than 4 GB at byte ${begin}`);
        stack.push(text(view.getUint32(from, true)));
        break;
      }
      case 0x55: // SHORT_BINSTRING, of Python 2
        stack.push(text(u8()));
        break;
      case 0x29: // EMPTY_TUPLE
      case 0x5d: // EMPTY_LIST
        stack.push([]);
        break;
      case 0x7d: // EMPTY_DICT
        stack.push(new Map());
        break;
      case 0x85: // TUPLE1
        stack.push([pop()]);
        break;
      case 0x86: {
        // TUPLE2
        const second = pop();
        stack.push([pop(), second]);
        break;
      }
      case 0x87: {
        // TUPLE3
        const third = pop();
        const second = pop();
        stack.push([pop(), second, third]);
        break;
      }
      case 0x74: // TUPLE
        stack.push(popMark());
        break;
      case 0x61: {
        // APPEND
        const item = pop();
        const list = peek();
        if (!Array.isArray(list)) throw bad(`expected a list at byte ${begin}`);
        list.push(item);
        break;
      }
      case 0x65: {
        // APPENDS
        const items = popMark();
        const list = peek();
        if (!Array.isArray(list)) throw bad(`expected a list at byte ${begin}`);
        for (const item of items) list.push(item);
        break;
      }
      case 0x73: {
        // SETITEM
        const value = pop();
        const key = pop();
        setItems([key, value]);
        break;
      }
      case 0x75: // SETITEMS
        setItems(popMark());
        break;
      case 0x71: // BINPUT
        memo.set(u8(), peek());
        break;
      case 0x72: // LONG_BINPUT
        memo.set(u32(), peek());
        break;
      case 0x94: // MEMOIZE
        memo.set(memo.size, peek());
        break;
      case 0x68: // BINGET
      case 0x6a: {
        // LONG_BINGET
        const key = opcode === 0x68 ? u8() : u32();
        if (!memo.has(key)) throw bad(`refers to memo ${key}, which is not set, at byte ${begin}`);
        stack.push(memo.get(key));
        break;
      }
      case 0x63: {
        // GLOBAL
        const module = line();
        global(module, line());
        break;
      }
      case 0x93: {
        // STACK_GLOBAL
        const name = pop();
        const module = pop();
        if (typeof module !== 'string' || typeof name !== 'string') throw bad(`expected two names at byte ${begin}`);
        global(module, name);
        break;
      }
      case 0x51: // BINPERSID
        stack.push(storage(pop(), bad));
        break;
      case 0x52: {
        // REDUCE
        const given = pop();
        const callee = pop();
        if (!(callee instanceof Global) || !Array.isArray(given)) throw bad(`expected a call at byte ${begin}`);
        stack.push(call(callee.name, given, bad));
        break;
      }
      case 0x62: {
        // BUILD: the attributes of an OrderedDict (`_metadata`), which say nothing of the weights
        pop();
        if (!(peek() instanceof Map)) throw bad(`sets attributes of something that is no dictionary, at byte ${begin}`);
        break;
      }
      default:
        throw bad(
          `opcode 0x${opcode.toString(16).padStart(2, '0')} at byte ${begin} is none a checkpoint of weights needs; nothing was run`,
        );
    }
  }
}

function storage(id: unknown, bad: (message: string) => WasmformerError): PickledStorage {
  if (!Array.isArray(id) || id[0] !== 'storage') throw bad('persistent id: expected a storage');
  const [, type, key, , length] = id as unknown[];
  const dtype = type instanceof Global ? kStorages.get(type.name) : undefined;
  if (dtype === undefined) throw bad('storage: expected a type of numbers');
  if (typeof key !== 'string' || !/^[\w.-]{1,64}$/.test(key)) throw bad('storage: expected a plain key');
  if (!safeInteger(length) || length < 0) throw bad(`storage ${key}: expected a length`);
  return new PickledStorage(dtype, key, length);
}

function call(name: string, given: unknown[], bad: (message: string) => WasmformerError): unknown {
  switch (name) {
    case 'collections.OrderedDict': {
      const map = new Map<unknown, unknown>();
      const pairs = given.length === 0 ? [] : given[0];
      if (!Array.isArray(pairs)) throw bad('OrderedDict: expected pairs');
      for (const pair of pairs) {
        if (!Array.isArray(pair) || pair.length !== 2) throw bad('OrderedDict: expected pairs');
        map.set(pair[0], pair[1]);
      }
      return map;
    }
    case 'torch.Size':
      return given[0];
    case 'torch._utils._rebuild_parameter':
      if (!(given[0] instanceof PickledTensor)) throw bad('parameter: expected a tensor');
      return given[0];
    case 'torch._utils._rebuild_tensor_v2': {
      const [store, offset, shape, strides] = given;
      if (!(store instanceof PickledStorage)) throw bad('tensor: expected a storage');
      if (!safeInteger(offset) || offset < 0) throw bad('tensor: expected an offset of 0 and more');
      const sizes = (list: unknown): list is number[] =>
        Array.isArray(list) && list.length <= 64 && list.every((n) => safeInteger(n) && n >= 0);
      if (!sizes(shape) || !sizes(strides) || shape.length !== strides.length) throw bad('tensor: expected a shape and strides');
      return new PickledTensor(store, offset, shape, strides);
    }
    default:
      throw bad(`calls ${name}, which is a type`);
  }
}
