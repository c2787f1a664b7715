import { WasmformerError } from '../errors.ts';
import { prepend } from './normalizer.ts';
import { Pipeline } from './pipeline.ts';
import { specialPart } from './post-processor.ts';
import { ranksOf } from './sentencepiece.ts';
import { mergeSymbols, type Symbols } from './tables.ts';
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

  const ranks = ranksOf(scores);
  const pipeline = new Pipeline({
    added: [],
    normalize: (piece) => prepend(piece, ' '),
    preTokenize: (piece) => [piece],
    subwords: (text) => {
      const symbols: Symbols = { ids: [], begins: [], ends: [] };
      let at = 0;
      for (const char of text) {
        const id = ids.get(char);
        const found = id !== undefined ? [id] : Array.from(new TextEncoder().encode(char), (byte) => kFirstByte + byte);
        for (const one of found) {
          symbols.ids.push(one);
          symbols.begins.push(at);
          symbols.ends.push(at + char.length);
        }
        at += char.length;
      }
      const joined = mergeSymbols(symbols, {
        // Bytes stay what they are.
        pair: ({ ids: now, begins, ends }, left, right) =>
          Math.min(now[left] as number, now[right] as number) < kFirstByte + 256
            ? -1
            : (ids.get(text.slice(begins[left], ends[right])) ?? -1),
        rank: (id) => ranks[id] as number,
        id: (id) => id,
      });
      return joined.ids.flatMap((id, i) => [id, joined.begins[i] as number, joined.ends[i] as number]);
    },
    tokenOf: (id) => vocab[id] as string,
    postProcess: (parts, add) => parts.flatMap((part) => (add ? [specialPart([kBos], 0), part] : [part])),
  });
  return new VocabularyTokenizer({
    where,
    vocab,
    encode: (texts, addSpecialTokens) => pipeline.encode(texts, addSpecialTokens),
    decoder: {
      type: 'Sequence',
      decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }],
    },
    cleanUp: false,
    specials: { bos: kBos, eos: kEos, pad: null, unk: kUnk, sep: null, cls: null, mask: null, all: [kUnk, kBos, kEos] },
    templates: new Map(),
  });
}
