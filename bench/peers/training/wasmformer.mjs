// This library, as its users call it.

export async function open({ dist, shape, ids, learningRate, threads }) {
  const { create } = await import(`${dist}/node.js`);
  const { layers, D, H, V, sequences, length } = shape;
  const config = { model_type: 'gpt2', vocab_size: V, n_embd: D, n_layer: layers, n_head: H, n_positions: length };
  const lm = await create(config, { seed: 1, threads });
  const data = Array.from({ length: sequences }, (_, i) => ({ inputIds: ids.slice(i * length, (i + 1) * length) }));
  const steps = lm.train(data, { steps: 1e6, batchTokens: sequences * length, learningRate, dropout: 0 });
  return {
    step: async () => (await steps.next()).value.loss,
    async close() {
      await steps.return();
      await lm.dispose();
    },
  };
}
