import { WasmformerError } from '../errors.ts';
import { Pipeline } from './pipeline.ts';
import { specialPart } from './post-processor.ts';
import { pieceTypes, type SentencePieceModel, sentencePieceNormalizer, sentencePieceSubwords } from './sentencepiece.ts';
import { byteToken } from './subword.ts';
import { type Kept, type SpecialTokens, type Tokenizer, VocabularyTokenizer } from './tokenizer.ts';
import { around } from './tokenizer-files.ts';
import { writeTokenizer, writtenMerges } from './tokenizer-written.ts';

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
export function readLlama2cTokenizer(bytes: Uint8Array, where: string, kept?: Kept): Tokenizer {
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
  for (let byte = 0; byte < 256; ++byte) vocab[kFirstByte + byte] = byteToken(byte);
  const { normal, byte, control, unknown } = pieceTypes;
  const model: SentencePieceModel = {
    kind: 'bpe',
    pieces: vocab.map((text, id) => ({
      text,
      score: scores[id] as number,
      type: id === kUnk ? unknown : id < kFirstByte ? control : id < kFirstByte + 256 ? byte : normal,
    })),
    unknown: kUnk,
    bos: kBos,
    eos: kEos,
    pad: -1,
    byteFallback: true,
    charsmap: null,
    addDummyPrefix: true,
    removeExtraWhitespaces: false,
    escapeWhitespaces: false,
  };
  const pipeline = new Pipeline({
    added: [],
    normalize: sentencePieceNormalizer(model),
    preTokenize: (piece) => [piece],
    subwords: sentencePieceSubwords(model),
    tokenOf: (id) => vocab[id] as string,
    postProcess: (parts, add) => parts.flatMap((part) => (add ? [specialPart([kBos], 0), part] : [part])),
  });
  const decoder = {
    type: 'Sequence',
    decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }],
  };
  const specials: SpecialTokens = { bos: kBos, eos: kEos, pad: null, unk: kUnk, sep: null, cls: null, mask: null, all: [kUnk, kBos, kEos] };
  const templates = new Map();
  if (kept) {
    const json = () => ({ decoder, post_processor: around('<s> $A', '<s> $A <s> $B'), ...writtenMerges(model, vocab) });
    writeTokenizer(kept, { json, vocab, added: [], specials, templates });
  }
  return new VocabularyTokenizer({
    where,
    vocab,
    steps: (texts, addSpecialTokens) => pipeline.steps(texts, addSpecialTokens),
    decoder,
    cleanUp: false,
    specials,
    templates,
  });
}
