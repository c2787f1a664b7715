// jax-js on its WebAssembly backend, a step compiled by `jit`; on one thread as it runs in Node. Every use of an array but the
// last takes a reference. The optimiser is written here: the package has none.
import { jit, nn, numpy as np, random, tree, valueAndGrad } from '@jax-js/jax';

export async function open({ shape, ids, targets, learningRate }) {
  const { layers, D, H, V, sequences, length } = shape;
  const rows = sequences * length;
  let seed = 0;
  const drawn = (...size) => random.normal(random.key(++seed), size).mul(0.02);
  const norm = () => ({ gain: np.ones([D]), bias: np.zeros([D]) });
  const linear = (inputs, outputs) => ({ weight: drawn(inputs, outputs), bias: np.zeros([outputs]) });
  let weights = {
    words: drawn(V, D),
    places: drawn(length, D),
    last: norm(),
    blocks: Array.from({ length: layers }, () => ({
      norm1: norm(),
      qkv: linear(D, 3 * D),
      out: linear(D, D),
      norm2: norm(),
      up: linear(D, 4 * D),
      down: linear(4 * D, D),
    })),
  };
  const zeros = () => tree.map((x) => np.zeros(x.shape), weights);
  let moments = [zeros(), zeros()];
  const [input, output] = [ids, targets].map((tokens) => np.array(Int32Array.from(tokens), { dtype: np.int32 }));

  const apply = ({ weight, bias }, x) => np.matmul(x, weight).add(bias);
  const normalise = ({ gain, bias }, x) => nn.standardize(x, -1, { epsilon: 1e-5 }).mul(gain).add(bias);
  function attention({ qkv, out }, x) {
    const [q, k, v] = np.split(apply(qkv, x), 3, 1).map((part) => part.reshape([sequences, length, H, D / H]));
    return apply(out, nn.dotProductAttention(q, k, v, { isCausal: true }).reshape([rows, D]));
  }
  function loss({ words, places, last, blocks }, input, output) {
    let x = np.matmul(nn.oneHot(input, V), words.ref).reshape([sequences, length, D]).add(places).reshape([rows, D]);
    for (const block of blocks) {
      x = x.ref.add(attention(block, normalise(block.norm1, x)));
      x = x.ref.add(apply(block.down, nn.gelu(apply(block.up, normalise(block.norm2, x)), { approximate: true })));
    }
    const logits = nn.logSoftmax(np.matmul(normalise(last, x), words.transpose()), -1);
    return logits
      .mul(nn.oneHot(output, V))
      .sum()
      .mul(-1 / rows);
  }
  const [beta1, beta2] = [0.9, 0.999];
  const update = jit((weights, first, second, input, output, rate1, rate2) => {
    const [value, gradient] = valueAndGrad(loss)(tree.ref(weights), input, output);
    const next1 = tree.map((m, g) => m.mul(beta1).add(g.mul(1 - beta1)), first, tree.ref(gradient));
    const next2 = tree.map((v, g) => v.mul(beta2).add(np.square(g).mul(1 - beta2)), second, gradient);
    const changed = tree.map(
      (w, m, v) => w.sub(m.mul(rate1.ref).div(np.sqrt(v.mul(rate2.ref)).add(1e-8))),
      weights,
      tree.ref(next1),
      tree.ref(next2),
    );
    return [value, changed, next1, next2];
  });
  let steps = 0;
  return {
    async step() {
      ++steps;
      const rates = [learningRate / (1 - beta1 ** steps), 1 / (1 - beta2 ** steps)].map((rate) => np.array(rate));
      const [value, changed, ...next] = update(weights, ...moments, input.ref, output.ref, ...rates);
      weights = changed;
      moments = next;
      return value.js();
    },
    close: () => {},
  };
}
