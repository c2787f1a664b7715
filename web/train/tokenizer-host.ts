import type { EnginePlatform } from '../engine/engine.ts';
import type { Call, Methods } from '../engine/host.ts';
import { WasmformerError } from '../errors.ts';
import { openTokenizerOf, type Tokenizer } from '../files/index.ts';
import type { TokenizerInfo } from '../types.ts';
import { type TokenizerFiles, type TokenizerPlan, TokenizerTrainer } from './tokenizer-trainer.ts';

/** Longest stretch of work, in milliseconds, without other tasks of the thread having their turn. */
const longestTask = 12;

/** The engine's methods for tokenizers without a model. Trainings are told apart by numbers that the callers choose. */
export function tokenizerMethods({ files, turn }: EnginePlatform, describe: (tokenizer: Tokenizer) => TokenizerInfo): Methods {
  const trainers = new Map<number, TokenizerTrainer>();
  /** The one that was used last, and by which file it is known. */
  let used: { json: string; tokenizer: Tokenizer } | null = null;

  const open = async (parts: TokenizerFiles): Promise<Tokenizer> => {
    const json = parts['tokenizer.json'];
    if (used?.json !== json) {
      const bytes = Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, new TextEncoder().encode(text)]));
      used = { json, tokenizer: (await openTokenizerOf(bytes, null, {}, files))! };
    }
    return used.tokenizer;
  };

  return {
    countTexts(id: number, type: TokenizerPlan['type'], texts: string[]) {
      let trainer = trainers.get(id);
      if (!trainer) trainers.set(id, (trainer = new TokenizerTrainer(type)));
      for (const text of texts) trainer.add(text);
    },
    async trainTokenizer(id: number, plan: TokenizerPlan, { signal }: Call) {
      const trainer = plan.type === 'byte' ? new TokenizerTrainer('byte') : trainers.get(id);
      if (!trainer) throw new WasmformerError('dead', '[trainTokenizer] the worker that counted the texts is gone');
      let turned = performance.now();
      const made = await trainer.train(plan, async () => {
        if (performance.now() - turned < longestTask) return;
        await turn();
        signal.throwIfAborted();
        turned = performance.now();
      });
      return { files: made, info: describe(await open(made)) };
    },
    forgetTexts(id: number) {
      trainers.delete(id);
    },
    async encodeTexts(parts: TokenizerFiles, texts: string[], { addSpecialTokens = true }: { addSpecialTokens?: boolean }) {
      const tokenizer = await open(parts);
      return texts.map((text) => tokenizer.encode(text, { addSpecialTokens }));
    },
    async decodeIds(parts: TokenizerFiles, sequences: Int32Array[], { skipSpecialTokens = true }: { skipSpecialTokens?: boolean }) {
      const tokenizer = await open(parts);
      return sequences.map((ids) => tokenizer.decode(ids, { skipSpecialTokens }));
    },
  };
}
