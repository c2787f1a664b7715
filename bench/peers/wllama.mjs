// wllama in a page, on the processor alone. It takes texts: the vocabulary of gguf.mjs tokenises ASCII to its bytes.

const firstByte = 3;
const names = { f32: 'F32', q8: 'Q8_0', q4: 'Q4_0' };

export async function open({ base, model, dtype, threads }) {
  const place = `${base}/bench/node_modules/@wllama/wllama/esm`;
  const { LoggerWithoutDebug, Wllama } = await import(`${place}/index.min.js`);
  const wllama = new Wllama({ default: `${place}/wasm/wllama.wasm` }, { suppressNativeLog: true, logger: LoggerWithoutDebug });
  const blob = await fetch(`${base}/models/${model}/${names[dtype]}.gguf`).then((response) => response.blob());
  await wllama.loadModel([blob], { n_ctx: 1024, n_threads: threads, n_gpu_layers: 0, n_parallel: 1 });
  return {
    async generate(ids, count) {
      const times = [];
      let text = '';
      const start = performance.now();
      const stream = await wllama.createCompletion({
        prompt: String.fromCharCode(...ids.map((id) => id - firstByte)),
        max_tokens: count,
        temperature: 0,
        ignore_eos: true,
        cache_prompt: false,
        stream: true,
      });
      for await (const { choices } of stream) {
        if (!choices[0]?.text) continue;
        times.push(performance.now() - start);
        text += choices[0].text;
      }
      return { times, tokens: [...text.matchAll(/ t(\d+)|[\s\S]/g)].map(([char, id]) => Number(id ?? char.charCodeAt(0) + firstByte)) };
    },
    close: () => wllama.exit(),
  };
}
