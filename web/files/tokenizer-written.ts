import { WasmformerError } from '../errors.ts';
import type { JsonObject } from './json.ts';
import type { AddedToken } from './pipeline.ts';
import { pieceTypes, type SentencePieceModel } from './sentencepiece.ts';
import type { Kept, SpecialTokens } from './tokenizer.ts';

const kMark = '\u2581';

const base64 = (bytes: Uint8Array): string => btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), ''));

/**
 * What a tokenizer.json says where SentencePiece merges: the normaliser and the model. Merges have the order of the pieces' scores, as
 * transformers' convert_slow_tokenizer.py has them.
 * @param vocab token strings by id
 * @throws WasmformerError `unsupported` for pieces that merges cannot make, or cannot take apart again
 */
export function writtenMerges(model: SentencePieceModel, vocab: readonly (string | undefined)[]): JsonObject {
  const { pieces, unknown } = model;
  const { normal, userDefined, unused } = pieceTypes;
  const types = new Map(pieces.map(({ text, type }) => [text, type]));
  const merges: [score: number, left: string, right: string][] = [];
  pieces.forEach(({ text, score, type }) => {
    // White space becomes the longest runs that are pieces, from the left: merges let runs grow by one before anything else is merged.
    const run = type === userDefined && !/[^\s\u2581]/.test(text);
    if (type !== normal && type !== unused && !run) return;
    for (let cut = run ? text.length - 1 || 1 : 1; cut < text.length; ++cut) {
      const [left, right] = [text.slice(0, cut), text.slice(cut)];
      const made = [left, right].every((half) => (run ? types.has(half) : types.get(half) === normal));
      if (run ? !made : made && type === unused)
        throw new WasmformerError('unsupported', `[save] tokenizer: expected pieces that merges make as SentencePiece does, got "${text}"`);
      if (made) merges.push([run ? 1e9 + cut : score, left, right]);
    }
  });
  merges.sort(([a], [b]) => b - a);
  const mark = model.escapeWhitespaces ? kMark : ' ';
  const replace = (pattern: JsonObject, content: string): JsonObject => ({ type: 'Replace', pattern, content });
  return {
    normalizer: {
      type: 'Sequence',
      normalizers: [
        ...(model.removeExtraWhitespaces ? [replace({ Regex: '\\A +| +\\z| +(?= )' }, '')] : []),
        ...(model.addDummyPrefix ? [{ type: 'Prepend', prepend: mark }] : []),
        replace({ String: ' ' }, mark),
      ],
    },
    model: {
      type: 'BPE',
      unk_token: vocab[unknown],
      fuse_unk: true,
      byte_fallback: model.byteFallback,
      vocab: Object.fromEntries(vocab.map((token, id) => [token, id])),
      merges: merges.map(([, left, right]) => [left, right]),
    },
  };
}

/** Keeps tokenizer.json and tokenizer_config.json of a tokenizer, as transformers writes them. They are made when they are asked for. */
export function writeTokenizer(
  kept: Kept,
  parts: {
    /** A tokenizer.json, but for what other parts say; its post-processor is a template. */
    json: () => JsonObject;
    /** Tokens by id. */
    vocab: readonly (string | undefined)[];
    added: readonly AddedToken[];
    specials: SpecialTokens;
    /** Templates by name. */
    templates: ReadonlyMap<string, string>;
    maxLength?: unknown;
  },
): void {
  const { vocab, added, templates } = parts;
  const { all: _, ...roles } = parts.specials;
  const write = (name: string, value: () => JsonObject) =>
    kept.set(name, () => new TextEncoder().encode(JSON.stringify(value(), (_, one) => (one instanceof Uint8Array ? base64(one) : one))));
  write('tokenizer.json', () => {
    const json = parts.json();
    const post = json.post_processor as any;
    const marks = [...post.single, ...post.pair].flatMap(({ SpecialToken }) => SpecialToken ?? []);
    return {
      ...json,
      added_tokens: added,
      post_processor: {
        ...post,
        special_tokens: Object.fromEntries(marks.map(({ id }) => [id, { id, ids: [vocab.indexOf(id)], tokens: [id] }])),
      },
    };
  });
  write('tokenizer_config.json', () => ({
    tokenizer_class: 'PreTrainedTokenizerFast',
    clean_up_tokenization_spaces: false,
    model_max_length: parts.maxLength,
    ...Object.fromEntries(Object.entries(roles).map(([role, id]) => [`${role}_token`, vocab[id as number] ?? null])),
    chat_template: templates.size > 1 ? Array.from(templates, ([name, template]) => ({ name, template })) : [...templates.values()][0],
  }));
}
