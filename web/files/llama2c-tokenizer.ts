import { WasmformerError } from '../errors.ts';
import { type Tokenizer, VocabularyTokenizer } from './tokenizer.ts';

const kUnk = 0;
const kBos = 1;
const kEos = 2;
/** Ids of the bytes come after the three special tokens. */
const kFirstByte = 3;

/**
 * The tokenizer.bin of llama2.c: the length of the longest token, then for each token a score (float32), a length
 * (int32) and its bytes. Texts are encoded as run.c does: character by character, bytes for characters that are no
 * token, then the pair of the best score is joined until none is left.
 * @throws WasmformerError `invalid-file`
 */
export function readLlama2cTokenizer(bytes: Uint8Array, where: string): Tokenizer {
  const bad = (message: string): WasmformerError => new WasmformerError('invalid-file', `[${where}] ${message}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  if (bytes.length < 4) throw bad(`length: expected at least 4 bytes, got ${bytes.length}`);
  const longest = view.getInt32(0, true);
  if (longest < 1 || longest > 4096) throw bad(`longest token: expected 1 to 4096 bytes, got ${longest}`);
  const vocab: string[] = [];
  const scores: number[] = [];
  const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  for (let at = 4; at < bytes.length; ) {
    if (at + 8 > bytes.length) throw bad(`token ${vocab.length}: cut short`);
    const score = view.getFloat32(at, true);
    const length = view.getInt32(at + 4, true);
    if (length < 0 || length > longest || at + 8 + length > bytes.length)
      throw bad(`token ${vocab.length}: length: expected 0 to ${longest}, got ${length}`);
    try {
      vocab.push(text.decode(bytes.subarray(at + 8, at + 8 + length)));
    } catch (cause) {
      throw new WasmformerError('invalid-file', `[${where}] token ${vocab.length}: expected UTF-8`, { cause });
    }
    scores.push(score);
    at += 8 + length;
  }
  if (vocab.length < kFirstByte + 256) throw bad(`tokens: expected at least ${kFirstByte + 256}, got ${vocab.length}`);
  // The file gives the specials as text with line breaks around; the bytes are named as SentencePiece does.
  vocab[kUnk] = '<unk>';
  vocab[kBos] = '<s>';
  vocab[kEos] = '</s>';
  const ids = new Map<string, number>();
  for (let id = vocab.length - 1; id >= kFirstByte + 256; --id) ids.set(vocab[id] as string, id);
  for (let byte = 0; byte < 256; ++byte) vocab[kFirstByte + byte] = `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;

  const utf8 = new TextEncoder();
  const encode = (input: string, addSpecialTokens: boolean): number[] => {
    const start = addSpecialTokens ? [kBos] : [];
    if (input === '') return start;
    const pieces: number[] = [];
    for (const char of ` ${input}`) {
      const id = ids.get(char);
      if (id !== undefined) pieces.push(id);
      else for (const byte of utf8.encode(char)) pieces.push(kFirstByte + byte);
    }
    return [...start, ...mergeByScore(pieces, vocab, ids, scores)];
  };
  return new VocabularyTokenizer({
    where,
    vocab,
    encode,
    decoder: {
      type: 'Sequence',
      decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }],
    },
    cleanUp: false,
    specials: { bos: kBos, eos: kEos, pad: null, unk: kUnk, sep: null, cls: null, mask: null, all: [kUnk, kBos, kEos] },
    templates: new Map(),
  });
}

/** Joins the neighbours of the best score, the leftmost of equals, until no two make a token. */
function mergeByScore(pieces: number[], vocab: readonly string[], ids: ReadonlyMap<string, number>, scores: readonly number[]): number[] {
  const next = pieces.map((_, i) => i + 1);
  const previous = pieces.map((_, i) => i - 1);
  const alive = pieces.map(() => true);
  const heap: { score: number; at: number; left: number; right: number; id: number }[] = [];
  const before = (a: (typeof heap)[number], b: (typeof heap)[number]): boolean => a.score > b.score || (a.score === b.score && a.at < b.at);
  const push = (item: (typeof heap)[number]): void => {
    let i = heap.push(item) - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!before(heap[i] as typeof item, heap[parent] as typeof item)) break;
      [heap[i], heap[parent]] = [heap[parent] as typeof item, heap[i] as typeof item];
      i = parent;
    }
  };
  const pop = (): (typeof heap)[number] | undefined => {
    const top = heap[0];
    const last = heap.pop();
    if (top === undefined || last === undefined || heap.length === 0) return top;
    heap[0] = last;
    for (let i = 0; ; ) {
      let best = i;
      for (const child of [2 * i + 1, 2 * i + 2]) {
        if (child < heap.length && before(heap[child] as typeof last, heap[best] as typeof last)) best = child;
      }
      if (best === i) return top;
      [heap[i], heap[best]] = [heap[best] as typeof last, heap[i] as typeof last];
      i = best;
    }
  };
  const textOf = (id: number): string => (id < kFirstByte + 256 ? '\0' : (vocab[id] as string));
  const consider = (at: number): void => {
    const right = next[at] as number;
    if (at < 0 || right >= pieces.length) return;
    const id = ids.get(textOf(pieces[at] as number) + textOf(pieces[right] as number));
    if (id !== undefined) push({ score: scores[id] as number, at, left: pieces[at] as number, right: pieces[right] as number, id });
  };
  for (let i = 0; i + 1 < pieces.length; ++i) consider(i);
  for (let item = pop(); item !== undefined; item = pop()) {
    const { at, left, right, id } = item;
    const other = next[at] as number;
    if (!alive[at] || other >= pieces.length || pieces[at] !== left || pieces[other] !== right) continue;
    pieces[at] = id;
    alive[other] = false;
    next[at] = next[other] as number;
    if ((next[at] as number) < pieces.length) previous[next[at] as number] = at;
    consider(at);
    if ((previous[at] as number) >= 0) consider(previous[at] as number);
  }
  const result: number[] = [];
  for (let i = 0; i < pieces.length; i = next[i] as number) result.push(pieces[i] as number);
  return result;
}
