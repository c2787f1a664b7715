// Checkpoint formats: what torch, safetensors and llama2.c write is read as it is; what is malformed is named, at once.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { files } from './support/bundle.mjs';
import { fixtures, folderOf, modelFolders, readTensors } from './support/fixtures.mjs';
import { noise, safetensors } from './support/hub.mjs';

const api = await files();
const { BytesSource, matchTensors, loadTensors, nodeFiles, openCheckpoint, readPytorch, readSafetensors } = api;
const at = (...path) => join(fixtures, 'files', ...path);
const bytesOf = (...path) => new Uint8Array(readFileSync(at(...path)));
const source = (bytes, name = 'test') => new BytesSource(name, new Uint8Array(bytes));
const text = (value) => new TextEncoder().encode(typeof value === 'string' ? value : JSON.stringify(value));

/** The bytes of each tensor as `loadTensors` streams them, in slabs of a size. */
async function contents(tensors, slabBytes) {
  const accepted = [...new Set([...tensors.values()].map(({ dtype }) => dtype))];
  const parameters = [...tensors.values()].map(({ name, shape }) => ({ name, shape }));
  const { matches } = matchTensors(parameters, tensors, accepted);
  const got = parameters.map(() => []);
  const holder = { context: { signal: undefined, report() {}, expect() {}, settle() {} } };
  for await (const { index, rowBegin, rowCount, bytes } of loadTensors(holder, matches, { slabBytes })) {
    assert.equal(
      rowBegin,
      got[index].reduce((sum, slab) => sum + slab.rowCount, 0),
      'rows come in order',
    );
    assert.ok(bytes.length <= slabBytes || rowCount <= 32, 'a slab is no larger than asked for');
    got[index].push({ rowCount, bytes: Buffer.from(bytes) });
  }
  return new Map(parameters.map(({ name }, i) => [name, Buffer.concat(got[i].map(({ bytes }) => bytes))]));
}

/** Milliseconds of the processor since `start`, a `process.cpuUsage()`: other processes do not count. */
const spent = (start) => {
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
};

/** Fails unless `work` rejects with a named error in under 100 ms. */
async function refuses(work, code, pattern, what) {
  const start = process.cpuUsage();
  await assert.rejects(work, (error) => {
    assert.equal(error.code, code, `${what ?? ''}: ${error.code ?? error.stack}: ${error.message}`);
    assert.match(error.message, pattern, what);
    assert.ok(error.message.length < 600, 'a message for people');
    return true;
  });
  const time = spent(start);
  assert.ok(time < 100, `${what}: ${time} ms`);
}

test('torch archives: the tensors that torch saved, views, shared storages and all', async () => {
  const plain = await readSafetensors(source(bytesOf('torch/odd.safetensors')));
  const expected = await contents(plain, 1 << 20);
  for (const file of ['odd.bin', 'protocol4.bin']) {
    const tensors = await readPytorch(source(bytesOf('torch', file), file));
    assert.deepEqual([...tensors.keys()].sort(), [...plain.keys()].sort());
    for (const [name, { dtype, shape }] of plain) {
      assert.deepEqual([tensors.get(name).dtype, tensors.get(name).shape], [dtype, shape], name);
    }
    assert.deepEqual(
      [...tensors.values()]
        .filter(({ strides }) => strides)
        .map(({ name }) => name)
        .sort(),
      ['columns', 'expanded', 'permuted', 'transposed'],
    );
    for (const slabBytes of [1, 20, 1 << 20]) {
      const got = await contents(tensors, slabBytes);
      for (const [name, bytes] of expected) assert.ok(got.get(name).equals(bytes), `${file}: ${name} in slabs of ${slabBytes}`);
    }
  }
});

test('torch archives: a module, a nested dictionary, zip64', async () => {
  const expected = await contents(await readPytorch(source(bytesOf('torch/state.bin'))), 1 << 20);
  assert.deepEqual([...expected.keys()], ['weight', 'bias']);
  for (const file of ['nested.bin', 'zip64.bin']) {
    assert.deepEqual(await contents(await readPytorch(source(bytesOf('torch', file))), 1 << 20), expected, file);
  }
});

test('torch archives that are refused', async () => {
  await refuses(readPytorch(source(bytesOf('torch/old.bin'))), 'unsupported', /torch 1.6/, 'the older format');
  await refuses(readPytorch(source(bytesOf('torch/deflated.bin'))), 'invalid-file', /stored entry.*method 8/, 'a compressed archive');
  await refuses(readPytorch(source(bytesOf('torch/module.bin'))), 'invalid-file', /Linear.*nothing was run/, 'a pickled module');
  const good = bytesOf('torch/odd.bin');
  for (const length of [0, 3, 4, 21, 22, 100, 1000, good.length - 30, good.length - 1]) {
    await refuses(readPytorch(source(good.subarray(0, length))), 'invalid-file', /zip/, `cut to ${length}`);
  }
});

/** A stored zip archive; `change` may bend the fields of an entry's two headers. */
function zip(entries, change = (_name, fields) => fields) {
  const parts = [];
  const directory = [];
  let offset = 0;
  for (const [name, body] of Object.entries(entries)) {
    const f = change(name, { flags: 0, method: 0, packed: body.length, size: body.length, offset, extra: Buffer.alloc(0) });
    const local = Buffer.alloc(30);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(name.length, 26);
    const central = Buffer.alloc(46);
    central.writeUInt32LE(0x02014b50, 0);
    central.writeUInt16LE(f.flags, 8);
    central.writeUInt16LE(f.method, 10);
    central.writeUInt32LE(f.packed, 20);
    central.writeUInt32LE(f.size, 24);
    central.writeUInt16LE(name.length, 28);
    central.writeUInt16LE(f.extra.length, 30);
    central.writeUInt32LE(f.offset, 42);
    parts.push(local, Buffer.from(name), body);
    directory.push(central, Buffer.from(name), f.extra);
    offset += 30 + name.length + body.length;
  }
  const central = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(Object.keys(entries).length, 10);
  end.writeUInt32LE(central.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...parts, central, end]);
}

test('zip bombs and bent archives', async () => {
  const entries = { 'a/data.pkl': Buffer.from('\x80\x02}.', 'latin1'), 'a/data/0': Buffer.alloc(16) };
  const bend = (change) => readPytorch(source(zip(entries, (name, fields) => (name === 'a/data/0' ? { ...fields, ...change } : fields))));
  await refuses(bend({ method: 8, size: 0xfffffff0 }), 'invalid-file', /compression method 8/, 'a bomb');
  await refuses(bend({ size: 0xfffffff0 }), 'invalid-file', /stored entry/, 'sizes that differ');
  await refuses(bend({ size: 0xfffffff0, packed: 0xfffffff0 }), 'invalid-file', /inside the file/, 'larger than the file');
  await refuses(bend({ offset: 0 }), 'invalid-file', /overlaps/, 'overlapping entries');
  await refuses(bend({ flags: 1 }), 'invalid-file', /encryption/, 'encrypted');
  await refuses(bend({ offset: 5 }), 'invalid-file', /overlaps|local header/, 'an offset into another');
  const wide = Buffer.alloc(28);
  wide.writeUInt16LE(1, 0);
  wide.writeUInt16LE(24, 2);
  wide.fill(0xff, 4);
  await refuses(
    bend({ size: 0xffffffff, packed: 0xffffffff, offset: 0xffffffff, extra: wide }),
    'invalid-file',
    /inside the file/,
    'sizes near 2^64',
  );
  await refuses(bend({ size: 0xffffffff, packed: 0xffffffff }), 'invalid-file', /inside the file/, 'zip64 without its field');
  const many = zip(entries);
  many.writeUInt16LE(0xfffe, many.length - 12);
  await refuses(readPytorch(source(many)), 'invalid-file', /directory: expected 65534 entries/, 'more entries than there are');
  many.writeUInt32LE(0xfffffff0, many.length - 10);
  await refuses(readPytorch(source(many)), 'invalid-file', /directory/, 'a directory outside');
  many.writeUInt16LE(0xffff, many.length - 12);
  await refuses(readPytorch(source(many)), 'invalid-file', /zip64 locator/, 'no zip64 record');
  await refuses(
    readPytorch(source(zip({ 'a/data.pkl': entries['a/data.pkl'], 'b/data.pkl': entries['a/data.pkl'] }))),
    'invalid-file',
    /one data.pkl, got 2/,
    'two pickles',
  );
  await refuses(readPytorch(source(zip({ x: Buffer.alloc(3) }))), 'invalid-file', /one data.pkl, got 0/, 'no pickle');
  await refuses(readPytorch(source(zip(entries))), 'invalid-file', /dictionary of tensors/, 'no tensors');
});

const short = (value) => Buffer.concat([Buffer.from([0x8c, value.length]), Buffer.from(value)]);
const uint = (value) => {
  const bytes = Buffer.alloc(10);
  bytes[0] = 0x8a;
  bytes[1] = 8;
  bytes.writeBigInt64LE(BigInt(value), 2);
  return bytes;
};
const op = (...bytes) => Buffer.from(bytes);
const global = (module, name) => Buffer.from(`c${module}\n${name}\n`);
const tuple = (...items) => Buffer.concat([op(0x28), ...items, op(0x74)]);

/** A pickle of { w: tensor } in raw opcodes. */
function pickleOf({ type = 'FloatStorage', key = '0', length = 4, offset = 0, shape = [2, 2], strides = [2, 1] } = {}) {
  const storage = Buffer.concat([tuple(short('storage'), global('torch', type), short(key), short('cpu'), uint(length)), op(0x51)]);
  const tensor = Buffer.concat([
    global('torch._utils', '_rebuild_tensor_v2'),
    tuple(
      storage,
      uint(offset),
      tuple(...shape.map(uint)),
      tuple(...strides.map(uint)),
      op(0x89),
      Buffer.concat([global('collections', 'OrderedDict'), op(0x29, 0x52)]),
    ),
    op(0x52),
  ]);
  return Buffer.concat([op(0x80, 2, 0x7d), short('w'), tensor, op(0x73, 0x2e)]);
}
const archiveOf = (pickle, storage = Buffer.alloc(16)) =>
  source(zip({ 'a/data.pkl': pickle, 'a/data/0': storage, 'a/data/1': Buffer.alloc(3) }));

test('pickles: only what describes tensors is read, and nothing is run', async () => {
  const tensors = await readPytorch(archiveOf(pickleOf()));
  assert.deepEqual(tensors.get('w').shape, [2, 2]);
  const evil = (body) => readPytorch(archiveOf(Buffer.concat([op(0x80, 2), body, op(0x2e)])));
  await refuses(
    evil(Buffer.concat([global('os', 'system'), tuple(short('true')), op(0x52)])),
    'invalid-file',
    /os.system.*nothing was run/,
    'os.system',
  );
  await refuses(evil(Buffer.concat([short('builtins'), short('eval'), op(0x93)])), 'invalid-file', /builtins.eval/, 'eval by STACK_GLOBAL');
  await refuses(evil(global('torch', 'load')), 'invalid-file', /torch.load/, 'torch.load');
  await refuses(evil(global('__builtin__', 'getattr')), 'invalid-file', /getattr/, 'getattr');
  for (const [opcode, name] of [
    [0x69, 'INST'],
    [0x6f, 'OBJ'],
    [0x81, 'NEWOBJ'],
    [0x92, 'NEWOBJ_EX'],
    [0x82, 'EXT1'],
    [0x50, 'PERSID'],
    [0x97, 'NEXT_BUFFER'],
    [0x8b, 'LONG4'],
    [0x42, 'BINBYTES'],
    [0xff, 'none'],
  ]) {
    await refuses(evil(op(opcode, 1, 0, 0, 0, 0)), 'invalid-file', /opcode 0x|no checkpoint/, name);
  }
  await refuses(evil(Buffer.concat([global('torch', 'FloatStorage'), op(0x29, 0x52)])), 'invalid-file', /a type/, 'a storage called');
  await refuses(
    evil(Buffer.concat([global('collections', 'OrderedDict'), op(0x29, 0x52, 0x28, 0x75)])),
    'invalid-file',
    /dictionary of tensors/,
    'an empty dictionary',
  );
  await refuses(evil(op(0x52)), 'invalid-file', /stack/, 'an empty stack');
  await refuses(evil(op(0x68, 9)), 'invalid-file', /memo 9/, 'an unset memo');
  await refuses(evil(op(0x58, 0xff, 0xff, 0xff, 0xff)), 'invalid-file', /cut short/, 'a string of 4 GB');
  await refuses(evil(op(0x8d, 0, 0, 0, 0, 1, 0, 0, 0)), 'invalid-file', /4 GB/, 'a longer one');
  await refuses(evil(Buffer.alloc(100_000, 0x28)), 'invalid-file', /dictionary|stack/, 'marks without end');
  await refuses(readPytorch(archiveOf(op(0x80, 2))), 'invalid-file', /cut short/, 'no end');
  await refuses(readPytorch(archiveOf(op(0x80, 9, 0x2e))), 'invalid-file', /protocol/, 'a later protocol');
  const twice = Buffer.concat([op(0x80, 2, 0x7d, 0x28), short('w'), op(0x4e), short('w'), op(0x4e, 0x75, 0x2e)]);
  await refuses(readPytorch(archiveOf(twice)), 'invalid-file', /twice/, 'a key twice');
  // Doubling by reference: the memo makes a tree of 2^60 leaves out of 60 tuples, which must stay 60 tuples.
  const bomb = [op(0x80, 2, 0x7d), short('w'), op(0x29, 0x71, 0)];
  for (let i = 0; i < 60; ++i) bomb.push(op(0x68, i, 0x68, i, 0x86, 0x71, i + 1));
  bomb.push(op(0x73, 0x2e));
  await refuses(readPytorch(archiveOf(Buffer.concat(bomb))), 'invalid-file', /.*/, 'a bomb of references');
});

test('tensors outside their storage', async () => {
  const bent = (change, storage) => readPytorch(archiveOf(pickleOf(change), storage));
  await refuses(bent({ offset: 1 }), 'invalid-file', /w\] view/, 'an offset too far');
  await refuses(bent({ strides: [3, 1] }), 'invalid-file', /w\] view/, 'strides too far');
  await refuses(bent({ shape: [2 ** 30, 2 ** 30], strides: [0, 0] }), 'invalid-file', /2\^53/, 'a product that wraps');
  await refuses(bent({ shape: [2, 2], strides: [2 ** 52, 2 ** 52] }), 'invalid-file', /view/, 'strides near 2^53');
  await refuses(bent({ length: 5 }), 'invalid-file', /storage: expected 5 elements, got 4/, 'a storage too long');
  await refuses(bent({ length: 2 ** 50 }), 'invalid-file', /storage/, 'a storage of petabytes');
  await refuses(bent({ key: '9' }), 'invalid-file', /data\/9/, 'no such storage');
  await refuses(bent({ key: '../../x' }), 'invalid-file', /plain key/, 'a path');
  await refuses(bent({ offset: -1 }), 'invalid-file', /offset/, 'a negative offset');
  await refuses(bent({ shape: [-2, 2] }), 'invalid-file', /shape/, 'a negative size');
  await refuses(bent({ strides: [2, -1] }), 'invalid-file', /strides/, 'a negative stride');
  await refuses(bent({ shape: [2], strides: [1, 1] }), 'invalid-file', /shape and strides/, 'other ranks');
  await refuses(bent({ type: 'QInt8Storage' }), 'invalid-file', /QInt8Storage/, 'another type');
  await refuses(bent({ length: 2 ** 60 }), 'invalid-file', /2\^53/, 'an unsafe integer');
});

/** A safetensors file of a header as given and so many bytes of data. */
function file(header, data = 0, length) {
  const body = text(header);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(length ?? body.length));
  return source(Buffer.concat([size, body, Buffer.alloc(data)]), 'x.safetensors');
}
const entry = (dtype, shape, ...data_offsets) => ({ dtype, shape, data_offsets });

test('safetensors as they should be', async () => {
  const tensors = await readSafetensors(
    file(
      {
        __metadata__: { format: 'pt' },
        a: entry('F32', [2, 2], 0, 16),
        none: entry('F16', [0, 7], 16, 16),
        s: entry('I64', [], 16, 24),
        __proto__x: entry('BOOL', [1], 24, 25),
      },
      25,
    ),
  );
  assert.deepEqual([...tensors.keys()], ['a', 'none', 's', '__proto__x']);
  assert.deepEqual(await readSafetensors(file('{}  ')), new Map());
  const odd = await readSafetensors(
    file('{"__proto__":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"constructor":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', 2),
  );
  assert.deepEqual([...odd.keys()], ['__proto__', 'constructor']);
  assert.throws(() => matchTensors([{ name: 'toString', shape: [1] }], odd, ['U8']), { code: 'missing-tensor' });
});

test('malformed safetensors are named in no time', async () => {
  const header = { a: entry('F32', [2], 0, 8), b: entry('F32', [2], 8, 16) };
  const bad = (bytes, pattern, what) => refuses(readSafetensors(bytes), 'invalid-file', pattern, what);
  for (const length of [2n ** 64n - 1n, 2n ** 63n, 2n ** 53n, 2n ** 32n, 100_000_001n])
    await bad(file(header, 16, length), /header length/, `header length ${length}`);
  await bad(file(header, 16, 5000), /header length.*cut short/, 'a header longer than the file');
  await bad(file(header, 16, 20), /JSON/, 'a header cut short');
  await bad(source([]), /8 bytes/, 'an empty file');
  await bad(source([1, 2, 3]), /8 bytes/, 'three bytes');
  await bad(source(Buffer.alloc(64)), /JSON object/, 'zeros');
  await bad(source(Buffer.from('<!doctype html><html>page</html>')), /header length/, 'a page');
  await bad(file('[1,2]'), /JSON object/, 'an array');
  await bad(file(' {}'), /JSON object/, 'white space first');
  await bad(file('{"a":'), /JSON/, 'no JSON');
  await bad(file(Buffer.from('{"\xff":1}', 'latin1').toString('latin1')), /entry/, 'a number for an entry');
  await bad(source(Buffer.concat([Buffer.from([4, 0, 0, 0, 0, 0, 0, 0]), Buffer.from([0x7b, 0x22, 0xff, 0x7d])])), /UTF-8/, 'no UTF-8');
  await bad(
    file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
    /"a" twice/,
    'a key twice',
  );
  await bad(
    file('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
    /"a" twice/,
    'a key twice, once escaped',
  );
  await bad(file('{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', 1), /"dtype" twice/, 'a field twice');
  await bad(file({ a: entry('F99', [2], 0, 8) }, 8), /a\] dtype.*F99/, 'an unknown dtype');
  await bad(file({ a: entry('constructor', [2], 0, 8) }, 8), /dtype/, 'a dtype every object has');
  await bad(file({ a: entry(7, [2], 0, 8) }, 8), /dtype/, 'a number for a dtype');
  await refuses(readSafetensors(file({ a: entry('F4', [16], 0, 8) }, 8)), 'unsupported', /F4/, 'four bits');
  await bad(file({ a: entry('F32', [2 ** 32, 2 ** 32, 2 ** 32], 0, 8) }, 8), /shape/, 'a product that wraps');
  await bad(file({ a: entry('F32', [2 ** 52, 2 ** 52, 0], 0, 0) }), /shape/, 'one that wraps behind a zero');
  await bad(file('{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}}', 8), /shape/, 'a size of 2^64');
  await bad(file({ a: entry('F32', [-2], 0, 8) }, 8), /shape/, 'a negative size');
  await bad(file({ a: entry('F32', [1.5], 0, 6) }, 6), /shape/, 'a fraction');
  await bad(file({ a: entry('F32', '2', 0, 8) }, 8), /shape/, 'a string for a shape');
  await bad(file({ a: { dtype: 'F32', shape: [2] } }, 8), /data_offsets/, 'no offsets');
  await bad(file({ a: entry('F32', [2], 0, 8, 16) }, 16), /data_offsets/, 'three offsets');
  await bad(file({ a: entry('F32', [2], 8, 0) }, 8), /begin <= end/, 'reversed offsets');
  await bad(file({ a: entry('F32', [2], -8, 0) }, 8), /data_offsets/, 'negative offsets');
  await bad(file({ a: entry('F32', [2], 0, 8), b: entry('F32', [2], 4, 12) }, 12), /overlap/, 'overlapping offsets');
  await bad(file({ a: entry('F32', [2], 0, 8), b: entry('F32', [2], 0, 8) }, 8), /overlap/, 'the same bytes twice');
  await bad(file({ a: entry('F32', [2], 0, 8), b: entry('F32', [2], 12, 20) }, 20), /gap/, 'a gap');
  await bad(file({ a: entry('F32', [2], 4, 12) }, 12), /gap/, 'a gap before the first');
  await bad(file({ a: entry('F32', [2], 0, 12) }, 12), /8 bytes/, 'more bytes than the shape has');
  await bad(file(header, 15), /cut short/, 'cut short');
  await bad(file(header, 17), /length/, 'too long');
  await bad(file({ a: entry('F32', [2], 2 ** 53 - 8, 2 ** 53) }, 8), /data_offsets/, 'offsets near 2^53');
  await bad(
    file(`{${Array.from({ length: 2000 }, (_, i) => `"t${i}":{"dtype":"U8","shape":[1],"data_offsets":[${i},${i + 1}]}`)}}`, 1999),
    /cut short/,
    'many tensors',
  );
});

const config = text({ model_type: 'llama', hidden_size: 2 });
const one = safetensors({ a: { dtype: 'F32', shape: [2], data: noise(8) } });
const two = safetensors({ b: { dtype: 'F32', shape: [2], data: noise(8, 2) }, extra: { dtype: 'F32', shape: [2], data: noise(8, 3) } });
const sharded = (map, more = {}) => ({
  'config.json': config,
  'model.safetensors.index.json': text(typeof map === 'string' ? map : { metadata: { total_size: 16 }, weight_map: map }),
  's-00001-of-00002.safetensors': one,
  's-00002-of-00002.safetensors': two,
  ...more,
});
const open = (record) => openCheckpoint(record, {}, nodeFiles);

test('sharded weights', async () => {
  const checkpoint = await open(sharded({ a: 's-00001-of-00002.safetensors', b: 's-00002-of-00002.safetensors' }));
  assert.deepEqual([...checkpoint.tensors.keys()].sort(), ['a', 'b']);
  const bad = (map, code, pattern, more) => refuses(open(sharded(map, more)), code, pattern, String(pattern));
  await bad({ a: '../../etc/passwd' }, 'invalid-file', /inside the model's folder/);
  await bad({ a: '/etc/passwd' }, 'invalid-file', /inside the model's folder/);
  await bad({ a: 'x\\..\\y' }, 'invalid-file', /inside the model's folder/);
  await bad({ a: './s-00001-of-00002.safetensors' }, 'invalid-file', /inside the model's folder/);
  await bad({ a: 7 }, 'invalid-file', /file name/);
  await bad({}, 'invalid-file', /at least one tensor/);
  await bad('{"weight_map":[]}', 'invalid-file', /weight_map/);
  await bad('{}', 'invalid-file', /weight_map/);
  await bad('{"weight_map":{"a":"x","a":"y"}}', 'invalid-file', /"a" twice/);
  await bad({ a: 'missing-00001-of-00009.safetensors' }, 'not-found', /missing-00001/);
  await bad({ c: 's-00001-of-00002.safetensors' }, 'missing-tensor', /c: expected in s-00001/);
  await bad({ a: 's-00002-of-00002.safetensors' }, 'missing-tensor', /a: expected in s-00002/);
});

test('what a folder must have', async () => {
  await refuses(open({ 'model.safetensors': one }), 'not-found', /config.json.*model.safetensors/, 'no configuration');
  await refuses(open({ 'config.json': config }), 'not-found', /model.safetensors or pytorch_model.bin/, 'no weights');
  await refuses(open({ 'config.json': text('[]'), 'model.safetensors': one }), 'invalid-file', /config.json.*object/, 'an array');
  await refuses(open({ 'config.json': text('{}'), 'model.safetensors': one }), 'invalid-file', /model_type/, 'an empty one');
  await refuses(
    open({ 'config.json': text(`{"a":${'['.repeat(5000)}${']'.repeat(5000)}}`), 'model.safetensors': one }),
    'invalid-file',
    /nesting/,
    'nested deep',
  );
  await refuses(open({ 'config.json': config, 'tf_model.h5': one }), 'unsupported', /tf_model.h5/, 'TensorFlow');
  await refuses(open({ 'model-q4.gguf': one }), 'invalid-file', /GGUF/, 'no GGUF, whatever its name');
  await refuses(open(new Uint8Array(one)), 'not-found', /config.json/, 'bytes of a safetensors file alone');
  await refuses(open(at('nowhere')), 'not-found', /nowhere/, 'no such folder');
  await refuses(open({ 'config.json': 7 }), 'invalid-argument', /config.json/, 'a number');
});

test('a folder, a file of it, Files and bytes are the same model', async () => {
  const folder = folderOf('gpt2');
  const expected = [...(await open(folder)).tensors.keys()];
  assert.ok(expected.length > 10);
  const bytes = (name) => new Uint8Array(readFileSync(join(folder, name)));
  const record = { 'config.json': bytes('config.json'), 'model.safetensors': bytes('model.safetensors') };
  const picked = Object.entries(record).map(([name, body]) => new File([body], name));
  for (const form of [
    `${folder}/`,
    join(folder, 'model.safetensors'),
    new URL(`file://${folder}`),
    record,
    picked,
    { 'config.json': new Blob([record['config.json']]), 'model.safetensors': record['model.safetensors'].buffer },
  ]) {
    assert.deepEqual([...(await open(form)).tensors.keys()], expected);
  }
});

test('every fixture opens, whatever its weights are stored as', async () => {
  const formats = new Set();
  for (const name of modelFolders.filter((name) => existsSync(join(folderOf(name), 'config.json')))) {
    const checkpoint = await open(folderOf(name));
    formats.add(checkpoint.format);
    assert.ok(checkpoint.tensors.size > 0);
    api.flattenConfig(checkpoint.config);
    const sizes = [...(await contents(checkpoint.tensors, 1000)).entries()];
    for (const [tensor, bytes] of sizes) {
      const { dtype, shape } = checkpoint.tensors.get(tensor);
      const width = { F32: 4, F16: 2, BF16: 2, BOOL: 1, U8: 1, I64: 8 }[dtype];
      assert.equal(
        bytes.length,
        shape.reduce((product, n) => product * n, width),
        `${name}: ${tensor}`,
      );
    }
    await checkpoint.close();
  }
  assert.deepEqual([...formats].sort(), ['pytorch', 'safetensors']);
});

test('llama2.c: the weights under their safetensors names', async () => {
  for (const [file, reference] of [
    ['tied', 'tied'],
    ['untied', 'untied'],
    ['version1', 'tied'],
  ]) {
    const checkpoint = await open({ [`${file}.bin`]: bytesOf('llama2c', `${file}.bin`) });
    assert.equal(checkpoint.format, 'llama2.c');
    const expected = readTensors(at('llama2c', `${reference}.safetensors`));
    const got = await contents(checkpoint.tensors, 100);
    assert.deepEqual([...got.keys()].sort(), Object.keys(expected).sort());
    for (const [name, { data, shape }] of Object.entries(expected)) {
      assert.deepEqual([...checkpoint.tensors.get(name).shape], shape);
      assert.deepEqual(new Float32Array(Uint8Array.from(got.get(name)).buffer), data, name);
    }
    assert.deepEqual(
      { ...checkpoint.config },
      {
        model_type: 'llama',
        architectures: ['LlamaForCausalLM'],
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        vocab_size: 300,
        max_position_embeddings: 16,
        rms_norm_eps: 1e-5,
        rope_theta: 10000,
        rope_interleaved: true,
        hidden_act: 'silu',
        tie_word_embeddings: reference === 'tied',
        torch_dtype: 'float32',
      },
    );
    assert.deepEqual({ ...checkpoint.generationConfig }, { bos_token_id: 1, eos_token_id: [1, 2] });
  }
  const local = await open(at('llama2c', 'tied.bin'));
  const tokenizer = await api.loadTokenizer(local);
  assert.equal(tokenizer.decode(tokenizer.encode('The quick brown fox')), '<s> The quick brown fox');
});

test('llama2.c: malformed', async () => {
  const good = bytesOf('llama2c/tied.bin');
  const bent = (at, value) => {
    const bytes = Buffer.from(good);
    bytes.writeInt32LE(value, at);
    return open({ 'model.bin': new Uint8Array(bytes) });
  };
  for (const [at, what] of [
    [0, 'dim'],
    [4, 'hidden_dim'],
    [8, 'n_layers'],
    [12, 'n_heads'],
    [16, 'n_kv_heads'],
    [20, 'vocab_size'],
    [24, 'seq_len'],
  ]) {
    for (const value of [0, 2 ** 31 - 1, -(2 ** 31)]) await refuses(bent(at, value), 'invalid-file', /llama2.c: /, `${what} = ${value}`);
  }
  await refuses(bent(8, 3), 'invalid-file', /length/, 'a layer more');
  await refuses(bent(20, -300), 'invalid-file', /lm_head.weight/, 'a head that is not there');
  for (const length of [1, 27, 28, 1000, good.length - 4])
    await refuses(open({ 'model.bin': good.subarray(0, length) }), 'invalid-file', /length/, `cut to ${length}`);
  const quantised = bytesOf('llama2c/version1.bin');
  quantised[4] = 2;
  await refuses(open({ 'model.bin': quantised }), 'unsupported', /int8/, 'version 2');
});

test('names are found with and without their prefix; what is missing or misshapen is named', () => {
  const tensor = (name, shape, dtype = 'F32') => [name, { name, shape, dtype, source: null, begin: 0, end: 0 }];
  const parameters = [
    { name: 'h.0.w', shape: [2, 3], prefix: 'transformer.' },
    { name: 'model.norm.weight', shape: [3], prefix: 'model.' },
    { name: 'lm_head.weight', shape: [5, 3], prefix: '' },
  ];
  const good = [
    tensor('h.0.w', [2, 3]),
    tensor('norm.weight', [3], 'F16'),
    tensor('lm_head.weight', [5, 3], 'BF16'),
    tensor('h.0.attn.bias', [1, 1, 9, 9], 'U8'),
  ];
  const { matches, dtypes, unused } = matchTensors(parameters, new Map(good));
  assert.deepEqual(
    matches.map(({ index, entry }) => [index, entry.name]),
    [
      [0, 'h.0.w'],
      [1, 'norm.weight'],
      [2, 'lm_head.weight'],
    ],
  );
  assert.deepEqual(dtypes, ['F32', 'F16', 'BF16']);
  assert.deepEqual(unused, ['h.0.attn.bias']);
  const prefixed = good.map(([name, entry]) => [`transformer.${name}`, { ...entry, name: `transformer.${name}` }]);
  assert.deepEqual(matchTensors(parameters.slice(0, 1), new Map(prefixed)).matches[0].entry.name, 'transformer.h.0.w');
  const fails = (tensors, code, pattern) =>
    assert.throws(
      () => matchTensors(parameters, new Map(tensors)),
      (error) => error.code === code && pattern.test(error.message),
    );
  fails(good.slice(1), 'missing-tensor', /h\.0\.w/);
  fails([], 'missing-tensor', /h\.0\.w, model\.norm\.weight, lm_head\.weight/);
  fails([tensor('h.0.w', [3, 2]), ...good.slice(1)], 'shape-mismatch', /h\.0\.w: expected shape \[2, 3\], got \[3, 2\]/);
  fails([tensor('h.0.w', [6]), ...good.slice(1)], 'shape-mismatch', /\[6\]/);
  fails([tensor('h.0.w', [2, 3], 'I64'), ...good.slice(1)], 'unsupported', /h\.0\.w.*I64/);
});

test("BERT's files: norms under their first names, a bias under either name, parts that may be lacking", () => {
  const tensor = (name, shape) => [name, { name, shape, dtype: 'F32', source: null, begin: 0, end: 0 }];
  const parameters = [
    { name: 'bert.embeddings.LayerNorm.weight', shape: [3], prefix: 'bert.' },
    { name: 'bert.embeddings.LayerNorm.bias', shape: [3], prefix: 'bert.' },
    { name: 'bert.pooler.dense.weight', shape: [3, 3], prefix: 'bert.', option: 'add_pooling_layer' },
    { name: 'bert.pooler.dense.bias', shape: [3], prefix: 'bert.', option: 'add_pooling_layer' },
    { name: 'cls.predictions.bias', shape: [5], prefix: 'bert.', alias: 'cls.predictions.decoder.bias', option: 'add_lm_head' },
  ];
  const norm = [tensor('embeddings.LayerNorm.gamma', [3]), tensor('embeddings.LayerNorm.beta', [3])];
  const pooler = [tensor('bert.pooler.dense.weight', [3, 3]), tensor('bert.pooler.dense.bias', [3])];
  const match = (...tensors) => {
    const { matches, without } = matchTensors(parameters, new Map(tensors));
    return [matches.map(({ index, entry }) => `${index} ${entry.name}`), without];
  };
  const norms = ['0 embeddings.LayerNorm.gamma', '1 embeddings.LayerNorm.beta'];
  const poolers = ['2 bert.pooler.dense.weight', '3 bert.pooler.dense.bias'];
  assert.deepEqual(match(...norm), [norms, ['add_pooling_layer', 'add_lm_head']]);
  assert.deepEqual(match(...norm, ...pooler), [[...norms, ...poolers], ['add_lm_head']]);
  assert.deepEqual(match(...norm, ...pooler, tensor('cls.predictions.decoder.bias', [5])), [
    [...norms, ...poolers, '4 cls.predictions.decoder.bias'],
    [],
  ]);
  // A part of a part is a file that was cut.
  assert.throws(() => match(...norm, pooler[0]), { code: 'missing-tensor', message: /expected tensor bert\.pooler\.dense\.bias,/ });
  assert.throws(() => match(...norm.slice(1)), { code: 'missing-tensor', message: /bert\.embeddings\.LayerNorm\.weight/ });
});

test('F64 is rounded to F32', async () => {
  const values = Float64Array.of(1 / 3, -1e-50, 1e300, -0, 2 ** -149 * 1.5, 16_777_217);
  const tensors = await readSafetensors(source(safetensors({ w: { dtype: 'F64', shape: [3, 2], data: new Uint8Array(values.buffer) } })));
  assert.deepEqual(matchTensors([{ name: 'w', shape: [3, 2] }], tensors).dtypes, ['F32']);
  for (const slabBytes of [1, 32, 1000]) {
    assert.deepEqual(new Float32Array(Uint8Array.from((await contents(tensors, slabBytes)).get('w')).buffer), Float32Array.from(values));
  }
});

test('configurations are flattened', () => {
  const parsed = api.parseObject(
    '{"a":1,"b":{"c":true,"d":{"e":null}},"f":[1,2],"g":["x"],"h":[],"i":[[1]],"j":[1,"x"],"id2label":{"0":"x"},"__proto__":{"polluted":1},"constructor":5,"n":NaN,"inf":-Infinity}',
    'config.json',
  );
  assert.deepEqual(
    { ...api.flattenConfig(parsed) },
    {
      a: 1,
      'b.c': true,
      'b.d.e': null,
      f: [1, 2],
      g: ['x'],
      h: [],
      '__proto__.polluted': 1,
      constructor: 5,
      n: null,
      inf: Number.NEGATIVE_INFINITY,
      num_labels: 1,
    },
  );
  const labels = api.parseObject('{"num_labels":3,"id2label":{"0":"x","1":"y"}}', 'config.json');
  assert.deepEqual({ ...api.flattenConfig(labels) }, { num_labels: 2 });
  assert.equal({}.polluted, undefined);
  assert.equal(api.flattenConfig(api.parseObject('{}', 'x')).toString, undefined);
  assert.throws(() => api.flattenConfig(api.parseObject('{"a.b":1,"a":{"b":2}}', 'x')), { code: 'invalid-file', message: /a\.b/ });
  assert.throws(() => api.flattenConfig(api.parseObject(`${'{"a":'.repeat(20)}1${'}'.repeat(20)}`, 'x')), { code: 'invalid-file' });
});

test('generation settings: the file of their own, or what an old config.json has', () => {
  const object = (value) => api.parseObject(JSON.stringify(value), 'x');
  const merge = (config, generation) => ({ ...api.mergeGenerationConfig(object(config), generation && object(generation)) });
  assert.deepEqual(
    merge(
      { eos_token_id: 5, top_k: 7 },
      { eos_token_id: [1, 2], temperature: 0.5, transformers_version: '5', _from_model_config: true, pad_token_id: null },
    ),
    { eos_token_id: [1, 2], temperature: 0.5 },
  );
  assert.deepEqual(merge({ eos_token_id: 5, bos_token_id: null, top_k: 7, num_beams: 1, max_length: 30, vocab_size: 3 }, null), {
    eos_token_id: 5,
    top_k: 7,
    max_length: 30,
  });
  assert.deepEqual(merge({ text_config: { eos_token_id: 9 } }, null), { eos_token_id: 9 });
  const beams = {
    num_beams: 6,
    length_penalty: 0.8,
    early_stopping: true,
    forced_bos_token_id: 0,
    bad_words_ids: [[5]],
    encoder_no_repeat_ngram_size: 3,
  };
  assert.deepEqual(merge({ ...beams, num_beam_groups: 1, diversity_penalty: 0, encoder_repetition_penalty: 1, d_model: 8 }, null), beams);
  assert.deepEqual(merge(beams, {}), {}, 'a generation_config.json stands alone');
  assert.deepEqual(merge({}, { eos_token_id: -1 }), {});
  assert.throws(() => merge({}, { eos_token_id: 'x' }), { code: 'invalid-file', message: /eos_token_id/ });
  assert.throws(() => merge({}, { eos_token_id: [1, 'x'] }), { code: 'invalid-file' });
});

test('any byte may be wrong: a named error or a checkpoint, at once', async () => {
  let state = 20_170_612;
  const next = (n) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
  const tokenizer = (bytes) => api.readLlama2cTokenizer(bytes, 'tokenizer.bin');
  const subjects = [
    ['torch/odd.safetensors', (bytes) => readSafetensors(source(bytes)), 700],
    ['torch/odd.bin', (bytes) => readPytorch(source(bytes)), 4165],
    ['torch/zip64.bin', (bytes) => readPytorch(source(bytes)), 1441],
    ['llama2c/tied.bin', (bytes) => open({ 'model.bin': bytes }), 40],
    ['llama2c/tokenizer.bin', tokenizer, 1000],
  ];
  for (const [name, read, span] of subjects) {
    const good = bytesOf(name);
    let refused = 0;
    for (let round = 0; round < 1500; ++round) {
      const bytes = good.slice(0, next(8) === 0 ? next(good.length) : good.length);
      for (let change = 1 + next(3); change > 0 && bytes.length > 0; --change) {
        const where = next(Math.min(span, bytes.length));
        bytes[where] = [0, 255, 128, 1, bytes[where] ^ (1 << next(8)), next(256)][next(6)];
      }
      const start = process.cpuUsage();
      try {
        await read(bytes);
      } catch (error) {
        assert.ok(error instanceof api.WasmformerError, `${name}, round ${round}: ${error.stack}`);
        assert.ok(['invalid-file', 'unsupported', 'not-found'].includes(error.code), `${name}, round ${round}: ${error.code}`);
        assert.ok(error.message.length < 600, error.message);
        ++refused;
      }
      assert.ok(spent(start) < 100, `${name}, round ${round}`);
    }
    assert.ok(refused > 300, `${name}: ${refused} of 1500 refused`);
  }
});

test('messages stay short whatever a file holds', async () => {
  const long = 'x'.repeat(100_000);
  const fails = (work) => refuses(work, 'invalid-file', /./, 'a long value');
  await fails(readSafetensors(file({ [long]: entry('F32', [2], 0, 4) }, 4)));
  await fails(readSafetensors(file({ a: entry(long, [2], 0, 8) }, 8)));
  await fails(readSafetensors(file({ a: entry('F32', Array(50_000).fill(1.5), 0, 8) }, 8)));
  await fails(readSafetensors(file({ a: entry('F32', [2], ...Array(50_000).fill(1)) }, 8)));
  await fails(open(sharded({ a: `../${long}` })));
  await fails(open(sharded({ [long]: 7 })));
  await refuses(open(sharded({ [long]: 's-00001-of-00002.safetensors' })), 'missing-tensor', /./, 'a long name');
});

test('errors keep their code on the way through postMessage', () => {
  const error = new api.WasmformerError('quota', '[x] full');
  const back = api.fromPlainError(structuredClone(api.toPlainError(error)));
  assert.ok(back instanceof api.WasmformerError);
  assert.deepEqual([back.code, back.message, back.stack], ['quota', '[x] full', error.stack]);
  assert.equal(api.fromPlainError(api.toPlainError(new DOMException('stop', 'AbortError'))).name, 'AbortError');
  assert.equal(api.fromPlainError(api.toPlainError('text')).message, 'text');
  assert.equal(new Set(api.errorCodes).size, api.errorCodes.length);
});
