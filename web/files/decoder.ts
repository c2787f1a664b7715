import { WasmformerError } from '../errors.ts';
import { isObject, kindOf, own } from './json.ts';

/** Turns ids into text as they come. */
export interface StreamDecoder {
  /** The text that became certain with this id: '' while a character is incomplete. */
  push(id: number): string;
  /** What is left: an incomplete character becomes U+FFFD. */
  end(): string;
}

/**
 * One step of a tokenizer's decoder, working on a stream of tokens. A token may come in several pieces; `fresh` is true
 * on its first. The steps follow the Rust library's, except that text is let go as soon as nothing that can still come
 * would change it.
 */
abstract class Step {
  next: (text: string, fresh: boolean) => void = () => {};
  abstract push(text: string, fresh: boolean): void;
  /** No more tokens. */
  end(): void {}
}

/** Bytes to the printable characters GPT-2's vocabulary writes them as (Radford et al. 2019, encoder.py). */
export const byteAlphabet: readonly string[] = (() => {
  const table = new Array<string>(256);
  let spare = 256;
  for (let byte = 0; byte < 256; ++byte) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
    table[byte] = String.fromCharCode(printable ? byte : spare++);
  }
  return table;
})();

const byteOf: ReadonlyMap<string, number> = new Map(byteAlphabet.map((char, byte) => [char, byte]));
const encoder = new TextEncoder();

/** The bytes a token of a byte-level vocabulary stands for; one that is not written in its alphabet stands for itself. */
export function byteLevelBytes(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length);
  for (let i = 0; i < token.length; ++i) {
    const byte = byteOf.get(token[i] as string);
    if (byte === undefined) return encoder.encode(token);
    bytes[i] = byte;
  }
  return bytes;
}

class ByteLevelStep extends Step {
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  #fresh = true;

  override push(text: string): void {
    this.#give(this.#decoder.decode(byteLevelBytes(text), { stream: true }));
  }

  override end(): void {
    this.#give(this.#decoder.decode());
  }

  #give(text: string): void {
    if (text === '') return;
    this.next(text, this.#fresh);
    this.#fresh = false;
  }
}

/** The byte `<0xNN>` stands for, or -1. */
export function fallbackByte(token: string): number {
  return /^<0x[0-9A-Fa-f]{2}>$/.test(token) ? Number.parseInt(token.slice(3, 5), 16) : -1;
}

/**
 * Runs of `<0xNN>` tokens become characters one by one. The Rust library looks at a whole run, and replaces all of it
 * when any of it is no UTF-8; a stream cannot take back what it gave, so here only the bytes that are none become
 * U+FFFD, one each.
 */
class ByteFallbackStep extends Step {
  #held: number[] = [];
  #fresh = true;

  override push(text: string, fresh: boolean): void {
    const byte = fallbackByte(text);
    if (byte < 0) {
      this.#flush();
      this.#fresh = true;
      this.next(text, fresh);
      return;
    }
    if (this.#held.length > 0 && !continues(this.#held, byte)) this.#flush();
    this.#held.push(byte);
    const length = sequenceLength(this.#held[0] as number);
    if (length === 0) this.#flush();
    else if (this.#held.length === length) {
      const bytes = Uint8Array.from(this.#held);
      this.#held = [];
      this.#give(new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes));
    }
  }

  override end(): void {
    this.#flush();
  }

  #flush(): void {
    if (this.#held.length === 0) return;
    const text = '\uFFFD'.repeat(this.#held.length);
    this.#held = [];
    this.#give(text);
  }

  #give(text: string): void {
    this.next(text, this.#fresh);
    this.#fresh = false;
  }
}

/** Bytes of the UTF-8 sequence a byte begins, or 0 where none begins so. */
function sequenceLength(lead: number): number {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/** Whether a byte may follow those of an incomplete UTF-8 sequence (no overlong forms, surrogates, or above U+10FFFF). */
function continues(held: readonly number[], byte: number): boolean {
  if (held.length > 1) return byte >= 0x80 && byte <= 0xbf;
  const lead = held[0] as number;
  const low = lead === 0xe0 ? 0xa0 : lead === 0xf0 ? 0x90 : 0x80;
  const high = lead === 0xed ? 0x9f : lead === 0xf4 ? 0x8f : 0xbf;
  return byte >= low && byte <= high;
}

class FuseStep extends Step {
  #fresh = true;

  override push(text: string): void {
    if (text === '') return;
    this.next(text, this.#fresh);
    this.#fresh = false;
  }
}

/** Replaces a string; of a token in pieces it holds back what may be the pattern's beginning. */
class ReplaceStep extends Step {
  readonly #pattern: string;
  readonly #content: string;
  #held = '';
  #fresh = false;

  constructor(pattern: string, content: string) {
    super();
    this.#pattern = pattern;
    this.#content = content;
  }

  override push(text: string, fresh: boolean): void {
    if (fresh) {
      this.#flush();
      this.#fresh = true;
    }
    let all = this.#held + text;
    this.#held = '';
    const parts = all.split(this.#pattern);
    all = parts.pop() as string;
    for (let length = Math.min(all.length, this.#pattern.length - 1); length > 0; --length) {
      if (this.#pattern.startsWith(all.slice(all.length - length))) {
        this.#held = all.slice(all.length - length);
        all = all.slice(0, all.length - length);
        break;
      }
    }
    this.#give([...parts, all].join(this.#content));
  }

  override end(): void {
    this.#flush();
  }

  #flush(): void {
    const text = this.#held;
    this.#held = '';
    if (text !== '') this.#give(text);
  }

  #give(text: string): void {
    if (text === '' && !this.#fresh) return;
    this.next(text, this.#fresh);
    this.#fresh = false;
  }
}

/** Cuts up to `start` and `stop` times a character off the ends of each token. */
class StripStep extends Step {
  readonly #char: string;
  readonly #start: number;
  readonly #stop: number;
  #cut = 0;
  #atStart = true;
  #held = '';

  constructor(char: string, start: number, stop: number) {
    super();
    this.#char = char;
    this.#start = start;
    this.#stop = stop;
  }

  override push(text: string, fresh: boolean): void {
    if (fresh) {
      this.#finish();
      this.#atStart = true;
      this.#cut = 0;
    }
    let rest = text;
    while (this.#atStart && rest !== '') {
      if (this.#cut < this.#start && rest.startsWith(this.#char)) {
        rest = rest.slice(this.#char.length);
        ++this.#cut;
      } else {
        this.#atStart = false;
      }
    }
    let all = this.#held + rest;
    this.#held = '';
    for (let i = 0; i < this.#stop && all.endsWith(this.#char); ++i) {
      this.#held += this.#char;
      all = all.slice(0, all.length - this.#char.length);
    }
    if (all !== '' || fresh) this.next(all, fresh);
  }

  override end(): void {
    this.#finish();
  }

  /** What is held back at a token's end is what is to be cut. */
  #finish(): void {
    this.#held = '';
  }
}

/** SentencePiece's marks become spaces; those of the first token go, when a prefix space was put before the text. */
class MetaspaceStep extends Step {
  readonly #mark: string;
  readonly #drop: boolean;
  #index = -1;

  constructor(mark: string, drop: boolean) {
    super();
    this.#mark = mark;
    this.#drop = drop;
  }

  override push(text: string, fresh: boolean): void {
    if (fresh) ++this.#index;
    this.next(text.replaceAll(this.#mark, this.#index <= 0 && this.#drop ? '' : ' '), fresh);
  }
}

class WordPieceStep extends Step {
  readonly #prefix: string;
  readonly #cleanup: boolean;
  #first = true;

  constructor(prefix: string, cleanup: boolean) {
    super();
    this.#prefix = prefix;
    this.#cleanup = cleanup;
  }

  override push(text: string, fresh: boolean): void {
    let token = text;
    if (!this.#first && fresh)
      token = this.#prefix !== '' && token.startsWith(this.#prefix) ? token.slice(this.#prefix.length) : ` ${token}`;
    this.#first = false;
    if (this.#cleanup) token = cleanUp(token).replaceAll(' do not', " don't");
    this.next(token, fresh);
  }
}

/**
 * What transformers does with the pieces of SentencePiece between special tokens: each run loses the mark it begins with,
 * `gap` follows a special token, and the ends of the text are stripped.
 */
class SentencePieceStep extends Step {
  readonly #special: ReadonlySet<string>;
  readonly #gap: string;
  #runBegins = true;
  #begun = false;
  #held = '';

  constructor(special: ReadonlySet<string>, gap: string) {
    super();
    this.#special = special;
    this.#gap = gap;
  }

  override push(token: string): void {
    let text = token;
    if (this.#special.has(token)) {
      text += this.#gap;
      this.#runBegins = true;
    } else {
      if (this.#runBegins && text.startsWith('\u2581')) text = text.slice(1);
      this.#runBegins &&= text === '';
      text = text.replaceAll('\u2581', ' ');
    }
    const all = this.#begun ? this.#held + text : text.trimStart();
    const kept = all.trimEnd();
    this.#held = all.slice(kept.length);
    this.#begun ||= kept !== '';
    if (kept !== '') this.next(kept, true);
  }
}

/** The suffix that ends a word becomes a space, but for the last word: one token is held back. */
class BpeStep extends Step {
  readonly #suffix: string;
  #held: string | null = null;

  constructor(suffix: string) {
    super();
    this.#suffix = suffix;
  }

  override push(text: string, fresh: boolean): void {
    if (!fresh && this.#held !== null) {
      this.#held += text;
      return;
    }
    if (this.#held !== null) this.next(this.#held.replaceAll(this.#suffix, ' '), true);
    this.#held = text;
  }

  override end(): void {
    if (this.#held !== null) this.next(this.#held.replaceAll(this.#suffix, ''), true);
    this.#held = null;
  }
}

/** A tokenizer without a decoder joins tokens with spaces. */
class JoinStep extends Step {
  #first = true;

  override push(text: string, fresh: boolean): void {
    this.next(fresh && !this.#first ? ` ${text}` : text, fresh);
    this.#first = false;
  }
}

/** What `clean_up_tokenization_spaces` does. */
export function cleanUp(text: string): string {
  return text
    .replaceAll(' .', '.')
    .replaceAll(' ?', '?')
    .replaceAll(' !', '!')
    .replaceAll(' ,', ',')
    .replaceAll(" ' ", "'")
    .replaceAll(" n't", "n't")
    .replaceAll(" 'm", "'m")
    .replaceAll(" 's", "'s")
    .replaceAll(" 've", "'ve")
    .replaceAll(" 're", "'re");
}

/** `cleanUp` on a stream: holds back spaces, quotes and the letters that may follow them in one of its patterns. */
class CleanUpStep extends Step {
  #held = '';

  override push(text: string, fresh: boolean): void {
    const all = this.#held + text;
    const hold = / [ ']*(?:n'?|[vr])?$/.exec(all)?.index ?? all.length;
    this.#held = all.slice(hold);
    if (hold > 0) this.next(cleanUp(all.slice(0, hold)), fresh);
  }

  override end(): void {
    if (this.#held !== '') this.next(cleanUp(this.#held), false);
    this.#held = '';
  }
}

/** How a tokenizer decodes. */
export interface DecoderSpec {
  /** The `decoder` of a tokenizer.json. */
  config: unknown;
  cleanUp: boolean;
  /** The special tokens' texts. */
  special?: ReadonlySet<string>;
}

/** Checks the decoder's configuration; the steps it names, without their state. */
export function compileDecoder(spec: DecoderSpec, where: string): () => Step[] {
  const makers: (() => Step)[] = [];
  const add = (config: unknown, depth: number): void => {
    if (!isObject(config) || depth > 8)
      throw new WasmformerError('invalid-file', `[${where}] decoder: expected an object, got ${kindOf(config)}`);
    const type = own(config, 'type');
    const text = (key: string, preset: string): string => {
      const value = own(config, key) ?? preset;
      if (typeof value !== 'string')
        throw new WasmformerError('invalid-file', `[${where}] decoder: ${key}: expected a string, got ${kindOf(value)}`);
      return value;
    };
    const count = (key: string): number => {
      const value = own(config, key) ?? 0;
      if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0)
        throw new WasmformerError('invalid-file', `[${where}] decoder: ${key}: expected a count, got ${kindOf(value)}`);
      return value;
    };
    switch (type) {
      case 'Sequence': {
        const inner = own(config, 'decoders');
        if (!Array.isArray(inner)) throw new WasmformerError('invalid-file', `[${where}] decoder: expected a list, got ${kindOf(inner)}`);
        for (const one of inner) add(one, depth + 1);
        return;
      }
      case 'ByteLevel':
        makers.push(() => new ByteLevelStep());
        return;
      case 'ByteFallback':
        makers.push(() => new ByteFallbackStep());
        return;
      case 'Fuse':
        makers.push(() => new FuseStep());
        return;
      case 'Strip': {
        const [char, start, stop] = [text('content', ' '), count('start'), count('stop')];
        makers.push(() => new StripStep(char, start, stop));
        return;
      }
      case 'Replace': {
        const pattern = own(config, 'pattern');
        const content = text('content', '');
        const string = isObject(pattern) ? own(pattern, 'String') : undefined;
        if (typeof string !== 'string' || string === '')
          throw new WasmformerError(
            'unsupported',
            `[${where}] decoder: Replace: expected a pattern that is a string, got ${JSON.stringify(pattern)}`,
          );
        makers.push(() => new ReplaceStep(string, content));
        return;
      }
      case 'Metaspace': {
        const mark = text('replacement', '\u2581');
        const drop = text('prepend_scheme', own(config, 'add_prefix_space') === false ? 'never' : 'always') !== 'never';
        makers.push(() => new MetaspaceStep(mark, drop));
        return;
      }
      case 'WordPiece': {
        const prefix = text('prefix', '##');
        const cleanup = own(config, 'cleanup') !== false;
        makers.push(() => new WordPieceStep(prefix, cleanup));
        return;
      }
      case 'SentencePiece': {
        const gap = text('gap', '');
        makers.push(() => new SentencePieceStep(spec.special ?? new Set(), gap));
        return;
      }
      case 'BPEDecoder': {
        const suffix = text('suffix', '</w>');
        makers.push(() => new BpeStep(suffix));
        return;
      }
      default:
        throw new WasmformerError('unsupported', `[${where}] decoder: ${kindOf(type)} is not supported`);
    }
  };
  if (spec.config === null || spec.config === undefined) makers.push(() => new JoinStep());
  else add(spec.config, 0);
  if (spec.cleanUp) makers.push(() => new CleanUpStep());
  return () => makers.map((make) => make());
}

/** Runs tokens through the steps; each call takes time that depends on the token alone. */
export class TokenStream {
  readonly #steps: Step[];
  #out = '';

  constructor(steps: Step[]) {
    this.#steps = steps;
    steps.forEach((step, i) => {
      const following = steps[i + 1];
      step.next = following ? (text, fresh) => following.push(text, fresh) : (text) => void (this.#out += text);
    });
  }

  push(token: string): string {
    (this.#steps[0] as Step).push(token, true);
    return this.#take();
  }

  end(): string {
    for (const step of this.#steps) step.end();
    return this.#take();
  }

  #take(): string {
    const text = this.#out;
    this.#out = '';
    return text;
  }
}
