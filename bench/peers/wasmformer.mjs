// This library, as its users call it.

/** A page imports what is published for pages, Node what is published for Node. */
const entry = (base, dist) => import(typeof process === 'object' ? `${dist}/node.js` : `${base}/dist/index.js`);

export async function open({ base, dist, model, dtype, threads, cacheDtype, worker }) {
  const { load } = await entry(base, dist);
  const options = { cacheDir: false, dtype, threads, cacheDtype, worker };
  for (const key of Object.keys(options)) if (options[key] === undefined) delete options[key];
  const lm = await load(`${base}/models/${model}`, options);
  const caches = [];
  const greedy = { doSample: false, numBeams: 1, eosTokenId: null };

  /** Milliseconds from the call to each token. */
  async function generate(ids, count, options = {}) {
    const times = [];
    const tokens = [];
    const start = performance.now();
    for await (const { tokenId } of lm.generate({ inputIds: ids }, { ...greedy, maxNewTokens: count, ...options })) {
      times.push(performance.now() - start);
      tokens.push(tokenId);
    }
    return { times, tokens };
  }

  return {
    generate,
    translate: generate,
    async forward(ids) {
      const start = performance.now();
      const [result] = await lm.forward({ inputIds: [ids] });
      return { ms: performance.now() - start, values: Array.from((result.lastHiddenState ?? result.logits).data.subarray(0, 8)) };
    },
    /** Reads `texts`, each the beginning of the next, into one cache. Its number, and the memory after each, other caches left out. */
    async remember(texts) {
      const others = (await lm.memory()).cache;
      const cache = await lm.createCache();
      const memory = [];
      for (const ids of texts) {
        await generate(ids, 1, { cache });
        const now = await lm.memory();
        memory.push({ ...now, cache: now.cache - others });
      }
      return { index: caches.push({ cache, ids: texts.at(-1) }) - 1, memory };
    },
    /** What follows a remembered text: only its last token is read again. */
    async continue(index, count) {
      const { cache, ids } = caches[index];
      await cache.truncate(ids.length - 1);
      return generate(ids, count, { cache });
    },
    memory: () => lm.memory(),
    info: () => lm.info(),
    close: () => lm.dispose(),
  };
}
