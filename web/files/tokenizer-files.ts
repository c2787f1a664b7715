import { WasmformerError } from '../errors.ts';
import { readObject, readText } from './checkpoint.ts';
import { isObject, type JsonObject, kindOf, own, parseJson } from './json.ts';
import type { Normalizer } from './normalizer.ts';
import { pieceTypes, readSentencePiece, type SentencePieceModel, sentencePieceNormalizer, sentencePieceSubwords } from './sentencepiece.ts';
import type { ModelFolder } from './source.ts';
import type { Subwords } from './subword.ts';
import { writtenMerges } from './tokenizer-written.ts';

/** A tokenizer.json, or what stands for one. */
export interface Description {
  /** The file that messages name. */
  file: string;
  json: JsonObject;
  /** For models that a tokenizer.json cannot express: instead of its `model`, and of its `normalizer` where it has none. */
  native?: {
    vocab: (string | undefined)[];
    normalize?: Normalizer;
    subwords: Subwords;
    /** What a tokenizer.json can say of it after all, given the tokens by id. */
    written?: (vocab: readonly (string | undefined)[]) => JsonObject;
  };
  /** Further special tokens, in the order of their ids. */
  special?: readonly unknown[];
  /** The token a stretch of text begins with whatever comes after, and how long it is. */
  lead?: (text: string) => { id: number; length: number } | null;
  /** What the decoder of an encoder-decoder has of its own. */
  target?: Description;
}

export type Family =
  | 'bert'
  | 'albert'
  | 'roberta'
  | 'xlmroberta'
  | 't5'
  | 'pegasus'
  | 'mbart'
  | 'mbart50'
  | 'nllb'
  | 'm2m100'
  | 'marian'
  | 'llama'
  | 'gemma'
  | 'gpt2';

const kFamilies: Readonly<Record<string, Family>> = {
  bert: 'bert',
  distilbert: 'bert',
  electra: 'bert',
  mobilebert: 'bert',
  albert: 'albert',
  roberta: 'roberta',
  bart: 'roberta',
  xlmroberta: 'xlmroberta',
  t5: 't5',
  mt5: 't5',
  umt5: 't5',
  pegasus: 'pegasus',
  mbart: 'mbart',
  mbart50: 'mbart50',
  nllb: 'nllb',
  m2m100: 'm2m100',
  marian: 'marian',
  llama: 'llama',
  mistral: 'llama',
  gemma: 'gemma',
  gpt2: 'gpt2',
};

const key = (name: unknown): string =>
  (typeof name === 'string' ? name : '')
    .replace(/Tokenizer(Fast)?$/, '')
    .toLowerCase()
    .replace(/[^a-z0-9]/g, '');

/** Which of the known kinds a tokenizer is: by its class, else by the model's type; null for none. */
export function familyOf(settings: JsonObject, modelType: unknown): Family | null {
  return kFamilies[key(own(settings, 'tokenizer_class'))] ?? kFamilies[key(modelType)] ?? null;
}

const kMask = { content: '<mask>', lstrip: true };
const kSequence = { eos: '</s>', unk: '<unk>', pad: '<pad>' };
const kAngled = { bos: '<s>', eos: '</s>', unk: '<unk>', sep: '</s>', pad: '<pad>', cls: '<s>', mask: kMask };
const kBert = { unk: '[UNK]', sep: '[SEP]', pad: '[PAD]', cls: '[CLS]', mask: '[MASK]' };

/** The tokens that the classes of transformers give roles where a model's files name none. */
export const defaultRoles: Readonly<Record<Family, Readonly<Record<string, unknown>>>> = {
  bert: kBert,
  albert: { bos: '[CLS]', eos: '[SEP]', unk: '<unk>', sep: '[SEP]', pad: '<pad>', cls: '[CLS]', mask: { content: '[MASK]', lstrip: true } },
  roberta: kAngled,
  xlmroberta: kAngled,
  t5: kSequence,
  pegasus: { ...kSequence, mask: '<mask_2>' },
  mbart: kAngled,
  mbart50: { ...kAngled, bos: undefined },
  nllb: kAngled,
  m2m100: { ...kSequence, bos: '<s>', sep: '</s>' },
  marian: kSequence,
  llama: { unk: '<unk>', bos: '<s>', eos: '</s>' },
  gemma: { unk: '<unk>', bos: '<bos>', eos: '<eos>', pad: '<pad>' },
  gpt2: { unk: '<|endoftext|>', bos: '<|endoftext|>', eos: '<|endoftext|>' },
};

/** How a family marks languages. */
export interface LanguageRule {
  /** Finds the codes among the tokens: the first group, or all of it. */
  pattern: RegExp;
  /** The source language where neither a call nor the files name one. */
  preset?: string;
  /** Where a text's language stands; `target`: the target's, before the source text, and only where it is asked for. */
  place: 'before' | 'after' | 'target';
}

export function languageRule(family: Family | null, settings: JsonObject): LanguageRule | null {
  switch (family) {
    case 'mbart':
      return { pattern: /^([a-z]{2}_[A-Z]{2})$/, preset: 'en_XX', place: 'after' };
    case 'mbart50':
      return { pattern: /^([a-z]{2}_[A-Z]{2})$/, preset: 'en_XX', place: 'before' };
    case 'nllb':
      return {
        pattern: /^([a-z]{3}_[A-Z][a-z]{3})$/,
        preset: 'eng_Latn',
        place: own(settings, 'legacy_behaviour') === true ? 'after' : 'before',
      };
    case 'm2m100':
      return { pattern: /^__(\w+)__$/, preset: 'en', place: 'before' };
    case 'marian':
      return { pattern: /^>>(.+)<<$/, place: 'target' };
    default:
      return null;
  }
}

const kMBart =
  'ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN';
const kMBart50 =
  'af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI';
const kM2M100 =
  'af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu';

const kMark = '\u2581';
const template = (pattern: string): JsonObject[] =>
  pattern.split(' ').map((one) => {
    const [id, type] = one.split(':');
    return { [/^\$/.test(one) ? 'Sequence' : 'SpecialToken']: { id: (id as string).replace('$', ''), type_id: Number(type ?? 0) } };
  });
export const around = (single: string, pair: string): JsonObject => ({
  type: 'TemplateProcessing',
  single: template(single),
  pair: template(pair),
});
/** The same tokens around each of two texts. */
export const between = (before: readonly string[], after: readonly string[]): JsonObject => {
  const row = (type_id: number, id: string): JsonObject[] => {
    const mark = (id: string): JsonObject => ({ SpecialToken: { id, type_id } });
    return [...before.map(mark), { Sequence: { id, type_id } }, ...after.map(mark)];
  };
  return { type: 'TemplateProcessing', single: row(0, 'A'), pair: [...row(0, 'A'), ...row(1, 'B')] };
};
export const added = (content: string, id: number, special = true): JsonObject => ({ id, content, special, normalized: false });

/** Where the tokens of a vocabulary that is an object stand. */
function listOf(vocab: JsonObject, where: string): (string | undefined)[] {
  const list: (string | undefined)[] = [];
  for (const [token, id] of Object.entries(vocab)) {
    if (!Number.isSafeInteger(id) || (id as number) < 0 || (id as number) >= 2 ** 24)
      throw new WasmformerError('invalid-file', `[${where}] ${token}: expected an id below 2^24, got ${kindOf(id)}`);
    list[id as number] = token;
  }
  return list;
}

class Reader {
  readonly #folder: ModelFolder;
  readonly #settings: JsonObject;
  readonly #signal: AbortSignal | undefined;

  constructor(folder: ModelFolder, settings: JsonObject, signal: AbortSignal | undefined) {
    this.#folder = folder;
    this.#settings = settings;
    this.#signal = signal;
  }

  text(file: string): Promise<string | null> {
    return readText(this.#folder, file, this.#signal);
  }

  async vocabulary(file: string): Promise<JsonObject | null> {
    const text = await this.text(file);
    if (text === null) return null;
    const json = parseJson(text, `${this.#folder.name}: ${file}`);
    if (!isObject(json))
      throw new WasmformerError('invalid-file', `[${this.#folder.name}] ${file}: expected an object, got ${kindOf(json)}`);
    return json;
  }

  async model(file: string): Promise<SentencePieceModel | null> {
    const source = await this.#folder.find(file, this.#signal);
    if (source === null) return null;
    const where = `${this.#folder.name}: ${file}`;
    if (source.size > 2 ** 28)
      throw new WasmformerError('invalid-file', `[${where}] size: expected at most ${2 ** 28} bytes, got ${source.size}`);
    const bytes = await source.read(0, source.size, this.#signal);
    this.#folder.release(file);
    return readSentencePiece(bytes, where);
  }

  /** A value of tokenizer_config.json: a count, or of the kind that `preset` is of (null: true or false). */
  setting<T>(name: string, preset: T): T {
    const value = own(this.#settings, name) ?? preset;
    const kind = preset === null ? 'boolean' : typeof preset;
    const fits =
      kind === 'number' ? Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 16 : typeof value === kind;
    if (value !== preset && !fits) {
      const expected = kind === 'number' ? 'an integer from 0 to 65535' : `a ${kind}`;
      throw new WasmformerError(
        'invalid-file',
        `[${this.where('tokenizer_config.json')}] ${name}: expected ${expected}, got ${kindOf(value)}`,
      );
    }
    return value as T;
  }

  where(file: string): string {
    return `${this.#folder.name}: ${file}`;
  }

  /** SentencePiece's scores in the order of ids that a family has, as the tokenizers library runs them. */
  unigram(
    file: string,
    model: SentencePieceModel,
    parts: {
      vocab: [string, number][];
      unknown: number;
      normalizers?: JsonObject[];
      words?: boolean;
      processor?: JsonObject | null;
      special?: string[];
    },
  ): Description {
    if (model.kind !== 'unigram')
      throw new WasmformerError(
        'unsupported',
        `[${this.where(file)}] model_type: expected a unigram model, got BPE, which is not supported for this tokenizer_class`,
      );
    const tokens = definedTokens(
      model,
      parts.vocab.map(([token]) => token),
    );
    return unigramDescription(file, {
      ...parts,
      charsmap: model.charsmap,
      added: tokens,
      prefixed: this.setting('add_prefix_space', true),
    });
  }
}

/** A unigram model's scores in the order of ids, as the tokenizers library runs them. */
export function unigramDescription(
  file: string,
  parts: {
    vocab: [string, number][];
    unknown: number;
    charsmap: Uint8Array | null;
    added: JsonObject[];
    prefixed: boolean;
    normalizers?: JsonObject[];
    words?: boolean;
    processor?: JsonObject | null;
    special?: string[];
  },
): Description {
  const { vocab, unknown, normalizers = [], words = true, processor = null, special = [] } = parts;
  const metaspace = { type: 'Metaspace', replacement: kMark, prepend_scheme: parts.prefixed ? 'always' : 'never' };
  const charsmap = parts.charsmap === null ? [] : [{ type: 'Precompiled', precompiled_charsmap: parts.charsmap }];
  const spaces = words ? [] : [{ type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' }];
  return {
    file,
    json: {
      added_tokens: parts.added,
      normalizer: { type: 'Sequence', normalizers: [...normalizers, ...charsmap, ...spaces] },
      pre_tokenizer: words ? { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, metaspace] } : metaspace,
      post_processor: processor,
      decoder: metaspace,
      model: { type: 'Unigram', unk_id: unknown, vocab },
    },
    special,
  };
}

/** Control and user-defined pieces, which are found in the text as they stand. */
function definedTokens(model: SentencePieceModel, vocab: readonly (string | undefined)[]): JsonObject[] {
  return model.pieces.flatMap(({ text, type }) => {
    const id = type === pieceTypes.control || type === pieceTypes.userDefined ? vocab.indexOf(text) : -1;
    return id < 0 ? [] : [added(text, id, type === pieceTypes.control)];
  });
}

/** Pieces after fairseq's own four tokens. */
function fairseq(model: SentencePieceModel, more: readonly string[]): [string, number][] {
  return [
    ...['<s>', '<pad>', '</s>', '<unk>'].map((token): [string, number] => [token, 0]),
    ...model.pieces.slice(3).map(({ text, score }): [string, number] => [text, score]),
    ...more.map((token): [string, number] => [token, 0]),
  ];
}

/**
 * What the files of a folder without a tokenizer.json say, as its family's class in transformers reads them; null where
 * there are none of a kind known here.
 * @throws WasmformerError `invalid-file`, `unsupported`
 */
export async function describeFiles(
  folder: ModelFolder,
  family: Family | null,
  settings: JsonObject,
  signal: AbortSignal | undefined,
): Promise<Description | null> {
  const reader = new Reader(folder, settings, signal);
  const listed = await folder.list();
  /** Whether a file is worth asking for: where the folder cannot be listed, only those of its family are. */
  const may = (file: string, ...families: Family[]): boolean => listed?.includes(file) ?? (family !== null && families.includes(family));

  if (family === 'marian') return marian(reader);
  const vocab = await reader.vocabulary('vocab.json');
  if (family === 'm2m100' && vocab !== null) return m2m100(reader, vocab);
  const merges = vocab === null ? null : await reader.text('merges.txt');
  if (vocab !== null && merges !== null) {
    const more = listed === null ? null : await readObject(folder, 'added_tokens.json', signal);
    return byteLevel(folder, vocab, merges, more, settings, family === 'roberta');
  }
  const words = may('vocab.txt', 'bert') ? await reader.text('vocab.txt') : null;
  if (words !== null) return wordPiece(reader, words);
  for (const file of ['spiece.model', 'sentencepiece.bpe.model', 'tokenizer.model']) {
    const asked =
      file === 'spiece.model'
        ? may(file, 't5', 'albert', 'pegasus')
        : file === 'tokenizer.model' || may(file, 'xlmroberta', 'mbart', 'mbart50', 'nllb', 'm2m100');
    const model = asked ? await reader.model(file) : null;
    if (model !== null) return sentencePiece(reader, file, model, family, settings);
  }
  for (const file of ['tekken.json', 'source.spm']) {
    if (listed?.includes(file))
      throw new WasmformerError(
        'unsupported',
        `[${folder.name}] ${file}: this kind of tokenizer is not supported; expected a tokenizer.json (transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...))`,
      );
  }
  return null;
}

function sentencePiece(reader: Reader, file: string, model: SentencePieceModel, family: Family | null, settings: JsonObject): Description {
  const scored = model.pieces.map(({ text, score }): [string, number] => [text, score]);
  switch (family) {
    case 't5': {
      const extra = Array.from({ length: reader.setting('extra_ids', 100) }, (_, i) => `<extra_id_${i}>`);
      const vocab = [...scored, ...[...extra].reverse().map((token): [string, number] => [token, 0])];
      return reader.unigram(file, model, { vocab, unknown: 2, processor: around('$A </s>', '$A </s> $B </s>'), special: extra });
    }
    case 'albert': {
      const quote = (two: string): JsonObject => ({ type: 'Replace', pattern: { String: two }, content: '"' });
      return reader.unigram(file, model, {
        vocab: scored,
        unknown: 1,
        normalizers: [
          quote('``'),
          quote("''"),
          ...(reader.setting('keep_accents', false) ? [] : [{ type: 'NFKD' }, { type: 'StripAccents' }]),
          ...(reader.setting('do_lower_case', true) ? [{ type: 'Lowercase' }] : []),
        ],
        processor: around('[CLS] $A [SEP]', '[CLS] $A [SEP] $B:1 [SEP]:1'),
      });
    }
    case 'pegasus': {
      const offset = reader.setting('offset', 103);
      const sentence = reader.setting('mask_token_sent', '<mask_1>');
      const unused = Array.from({ length: offset - 2 }, (_, i) => `<unk_${i + 2}>`);
      const vocab: [string, number][] = [
        ...['<pad>', '</s>', sentence, '<mask_2>'].map((token): [string, number] => [token, 0]),
        ...unused.map((token): [string, number] => [token, -100]),
        ...scored.slice(2),
      ];
      const unknown = model.unknown + offset;
      return reader.unigram(file, model, {
        vocab,
        unknown,
        words: false,
        processor: around('$A </s>', '$A $B </s>'),
        special: [sentence, ...unused],
      });
    }
    case 'xlmroberta': {
      const processor = around('<s> $A </s>', '<s> $A </s> </s> $B </s>');
      return reader.unigram(file, model, { vocab: fairseq(model, ['<mask>']), unknown: 3, processor });
    }
    case 'mbart':
    case 'mbart50': {
      const codes = (family === 'mbart' ? kMBart : `${kMBart} ${kMBart50}`).split(' ');
      return reader.unigram(file, model, {
        vocab: fairseq(model, [...codes, '<mask>']),
        unknown: 3,
        words: family === 'mbart',
        special: codes,
      });
    }
    case 'm2m100':
    case 'nllb': {
      const tokens = fairseq(model, []).map(([token]) => token);
      const spaces = { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' };
      const metaspace = { type: 'Metaspace', replacement: kMark, prepend_scheme: 'always' };
      const codes = reader.setting<unknown[]>('extra_special_tokens', reader.setting<unknown[]>('additional_special_tokens', []));
      if (codes.length === 0)
        throw new WasmformerError(
          'unsupported',
          `[${reader.where(file)}] languages: expected their codes among additional_special_tokens, or a tokenizer.json`,
        );
      const description = native(file, model, tokens, (id) => (id === model.unknown ? 3 : id + 1));
      return {
        file,
        native: { vocab: tokens, subwords: (description.native as NonNullable<Description['native']>).subwords },
        special: codes,
        json: {
          ...description.json,
          normalizer: {
            type: 'Sequence',
            normalizers: [...(model.charsmap ? [{ type: 'Precompiled', precompiled_charsmap: model.charsmap }] : []), spaces],
          },
          pre_tokenizer: metaspace,
          decoder: metaspace,
        },
      };
    }
    case 'llama':
    case 'gemma':
    case null: {
      if (file !== 'tokenizer.model') break;
      const tokens = model.pieces.map(({ text }) => text);
      const [bos, eos] = [tokens[model.bos], tokens[model.eos]];
      const before = reader.setting('add_bos_token', family !== null) && bos !== undefined ? [bos] : [];
      const after = reader.setting('add_eos_token', false) && eos !== undefined ? [eos] : [];
      const description = native(file, model, tokens, (id) => id, own(settings, 'legacy') === false ? 'first' : 'always');
      description.json.post_processor = between(before, after);
      return description;
    }
    default:
  }
  throw new WasmformerError(
    'unsupported',
    `[${reader.where(file)}] tokenizer_class: expected one whose SentencePiece files are known here, got ${kindOf(own(settings, 'tokenizer_class'))}; a tokenizer.json would do`,
  );
}

/** A tokenizer that runs SentencePiece itself; `idOf` maps its ids. */
export function native(
  file: string,
  model: SentencePieceModel,
  vocab: (string | undefined)[],
  idOf: (id: number, text: string) => number,
  prefix: 'always' | 'first' = 'always',
): Description {
  const segment = sentencePieceSubwords(model);
  const steps = [
    { type: 'Replace', pattern: { String: kMark }, content: ' ' },
    { type: 'ByteFallback' },
    { type: 'Fuse' },
    ...(model.addDummyPrefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
  ];
  return {
    file,
    json: { added_tokens: definedTokens(model, vocab).filter((token) => token.special), decoder: { type: 'Sequence', decoders: steps } },
    native: {
      vocab,
      normalize: sentencePieceNormalizer(model, prefix),
      subwords: (text) => {
        const tokens = segment(text);
        for (let i = 0; i < tokens.length; i += 3) tokens[i] = idOf(tokens[i] as number, text.slice(tokens[i + 1], tokens[i + 2]));
        return tokens;
      },
      written: (vocab) => writtenMerges(model, vocab),
    },
  };
}

/** SentencePiece that cuts texts into pieces, and a vocab.json that numbers them. */
function numbered(reader: Reader, file: string, model: SentencePieceModel, vocab: JsonObject, gap: string): Description {
  const unknown = own(vocab, '<unk>');
  if (typeof unknown !== 'number')
    throw new WasmformerError('invalid-file', `[${reader.where(file)}] <unk>: expected its id, got ${kindOf(unknown)}`);
  const ids = new Map(Object.entries(vocab)) as Map<string, number>;
  const description = native(file, model, listOf(vocab, reader.where(file)), (_, text) => ids.get(text) ?? unknown);
  description.json = { decoder: { type: 'SentencePiece', gap } };
  return description;
}

async function marian(reader: Reader): Promise<Description | null> {
  const [vocab, source, target] = [
    await reader.vocabulary('vocab.json'),
    await reader.model('source.spm'),
    await reader.model('target.spm'),
  ];
  const apart: boolean = reader.setting('separate_vocabs', false);
  const separate = apart ? await reader.vocabulary('target_vocab.json') : null;
  if (vocab === null && source === null && target === null) return null;
  if (vocab === null || source === null || target === null || (apart && separate === null)) {
    throw new WasmformerError(
      'unsupported',
      `[${reader.where('tokenizer')}] files: expected source.spm, target.spm, vocab.json${apart ? ' and target_vocab.json' : ''}, of which some are missing`,
    );
  }
  const describe = (model: SentencePieceModel, of: JsonObject, file: string): Description => {
    const made = numbered(reader, file, model, of, ' ');
    made.json.post_processor = around('$A </s>', '$A $B </s>');
    const ids = new Map(Object.entries(of)) as Map<string, number>;
    const lead = (text: string): { id: number; length: number } | null => {
      const code = /^>>[\s\S]*?<</.exec(text)?.[0];
      return code === undefined ? null : { id: ids.get(code) ?? (ids.get('<unk>') as number), length: code.length };
    };
    return { ...made, lead };
  };
  return {
    ...describe(source, vocab, 'vocab.json'),
    target: describe(target, separate ?? vocab, separate === null ? 'vocab.json' : 'target_vocab.json'),
  };
}

async function m2m100(reader: Reader, vocab: JsonObject): Promise<Description | null> {
  const model = await reader.model('sentencepiece.bpe.model');
  if (model === null) return null;
  const made = numbered(reader, 'vocab.json', model, vocab, '');
  return { ...made, special: kM2M100.split(' ').map((code) => `__${code}__`) };
}

/** BERT's vocab.txt: a token on each line. */
function wordPiece(reader: Reader, text: string): Description {
  const lines = text.split(/\r\n?|\n/);
  if (lines.at(-1) === '') lines.pop();
  return wordPieceDescription('vocab.txt', lines, {
    chinese: reader.setting('tokenize_chinese_chars', true),
    accents: reader.setting('strip_accents', null),
    lowercase: reader.setting('do_lower_case', true),
  });
}

/** BERT's tokens in the order of their ids. */
export function wordPieceDescription(
  file: string,
  tokens: readonly string[],
  { chinese, accents, lowercase }: { chinese: boolean; accents: boolean | null; lowercase: boolean },
): Description {
  return {
    file,
    json: {
      normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: chinese, strip_accents: accents, lowercase },
      pre_tokenizer: { type: 'BertPreTokenizer' },
      post_processor: around('[CLS] $A [SEP]', '[CLS] $A [SEP] $B:1 [SEP]:1'),
      decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
      model: {
        type: 'WordPiece',
        unk_token: '[UNK]',
        continuing_subword_prefix: '##',
        max_input_chars_per_word: 100,
        vocab: Object.assign(Object.create(null), Object.fromEntries(tokens.map((token, id) => [token, id]))),
      },
    },
  };
}

/** A byte-level vocab.json and merges.txt. */
function byteLevel(
  folder: ModelFolder,
  vocab: JsonObject,
  mergesText: string,
  more: JsonObject | null,
  settings: JsonObject,
  roberta: boolean,
): Description {
  const merges: [string, string][] = [];
  for (const line of mergesText.split('\n')) {
    const pair = line.replace(/\r$/, '');
    if (pair === '' || pair.startsWith('#version')) continue;
    const space = pair.indexOf(' ');
    if (space < 1 || space !== pair.lastIndexOf(' '))
      throw new WasmformerError('invalid-file', `[${folder.name}] merges.txt: expected two parts on each line, got ${kindOf(pair)}`);
    merges.push([pair.slice(0, space), pair.slice(space + 1)]);
  }
  const prefixed = own(settings, 'add_prefix_space') === true;
  const bos = own(settings, 'bos_token');
  const start = isObject(bos) ? own(bos, 'content') : bos;
  const withBos = own(settings, 'add_bos_token') === true && typeof start === 'string' && Object.hasOwn(vocab, start);
  const trims = own(settings, 'trim_offsets') !== false;
  return {
    file: 'vocab.json',
    json: {
      added_tokens: Object.entries(more ?? {}).flatMap(([content, id]) => (typeof id === 'number' ? [added(content, id, false)] : [])),
      pre_tokenizer: { type: 'ByteLevel', add_prefix_space: prefixed, use_regex: true },
      post_processor: roberta
        ? {
            type: 'RobertaProcessing',
            sep: ['</s>', own(vocab, '</s>')],
            cls: ['<s>', own(vocab, '<s>')],
            trim_offsets: trims,
            add_prefix_space: prefixed,
          }
        : withBos
          ? around(`${start} $A`, `${start} $A ${start}:1 $B:1`)
          : { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false },
      decoder: { type: 'ByteLevel' },
      model: { type: 'BPE', vocab, merges },
    },
  };
}
