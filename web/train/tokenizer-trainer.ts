import { WasmformerError } from '../errors.ts';
import { byteAlphabet } from '../files/decoder.ts';
import type { JsonObject } from '../files/json.ts';
import { compileNormalizer, toByteLevel } from '../files/normalizer.ts';
import { compilePreTokenizer, kGpt2 } from '../files/pre-tokenizer.ts';
import { learnMerges } from './tokenizer-merges.ts';

/** What a vocabulary is made of: characters, bytes, byte-pair encoding over bytes as GPT-2's, or BERT's word pieces. */
export type TokenizerType = 'char' | 'byte' | 'bpe' | 'wordpiece';

/** `trainTokenizer`'s options, checked, with the defaults filled in. */
export interface TokenizerPlan {
  type: TokenizerType;
  vocabSize: number;
  specialTokens: readonly string[];
  minFrequency: number;
  addEosToken: boolean;
}

/** The files of a tokenizer, as their text. */
export interface TokenizerFiles {
  'tokenizer.json': string;
  'tokenizer_config.json': string;
}

const where = 'trainTokenizer';
const fail = (message: string): WasmformerError => new WasmformerError('invalid-argument', `[${where}] ${message}`);

/**
 * Stretches of text that are cut without regard to what stands beside them. They are counted, and each is looked at once. BERT's end at
 * what its normalizer makes spaces of; other white space is a control character to it, and vanishes.
 */
const stretches: Record<TokenizerType, RegExp> = {
  char: /[\s\S]/gu,
  byte: kGpt2,
  bpe: kGpt2,
  wordpiece: /[^\t\n\r\p{Z}]+/gu,
};

const bertNormalizer = { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true };
const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: true };

/** What the tokens of these names are for: the keys of tokenizer_config.json, and the names, the likeliest first. */
const roles: Record<string, string[]> = {
  bos_token: ['<s>', '<bos>', '[BOS]', '<|startoftext|>', '<|endoftext|>'],
  eos_token: ['</s>', '<eos>', '[EOS]', '<|endoftext|>'],
  unk_token: ['<unk>', '[UNK]'],
  sep_token: ['[SEP]', '<sep>'],
  pad_token: ['<pad>', '[PAD]'],
  cls_token: ['[CLS]', '<cls>'],
  mask_token: ['[MASK]', '<mask>'],
};

/** A place in a template: a special token, or one of the texts. */
const slot = (id: string, type_id = 0) => ({ [id.length > 1 ? 'SpecialToken' : 'Sequence']: { id, type_id } });

/** Makes a vocabulary from what it is shown. */
export class TokenizerTrainer {
  readonly #counts = new Map<string, number>();
  readonly #type: TokenizerType;

  constructor(type: TokenizerType) {
    this.#type = type;
  }

  /** Counts what a text is made of. */
  add(text: string): void {
    // Half a surrogate pair is no character: it is encoded as U+FFFD.
    for (const stretch of text.replace(/\p{Surrogate}/gu, '\ufffd').match(stretches[this.#type]) ?? [])
      this.#counts.set(stretch, (this.#counts.get(stretch) ?? 0) + 1);
  }

  /**
   * @param breathe called before each step of the work; what it throws ends the work
   * @throws WasmformerError `invalid-argument` for texts without a word, or a `vocabSize` that the characters alone exceed
   */
  async train(
    { vocabSize, specialTokens, minFrequency, addEosToken }: Omit<TokenizerPlan, 'type'>,
    breathe: () => Promise<void> | void,
  ): Promise<TokenizerFiles> {
    const type = this.#type;
    const tokenOf = (role: string) => roles[role].find((name) => specialTokens.includes(name));
    const words = type === 'byte' ? new Map<string, number>() : await this.#words(breathe);
    if (type !== 'byte' && words.size === 0) throw fail(`texts: expected at least one ${type === 'wordpiece' ? 'word' : 'character'}`);

    const tokens = [...specialTokens];
    const known = new Set(tokens);
    const add = (chars: Iterable<string>, before = ''): void => {
      for (const char of [...chars].sort((a, b) => a.codePointAt(0)! - b.codePointAt(0)!))
        if (known.size < known.add(before + char).size) tokens.push(before + char);
    };
    const prefix = type === 'wordpiece' ? '##' : '';
    if (type === 'char') add([...words].filter(([, count]) => count >= minFrequency).map(([char]) => char));
    else if (type === 'wordpiece') {
      const spelled = Array.from(words.keys(), (word) => [...word]);
      add(new Set(spelled.flat()));
      add(new Set(spelled.flatMap((word) => word.slice(1))), prefix);
    } else add(byteAlphabet);
    if (tokens.length > vocabSize) {
      const kinds = { char: 'characters', byte: 'bytes', bpe: 'bytes', wordpiece: 'characters at the beginning of words and within' };
      const hint = type === 'char' ? '; minFrequency leaves out rare ones' : '';
      const what = `${specialTokens.length} special tokens and ${tokens.length - specialTokens.length} ${kinds[type]}`;
      throw fail(`vocabSize: expected at least ${tokens.length}, for ${what}${hint}, got ${vocabSize}`);
    }
    let merges: [number, number][] = [];
    if (type === 'bpe' || type === 'wordpiece') {
      const ids = new Map(tokens.map((token, id) => [token, id]));
      const spelled = [...words.keys()].map((word) => Array.from(word, (char, i) => ids.get(i > 0 ? prefix + char : char)!));
      merges = await learnMerges({ words: spelled, counts: [...words.values()], tokens, prefix }, vocabSize, minFrequency, breathe);
    }

    // Without a prototype any word may be a key.
    const vocab: Record<string, number> = Object.create(null);
    tokens.forEach((token, id) => {
      vocab[token] = id;
    });
    const [unknown, cls, sep, eos] = ['unk_token', 'cls_token', 'sep_token', 'eos_token'].map(tokenOf);
    const template =
      type === 'wordpiece' && cls && sep
        ? [
            [slot(cls), slot('A'), slot(sep)],
            [slot('B', 1), slot(sep, 1)],
            [cls, sep],
          ]
        : addEosToken && eos
          ? [[slot('A'), slot(eos)], [slot('B'), slot(eos)], [eos]]
          : null;
    const parts: Record<TokenizerType, JsonObject> = {
      char: { normalizer: null, pre_tokenizer: null, decoder: { type: 'Fuse' } },
      byte: { normalizer: null, pre_tokenizer: byteLevel, decoder: byteLevel },
      bpe: { normalizer: null, pre_tokenizer: byteLevel, decoder: byteLevel },
      wordpiece: {
        normalizer: bertNormalizer,
        pre_tokenizer: { type: 'BertPreTokenizer' },
        decoder: { type: 'WordPiece', prefix, cleanup: true },
      },
    };
    const json = {
      version: '1.0',
      truncation: null,
      padding: null,
      added_tokens: specialTokens.map((content, id) => ({
        id,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: true,
      })),
      ...parts[type],
      post_processor: template && {
        type: 'TemplateProcessing',
        single: template[0],
        pair: [...template[0], ...template[1]],
        special_tokens: Object.fromEntries((template[2] as string[]).map((id) => [id, { id, ids: [vocab[id]], tokens: [id] }])),
      },
      model:
        type === 'wordpiece'
          ? { type: 'WordPiece', unk_token: unknown, continuing_subword_prefix: prefix, max_input_chars_per_word: 100, vocab }
          : {
              type: 'BPE',
              dropout: null,
              unk_token: type === 'char' ? unknown : null,
              continuing_subword_prefix: null,
              end_of_word_suffix: null,
              fuse_unk: false,
              byte_fallback: false,
              ignore_merges: false,
              vocab,
              merges: merges.map((pair) => pair.map((id) => tokens[id])),
            },
    };
    const config: JsonObject = { tokenizer_class: 'PreTrainedTokenizerFast', clean_up_tokenization_spaces: false };
    if (type !== 'wordpiece') config.model_input_names = ['input_ids', 'attention_mask'];
    for (const role of Object.keys(roles)) {
      const token = tokenOf(role);
      if (token !== undefined) config[role] = token;
    }
    return { 'tokenizer.json': JSON.stringify(json), 'tokenizer_config.json': JSON.stringify(config, null, 2) };
  }

  /** How often each word occurs, spelled as the tokenizer will see it. */
  async #words(breathe: () => Promise<void> | void): Promise<Map<string, number>> {
    if (this.#type === 'char') return this.#counts;
    const unknown = (message: string) => new Error(message);
    const normalize = this.#type === 'bpe' ? toByteLevel : compileNormalizer(bertNormalizer, unknown);
    const split = compilePreTokenizer(this.#type === 'bpe' ? null : { type: 'BertPreTokenizer' }, unknown);
    const words = new Map<string, number>();
    for (const [stretch, count] of this.#counts) {
      await breathe();
      for (const { text } of split(normalize({ text: stretch, at: 0, from: null })))
        if (text !== '') words.set(text, (words.get(text) ?? 0) + count);
    }
    return words;
  }
}
