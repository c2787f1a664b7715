// onnxruntime-web with its WebAssembly backend on one ONNX file (encoder-decoder models: three), and the loop around it that
// a user writes: the cache goes from outputs to inputs, the next token is the largest logit.

const names = { f32: '', int8: '_quantized', q8: '_quantized', q4: '_q4' };

const entry = (base) =>
  typeof process === 'object'
    ? import(new URL('../node_modules/onnxruntime-web/dist/ort.node.min.mjs', import.meta.url).href)
    : import(`${base}/bench/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs`);

export async function open({ base, model, dtype, threads, files = ['model'] }) {
  const ort = await entry(base);
  ort.env.wasm.numThreads = threads;
  ort.env.wasm.wasmPaths = typeof process === 'object' ? undefined : `${base}/bench/node_modules/onnxruntime-web/dist/`;
  ort.env.logLevel = 'error';
  const folder = `${base}/models/${model}`;
  const config = await fetch(`${folder}/config.json`).then((response) => (response.ok ? response.json() : {}));
  const sessions = {};
  for (const file of files) {
    const bytes = await fetch(`${folder}/onnx/${file}${names[dtype]}.onnx`).then((response) => response.arrayBuffer());
    sessions[file] = await ort.InferenceSession.create(new Uint8Array(bytes), { executionProviders: ['wasm'] });
  }

  const int64 = (values) => new ort.Tensor('int64', BigInt64Array.from(values, BigInt), [1, values.length]);
  const ones = (length) => int64(new Uint8Array(length).fill(1));
  const range = (begin, count) => int64(Array.from({ length: count }, (_, i) => begin + i));

  function largest({ data }) {
    let best = 0;
    for (let i = 1; i < data.length; ++i) if (data[i] > data[best]) best = i;
    return best;
  }

  /** Inputs of a step from the outputs of the step before, or an empty cache. */
  function pastOf(session, outputs) {
    const past = {};
    for (const name of session.inputNames) {
      if (!name.startsWith('past_key_values.')) continue;
      const heads = config.num_key_value_heads ?? config.n_head ?? config.decoder_attention_heads;
      const size = (config.hidden_size ?? config.n_embd ?? config.d_model) / (config.num_attention_heads ?? config.n_head ?? heads);
      past[name] = outputs
        ? outputs[name.replace('past_key_values', 'present')]
        : new ort.Tensor('float32', new Float32Array(0), [1, heads, 0, size]);
    }
    return past;
  }

  const needed = (session, feeds) => Object.fromEntries(Object.entries(feeds).filter(([name]) => session.inputNames.includes(name)));

  return {
    async generate(ids, count) {
      const session = sessions.model;
      const times = [];
      const tokens = [];
      const start = performance.now();
      let outputs;
      let next = ids;
      for (let length = ids.length; times.length < count; ++length) {
        const feeds = { input_ids: int64(next), attention_mask: ones(length), position_ids: range(length - next.length, next.length) };
        outputs = await session.run({ ...needed(session, feeds), ...pastOf(session, outputs) });
        next = [largest(outputs.logits)];
        times.push(performance.now() - start);
        tokens.push(next[0]);
      }
      return { times, tokens };
    },
    async translate(ids, count) {
      const { encoder_model: encoder, decoder_model: decoder, decoder_with_past_model: later } = sessions;
      const times = [];
      const tokens = [];
      const start = performance.now();
      const { last_hidden_state: states } = await encoder.run({ input_ids: int64(ids) });
      let source = {};
      let outputs;
      let next = config.decoder_start_token_id;
      while (times.length < count) {
        const session = outputs ? later : decoder;
        const feeds = outputs ? pastOf(session, { ...source, ...outputs }) : { ...pastOf(session), encoder_hidden_states: states };
        const first = !outputs;
        outputs = await session.run({ input_ids: int64([next]), ...feeds });
        if (first) source = outputs;
        next = largest(outputs.logits);
        times.push(performance.now() - start);
        tokens.push(next);
      }
      return { times, tokens };
    },
    async forward(ids) {
      const start = performance.now();
      const feeds = { input_ids: int64(ids), attention_mask: ones(ids.length), token_type_ids: int64(new Uint8Array(ids.length)) };
      const { last_hidden_state: states } = await sessions.model.run(feeds);
      return { ms: performance.now() - start, values: Array.from(states.data.subarray(0, 8)) };
    },
    /** One product x (rows, size) W (size, size), `times` times. */
    async product(rows, size, times) {
      const x = new ort.Tensor(
        'float32',
        Float32Array.from({ length: rows * size }, (_, i) => (i % 17) / 17 - 0.5),
        [rows, size],
      );
      const session = sessions[`matmul-${size}`];
      const start = performance.now();
      for (let i = 0; i < times; ++i) await session.run({ x });
      return (performance.now() - start) / times;
    },
    close: () => Promise.all(Object.values(sessions).map((session) => session.release())),
  };
}
