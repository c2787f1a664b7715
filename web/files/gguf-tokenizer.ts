import { WasmformerError } from '../errors.ts';
import { type JsonObject, kindOf } from './json.ts';
import { pieceTypes } from './sentencepiece.ts';
import { added, between, type Description, type Family, native, unigramDescription, wordPieceDescription } from './tokenizer-files.ts';

const kMark = '\u2581';
const kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const kRest = '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
/** Words of one case after the other, as OpenAI's later vocabularies and Mistral's cut them. */
const cased = (suffix: string, digits: string): string =>
  `[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+${suffix}|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*${suffix}|${digits}${kRest.replace('\\r\\n]*', '\\r\\n/]*')}`;
const words = (digits: string): string => `${kContractions}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${digits}${kRest}`;

/** Names of ways to cut a text before byte-level BPE (llama.cpp's llama-vocab.cpp), and the expression of each. */
const kSplits: readonly (readonly [names: string, expression: string])[] = [
  ['llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe', words('\\p{N}{1,3}')],
  ['qwen2 deepseek-r1-qwen stablelm2 kormo f2llmv2 megrez', words('\\p{N}')],
  ['tekken', cased('', '\\p{N}')],
  ['gpt-4o llama4 kanana2 talkie minimax-m2', cased(`${kContractions}?`, '\\p{N}{1,3}')],
];
/** GPT-2's own, and GPT-2's after each digit stands alone. */
const kPlain = 'default gpt-2 gpt2 phi-2 mpt olmo jais trillion jina-es jina-de gigachat roberta-bpe';
const kDigits = 'smollm starcoder refact command-r codeshell exaone minerva-7b';

const among = (names: string, name: string): boolean => names.split(' ').includes(name);

/**
 * The tokenizer that a GGUF's metadata describes, as a tokenizer.json and a tokenizer_config.json would.
 * @returns null where there is none
 * @throws WasmformerError `unsupported` for a kind that is not known, `invalid-file`
 */
export function describeGguf(
  metadata: JsonObject,
  where: string,
): { description: Description; settings: JsonObject; family: Family | null } | null {
  const value = (key: string): unknown => metadata[`tokenizer.ggml.${key}`];
  const kind = value('model') ?? 'none';
  if (kind === 'none' || kind === 'no_vocab') return null;
  const bad = (key: string, expected: string, got: unknown): WasmformerError =>
    new WasmformerError('invalid-file', `[${where}] tokenizer.ggml.${key}: expected ${expected}, got ${kindOf(got)}`);
  const unsupported = (key: string, expected: string): WasmformerError =>
    new WasmformerError('unsupported', `[${where}] tokenizer.ggml.${key}: expected ${expected}, got ${kindOf(value(key))}`);
  const list = <T>(key: string, type: string, count?: number): T[] => {
    const given = value(key);
    if (!Array.isArray(given) || !given.every((one) => typeof one === type)) throw bad(key, `a list of ${type}s`, given);
    if (given.length !== (count ?? given.length)) throw bad(key, `${count}, one for each token`, given.length);
    return [...given];
  };
  const flag = (key: string, preset: boolean): boolean => {
    const given = value(key) ?? preset;
    if (typeof given !== 'boolean') throw bad(key, 'true or false', given);
    return given;
  };
  const vocab = list<string>('tokens', 'string');
  const types = value('token_type') === undefined ? vocab.map(() => pieceTypes.normal) : list<number>('token_type', 'number', vocab.length);
  const pre = String(value('pre') ?? 'default');
  const byteLevel = kind === 'gpt2';
  const wholes = byteLevel && among((kSplits[0] as readonly [string, string])[0], pre);

  const settings: JsonObject = Object.create(null);
  const roles: Record<string, string> = {};
  for (const [role, key] of Object.entries({
    bos: 'bos',
    eos: 'eos',
    unk: 'unknown',
    pad: 'padding',
    sep: 'seperator', // as the format spells it
    cls: 'cls',
    mask: 'mask',
  })) {
    const id = value(`${key}_token_id`);
    const token = vocab[id as number];
    if (id !== undefined && token === undefined) throw bad(`${key}_token_id`, `an id below ${vocab.length}`, id);
    if (token !== undefined) settings[`${role}_token`] = roles[role] = token;
  }
  const names = metadata['tokenizer.chat_templates'];
  settings.chat_template = ['default', ...(Array.isArray(names) ? names : [])].map((name) => ({
    name,
    template: metadata[`tokenizer.chat_template${name === 'default' ? '' : `.${name}`}`],
  }));
  settings.model_max_length = metadata[`${metadata['general.architecture']}.context_length`];

  const own = (preset: boolean, key: string, token: string | undefined): string[] =>
    flag(key, preset) && token !== undefined ? [token] : [];
  const around = (): JsonObject =>
    between(own(kind === 'llama' || wholes, 'add_bos_token', roles.bos), own(kind === 't5', 'add_eos_token', roles.eos));
  const { control, userDefined } = pieceTypes;
  const extra = (): JsonObject[] =>
    vocab.flatMap((token, id) => (types[id] === control || types[id] === userDefined ? [added(token, id, types[id] === control)] : []));

  switch (kind) {
    case 'gpt2':
      return { description: bytePairs(), settings, family: null };
    case 'llama': {
      const scores = list<number>('scores', 'number', vocab.length);
      const unknown = types.indexOf(pieceTypes.unknown);
      const pieces = vocab.map((text, id) => ({
        // Spaces stand in user-defined pieces as they are.
        text: types[id] === userDefined ? text.replaceAll(' ', kMark) : text,
        score: scores[id] as number,
        type: types[id] as number,
      }));
      const description = native(
        where,
        {
          kind: 'bpe',
          pieces,
          unknown: unknown < 0 ? Number(value('unknown_token_id') ?? 0) : unknown,
          bos: -1,
          eos: -1,
          pad: -1,
          byteFallback: types.includes(pieceTypes.byte),
          charsmap: null,
          addDummyPrefix: flag('add_space_prefix', true),
          removeExtraWhitespaces: flag('remove_extra_whitespaces', false),
          escapeWhitespaces: true,
        },
        pieces.map(({ text }) => text),
        (id) => id,
      );
      // As added tokens, which parts of a text end at; runs of spaces are pieces of it.
      description.json.added_tokens = extra().filter(({ content }) => /[^\s\u2581]/.test(content as string));
      description.json.post_processor = around();
      return { description, settings, family: null };
    }
    case 'bert': {
      // A word's first token is marked there, the others are not; in BERT's files it is the other way round.
      const plain = vocab.map((token) => (token.startsWith(kMark) ? token.slice(1) : /^\[.*\]$/.test(token) ? token : `##${token}`));
      const lowercase = !plain.some((token, id) => types[id] === pieceTypes.normal && !/^\[.*\]$/.test(token) && /\p{Lu}/u.test(token));
      return { description: wordPieceDescription(where, plain, { chinese: true, accents: null, lowercase }), settings, family: 'bert' };
    }
    case 't5': {
      const scores = list<number>('scores', 'number', vocab.length);
      const charsmap = value('precompiled_charsmap') ?? null;
      if (charsmap !== null && !(charsmap instanceof Uint8Array)) throw bad('precompiled_charsmap', 'bytes', charsmap);
      // T5's blanks lost their names on the way into the file.
      const blanks = vocab.flatMap((token, id) => (/^\[PAD\d+\]$/.test(token) ? [id] : [])).slice(0, 100);
      const special = blanks.map((id, i) => (vocab[id] = `<extra_id_${99 - i}>`));
      const description = unigramDescription(where, {
        vocab: vocab.map((token, id) => [token, scores[id] as number]),
        unknown: Number(value('unknown_token_id') ?? 2),
        charsmap,
        added: extra(),
        prefixed: flag('add_space_prefix', true),
        processor: around(),
        special,
      });
      return { description, settings, family: null };
    }
    default:
      throw unsupported('model', 'gpt2, llama, bert or t5');
  }

  function bytePairs(): Description {
    const split = kSplits.find(([names]) => among(names, pre));
    if (split === undefined && !among(`${kPlain} ${kDigits}`, pre)) throw unsupported('pre', 'a way to cut texts that is known here');
    const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: split === undefined };
    const first = split
      ? { type: 'Split', pattern: { Regex: split[1] }, behavior: 'Isolated', invert: false }
      : among(kDigits, pre) && { type: 'Digits', individual_digits: true };
    return {
      file: where,
      json: {
        added_tokens: extra(),
        // Of Qwen2's tokenizer; the format has no word for it.
        ...(pre === 'qwen2' && { normalizer: { type: 'NFC' } }),
        pre_tokenizer: first ? { type: 'Sequence', pretokenizers: [first, bytes] } : bytes,
        post_processor: around(),
        decoder: bytes,
        model: {
          type: 'BPE',
          vocab: Object.assign(Object.create(null), Object.fromEntries(vocab.map((token, id) => [token, id]))),
          merges: list<string>('merges', 'string'),
          ignore_merges: wholes || pre === 'tekken',
        },
      },
    };
  }
}
