import { load } from 'wasmformer';

try {
  const lm = await load(new URL('model/', document.baseURI).href, { deterministic: true });
  globalThis.threads = lm.info().threads.count;
  const stream = lm.generate('It was a ', { maxNewTokens: 24, temperature: 0.8, seed: 7 });
  for await (const piece of stream) document.querySelector('output').textContent += piece.text;
  globalThis.outcome = await stream.result;
  await lm.dispose();
} catch (error) {
  globalThis.outcome = { error: String(error.stack ?? error) };
}
