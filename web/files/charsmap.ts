const utf8 = new TextEncoder();

/**
 * SentencePiece's precompiled normalisation: rules from byte strings to texts in a double array (Darts-clone by Susumu
 * Yata: 32-bit units of label, offset and value), then the texts, each ended by a zero.
 */
export class Charsmap {
  readonly #units: Uint32Array;
  readonly #texts: Uint8Array;
  readonly #made = new Map<number, string>();
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });

  /** @throws Error saying what is wrong */
  constructor(bytes: Uint8Array) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    const size = bytes.length < 4 ? 0 : view.getUint32(0, true);
    if (size < 4 || size % 4 !== 0 || size > bytes.length - 4)
      throw new Error(`expected a table within ${bytes.length} bytes, got ${size}`);
    this.#units = Uint32Array.from({ length: size / 4 }, (_, i) => view.getUint32(4 + 4 * i, true));
    this.#texts = bytes.subarray(4 + size);
  }

  /** The rules whose left side begins at `at`, shortest first: `length` bytes become `text`. Stops where `found` says so. */
  #match(bytes: Uint8Array, at: number, found: (length: number, value: number) => boolean): void {
    const units = this.#units;
    const offset = (unit: number): number => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let node = offset(units[0] as number);
    for (let i = at; i < bytes.length; ++i) {
      node ^= bytes[i] as number;
      const unit = units[node];
      if (unit === undefined || (unit & 0x800000ff) !== bytes[i]) return;
      node ^= offset(unit);
      const leaf = units[node];
      if (unit & 0x100 && leaf !== undefined && found(i + 1 - at, leaf & 0x7fffffff)) return;
    }
  }

  #text(value: number): string {
    let text = this.#made.get(value);
    if (text === undefined) {
      let end = this.#texts.indexOf(0, value);
      if (end < 0) end = this.#texts.length;
      text = this.#decoder.decode(this.#texts.subarray(value, end));
      this.#made.set(value, text);
    }
    return text;
  }

  /** What the sentencepiece library does at a place: the longest rule; its length in bytes, or null. */
  longest(bytes: Uint8Array, at: number): { length: number; text: string } | null {
    let length = 0;
    let value = 0;
    this.#match(bytes, at, (...rule) => {
      [length, value] = rule;
      return false;
    });
    return length > 0 ? { length, text: this.#text(value) } : null;
  }

  /** What the tokenizers library makes of a whole string: its shortest rule's text, or null. */
  shortest(text: string): string | null {
    let made: string | null = null;
    this.#match(utf8.encode(text), 0, (_, value) => {
      made = this.#text(value);
      return true;
    });
    return made;
  }
}
