import type { Tokenizer } from '../files/index.ts';
import type { FinishReason, GenerateResult, Piece, TokenLogprob } from '../types.ts';
import type { Native, NativeGeneration, NativeStep } from './native.ts';
import { TextAssembler } from './text.ts';

/** A generation's settings that the native side does not know of. */
export interface TextSettings {
  tokenizer: Tokenizer | null;
  skipSpecialTokens: boolean;
  stopStrings: string[];
  /** Seconds. */
  maxTime?: number;
  logprobs: number;
  beams: boolean;
  numReturnSequences: number;
  seed: number;
}

/** One sequence on its way. */
interface Sequence {
  text: TextAssembler;
  result: GenerateResult;
  done: boolean;
}

/**
 * Runs a native generation to its end. `emit` gets the pieces of each step. The event loop turns between steps, which is
 * when an abort arrives; it ends all sequences with what they have.
 */
export async function runGeneration(
  native: Native,
  prompts: Int32Array[],
  /** Of each prompt, the tokens that the generated ones follow. */
  contexts: ArrayLike<number>[],
  start: () => NativeGeneration,
  settings: TextSettings,
  { signal, emit, turn }: { signal: AbortSignal; emit(pieces: Piece[]): void; turn(): Promise<void> },
): Promise<GenerateResult[]> {
  const { tokenizer, stopStrings, maxTime, logprobs, beams, numReturnSequences, seed } = settings;
  // The text of a special token may be left out, so a stop string that is one is recognised by its id.
  const stopIds = new Set<number>();
  for (const stop of stopStrings) {
    const id = tokenizer?.tokenToId(stop);
    if (id != null) stopIds.add(id);
  }
  const sequences: Sequence[] = [];
  const finish = (sequence: Sequence, reason: FinishReason) => {
    sequence.done = true;
    sequence.result.finishReason = reason;
  };

  const began = performance.now();
  let generation: NativeGeneration | null = null;
  try {
    if (!signal.aborted) generation = start();
    // Made after the native side agreed to so many.
    for (const [p, prompt] of prompts.entries()) {
      for (let n = 0; n < numReturnSequences; ++n) {
        const decoder = tokenizer?.createDecoder({ skipSpecialTokens: settings.skipSpecialTokens, after: Array.from(contexts[p]) }) ?? null;
        sequences.push({
          text: new TextAssembler(decoder, stopStrings),
          result: {
            text: '',
            tokenIds: [],
            finishReason: 'aborted',
            score: 0,
            promptTokens: prompt.length,
            seed,
            ...(logprobs > 0 ? { logprobs: [] } : {}),
          },
          done: false,
        });
      }
    }
    let over: FinishReason | undefined;
    while (generation && (beams || !signal.aborted)) {
      const running = generation;
      if (signal.aborted) over = 'aborted';
      // What beams have found by now is a result too.
      const step: NativeStep = native.call(() => (over ? running.conclude() : running.advance()));
      const pieces: Piece[] = [];
      for (const { sequence, index, token, logprob, top } of step.tokens) {
        const { text, result, done } = sequences[sequence];
        if (done) continue;
        result.tokenIds.push(token);
        result.score += logprob;
        const piece: Piece = { text: '', tokenId: token, logprob, sequence, index };
        if (logprobs > 0) {
          piece.top = topOf(top);
          result.logprobs?.push({ tokenId: token, logprob, top: piece.top });
        }
        const { text: added, stopped } = text.push(token);
        piece.text = added;
        pieces.push(piece);
        if (stopped || stopIds.has(token)) {
          finish(sequences[sequence], 'stop');
          if (!step.done) native.call(() => running.stop(sequence, 'stop'));
        }
      }
      for (const { sequence, reason, score } of step.finished) {
        const { result, done } = sequences[sequence];
        if (!done) finish(sequences[sequence], over ?? (reason as FinishReason));
        result.score = score ?? result.score;
      }
      // Looked at after a token, as in Python: the prompt's pass is never cut short.
      if (maxTime !== undefined && step.grew && performance.now() - began >= maxTime * 1000) over ??= 'time';
      if (over && (step.done || !beams)) for (const sequence of sequences) if (!sequence.done) finish(sequence, over);
      for (const piece of pieces) {
        const { text, result, done } = sequences[piece.sequence];
        // The last token takes along what was held back; that may yet complete a stop string.
        if (done && piece.index === result.tokenIds.length - 1) {
          const { text: rest, stopped } = text.end();
          piece.text += rest;
          if (stopped) result.finishReason = 'stop';
        }
      }
      if (pieces.length > 0) emit(pieces);
      if (step.done || sequences.every(({ done }) => done)) break;
      await turn();
    }
  } finally {
    if (generation && !native.death) generation.delete();
  }
  return sequences.map(({ text, result }) => ({ ...result, text: text.text }));
}

function topOf(top: { ids: Int32Array; logprobs: Float32Array } | undefined): TokenLogprob[] {
  return top ? Array.from(top.ids, (tokenId, i) => ({ tokenId, logprob: top.logprobs[i] })) : [];
}
