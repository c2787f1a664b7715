// @huggingface/transformers in a page, on its WebAssembly backend.

const names = { f32: 'fp32', q8: 'q8', q4: 'q4' };

export async function open({ base, model, dtype, threads }) {
  const { AutoModelForCausalLM, BaseStreamer, Tensor, env } = await import(
    `${base}/bench/node_modules/@huggingface/transformers/dist/transformers.min.js`
  );
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = `${base}/models/`;
  env.useBrowserCache = false;
  env.backends.onnx.wasm.numThreads = threads;
  env.backends.onnx.wasm.wasmPaths = `${base}/bench/node_modules/@huggingface/transformers/node_modules/onnxruntime-web/dist/`;
  const lm = await AutoModelForCausalLM.from_pretrained(model, { dtype: names[dtype], device: 'wasm' });
  const int64 = (values) => new Tensor('int64', BigInt64Array.from(values, BigInt), [1, values.length]);
  return {
    async generate(ids, count) {
      const times = [];
      const tokens = [];
      const start = performance.now();
      class Streamer extends BaseStreamer {
        #prompt = true;
        put([values]) {
          if (!this.#prompt) {
            times.push(performance.now() - start);
            tokens.push(Number(values[0]));
          }
          this.#prompt = false;
        }
        end() {}
      }
      await lm.generate({
        inputs: int64(ids),
        attention_mask: int64(new Uint8Array(ids.length).fill(1)),
        max_new_tokens: count,
        do_sample: false,
        eos_token_id: null,
        streamer: new Streamer(),
      });
      return { times, tokens };
    },
    close: () => lm.dispose(),
  };
}
