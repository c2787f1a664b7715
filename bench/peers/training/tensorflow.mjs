// TensorFlow.js on its WebAssembly backend, on one thread as it runs in Node. Words are looked up by a product with a one-hot
// matrix: the backend has no kernel UnsortedSegmentSum, which the gradient of `gather` needs.
import { createRequire } from 'node:module';

export async function open({ shape, ids, targets, learningRate }) {
  const require = createRequire(import.meta.url);
  const tf = require('@tensorflow/tfjs');
  require('@tensorflow/tfjs-backend-wasm');
  await tf.setBackend('wasm');
  const { layers, D, H, V, sequences, length } = shape;
  const rows = sequences * length;
  const drawn = (...size) => tf.variable(tf.randomNormal(size, 0, 0.02));
  const full = (value, size) => tf.variable(tf.fill([size], value));
  const norm = () => ({ gain: full(1, D), bias: full(0, D) });
  const linear = (inputs, outputs) => ({ weight: drawn(inputs, outputs), bias: full(0, outputs) });
  const blocks = Array.from({ length: layers }, () => ({
    norm1: norm(),
    qkv: linear(D, 3 * D),
    out: linear(D, D),
    norm2: norm(),
    up: linear(D, 4 * D),
    down: linear(4 * D, D),
  }));
  const [words, places, last] = [drawn(V, D), drawn(length, D), norm()];
  const [input, output] = [ids, targets].map((tokens) => tf.oneHot(tf.tensor1d(tokens, 'int32'), V).toFloat());
  const future = tf.linalg
    .bandPart(tf.ones([length, length]), -1, 0)
    .sub(1)
    .mul(1e9);

  // Its own gradient has products with a transposed factor, for which the backend takes a plain loop instead of XNNPACK.
  const product = tf.customGrad((a, b, save) => {
    save([a, b]);
    return { value: a.matMul(b), gradFunc: (dy, [a, b]) => [dy.matMul(b.transpose()), a.transpose().matMul(dy)] };
  });
  const apply = ({ weight, bias }, x) => product(x, weight).add(bias);
  function normalise({ gain, bias }, x) {
    const centred = x.sub(x.mean(-1, true));
    return centred.mul(centred.square().mean(-1, true).add(1e-5).rsqrt()).mul(gain).add(bias);
  }
  const gelu = (x) =>
    x
      .add(x.square().mul(x).mul(0.044715))
      .mul(Math.sqrt(2 / Math.PI))
      .tanh()
      .add(1)
      .mul(x.mul(0.5));
  function attention({ qkv, out }, x) {
    const parts = apply(qkv, x).split(3, 1);
    const [q, k, v] = parts.map((part) => part.reshape([sequences, length, H, D / H]).transpose([0, 2, 1, 3]));
    const weights = q
      .matMul(k, false, true)
      .mul((D / H) ** -0.5)
      .add(future)
      .softmax();
    return apply(out, weights.matMul(v).transpose([0, 2, 1, 3]).reshape([rows, D]));
  }
  function loss() {
    let x = product(input, words).reshape([sequences, length, D]).add(places).reshape([rows, D]);
    for (const block of blocks) {
      x = x.add(attention(block, normalise(block.norm1, x)));
      x = x.add(apply(block.down, gelu(apply(block.up, normalise(block.norm2, x)))));
    }
    return tf.losses.softmaxCrossEntropy(output, product(normalise(last, x), words.transpose()));
  }
  const adam = tf.train.adam(learningRate);
  return {
    step() {
      const cost = adam.minimize(loss, true);
      const [value] = cost.dataSync();
      cost.dispose();
      return value;
    },
    close: () => {},
  };
}
