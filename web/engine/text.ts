import type { StreamDecoder } from '../files/index.ts';

/**
 * Turns the tokens of one sequence into pieces of text whose concatenation is the final text: nothing is given out
 * that may still turn out to be the beginning of a stop string.
 */
export class TextAssembler {
  #decoder: StreamDecoder | null;
  #stops: string[];
  #held = '';
  #text = '';
  #ended = false;

  /** Without a decoder (a model without a tokenizer) the text stays empty. */
  constructor(decoder: StreamDecoder | null, stopStrings: string[]) {
    this.#decoder = decoder;
    this.#stops = stopStrings;
  }

  /** What has been given out. */
  get text(): string {
    return this.#text;
  }

  /** Takes a token; `stopped` says that a stop string is complete, and the text before it is all there will be. */
  push(token: number): { text: string; stopped: boolean } {
    if (!this.#decoder || this.#ended) return { text: '', stopped: false };
    return this.#take(this.#decoder.push(token));
  }

  /** The sequence has ended: what was held back, to go with the last token's piece. */
  end(): { text: string; stopped: boolean } {
    if (!this.#decoder || this.#ended) return { text: '', stopped: false };
    const { text, stopped } = this.#take(this.#decoder.end());
    const rest = this.#ended ? '' : this.#give(this.#held);
    this.#ended = true;
    return { text: text + rest, stopped };
  }

  #take(added: string): { text: string; stopped: boolean } {
    const all = this.#held + added;
    // The earliest stop string in the text; of two at one place it does not matter which.
    let cut = -1;
    for (const stop of this.#stops) {
      const at = all.indexOf(stop);
      if (at >= 0 && (cut < 0 || at < cut)) cut = at;
    }
    if (cut >= 0) {
      this.#ended = true;
      this.#held = '';
      return { text: this.#give(all.slice(0, cut)), stopped: true };
    }
    let keep = all.length;
    for (const stop of this.#stops) {
      for (let length = Math.min(stop.length - 1, all.length); length > 0; --length) {
        if (stop.startsWith(all.slice(all.length - length))) {
          keep = Math.min(keep, all.length - length);
          break;
        }
      }
    }
    this.#held = all.slice(keep);
    return { text: this.#give(all.slice(0, keep)), stopped: false };
  }

  #give(text: string): string {
    this.#text += text;
    return text;
  }
}
