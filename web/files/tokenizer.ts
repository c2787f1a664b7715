import { Tokenizer as Encoder } from '@huggingface/tokenizers';
import { WasmformerError } from '../errors.ts';
import { type ChatMessage, ChatTemplate, type ChatTemplateOptions } from './chat.ts';
import { readObject, readText } from './checkpoint.ts';
import { byteLevelBytes, compileDecoder, fallbackByte, type StreamDecoder, TokenStream } from './decoder.ts';
import { isObject, type JsonObject, kindOf, own, parseJson } from './json.ts';
import { readLlama2cTokenizer } from './llama2c-tokenizer.ts';
import type { ModelFolder } from './source.ts';

/** Ids of the tokens a tokenizer gives a role, null for none. */
export interface SpecialTokens {
  bos: number | null;
  eos: number | null;
  pad: number | null;
  unk: number | null;
  sep: number | null;
  cls: number | null;
  mask: number | null;
  /** Every token that `skipSpecialTokens` leaves out. */
  all: number[];
}

export interface DecodeOptions {
  /** Leaves out special tokens; false by default, as in transformers. */
  skipSpecialTokens?: boolean;
  /** What stands before: the text is what these ids add, so that a space at its start survives. */
  after?: Iterable<number>;
}

/** Text to ids and back. */
export interface Tokenizer {
  /** The largest id plus one. */
  readonly vocabSize: number;
  readonly specials: SpecialTokens;
  /** @param options.addSpecialTokens adds what the model expects around a text (BOS, say); true by default */
  encode(text: string, options?: { addSpecialTokens?: boolean }): number[];
  /** Ids that are no token are left out, as in transformers. */
  decode(ids: Iterable<number>, options?: DecodeOptions): string;
  /** Decodes as ids come; the pieces joined are what `decode` gives for all of them. */
  createDecoder(options?: DecodeOptions): StreamDecoder;
  tokenToId(token: string): number | null;
  idToToken(id: number): string | null;
  /** What a token adds in the middle of a text, as UTF-8, perhaps a part of a character. Empty for an id that is none. */
  tokenBytes(id: number): Uint8Array;
  /** Whether `applyChatTemplate` has a template, as far as is known without asking the server. */
  readonly hasChatTemplate: boolean;
  /** Looks for a template in a file of its own; whether there is one. */
  prepareChatTemplate(signal?: AbortSignal): Promise<boolean>;
  /**
   * A conversation as the text the model was trained on; encode it with `addSpecialTokens: false`.
   * @throws WasmformerError `unsupported` without a template, `invalid-argument` where the template refuses the messages
   */
  applyChatTemplate(messages: readonly ChatMessage[], options?: ChatTemplateOptions): string;
}

const kRoles = ['bos', 'eos', 'pad', 'unk', 'sep', 'cls', 'mask'] as const;

/** What a tokenizer is built from. */
export interface TokenizerParts {
  where: string;
  /** Token strings by id. */
  vocab: readonly (string | undefined)[];
  encode(text: string, addSpecialTokens: boolean): number[];
  /** The `decoder` of a tokenizer.json. */
  decoder: unknown;
  cleanUp: boolean;
  specials: SpecialTokens;
  /** Templates by name. */
  templates: ReadonlyMap<string, string>;
  /** Fetches templates kept in files of their own. */
  findTemplates?: (signal: AbortSignal | undefined) => Promise<ReadonlyMap<string, string>>;
}

/** A tokenizer over a vocabulary, whatever it was read from. */
export class VocabularyTokenizer implements Tokenizer {
  readonly vocabSize: number;
  readonly specials: SpecialTokens;
  readonly #parts: TokenizerParts;
  #ids: Map<string, number> | null = null;
  readonly #special: ReadonlySet<number>;
  readonly #steps: ReturnType<typeof compileDecoder>;
  #templates: ReadonlyMap<string, string>;
  #searched = false;
  readonly #compiled = new Map<string, ChatTemplate>();

  constructor(parts: TokenizerParts) {
    this.#parts = parts;
    this.vocabSize = parts.vocab.length;
    this.specials = parts.specials;
    this.#special = new Set(parts.specials.all);
    this.#templates = parts.templates;
    this.#steps = compileDecoder({ config: parts.decoder, cleanUp: parts.cleanUp }, parts.where);
  }

  encode(text: string, options: { addSpecialTokens?: boolean } = {}): number[] {
    if (typeof text !== 'string') throw new WasmformerError('invalid-argument', `[tokenizer] text: expected a string, got ${kindOf(text)}`);
    return this.#parts.encode(text, options.addSpecialTokens ?? true);
  }

  decode(ids: Iterable<number>, options: DecodeOptions = {}): string {
    const decoder = this.createDecoder(options);
    const pieces: string[] = [];
    for (const id of ids) pieces.push(decoder.push(id));
    pieces.push(decoder.end());
    return pieces.join('');
  }

  createDecoder(options: DecodeOptions = {}): StreamDecoder {
    const stream = new TokenStream(this.#steps());
    const skip = options.skipSpecialTokens ?? false;
    const push = (id: number): string => {
      const token = this.#parts.vocab[id];
      return token === undefined || (skip && this.#special.has(id)) ? '' : stream.push(token);
    };
    for (const id of options.after ?? []) push(id);
    return { push, end: () => stream.end() };
  }

  tokenToId(token: string): number | null {
    this.#ids ??= idsOf(this.#parts.vocab);
    return this.#ids.get(token) ?? null;
  }

  idToToken(id: number): string | null {
    return this.#parts.vocab[id] ?? null;
  }

  tokenBytes(id: number): Uint8Array {
    const token = this.#parts.vocab[id];
    if (token === undefined) return new Uint8Array(0);
    const kinds = JSON.stringify(this.#parts.decoder ?? null);
    if (kinds.includes('"ByteLevel"')) return byteLevelBytes(token);
    const byte = kinds.includes('"ByteFallback"') ? fallbackByte(token) : -1;
    if (byte >= 0) return Uint8Array.of(byte);
    const stream = new TokenStream(this.#steps());
    const before = stream.push('a');
    const text = before + stream.push(token) + stream.end();
    return new TextEncoder().encode(text.startsWith('a') ? text.slice(1) : text);
  }

  get hasChatTemplate(): boolean {
    return this.#templates.size > 0;
  }

  async prepareChatTemplate(signal?: AbortSignal): Promise<boolean> {
    if (!this.hasChatTemplate && !this.#searched && this.#parts.findTemplates) {
      this.#templates = await this.#parts.findTemplates(signal);
      this.#searched = true;
    }
    return this.hasChatTemplate;
  }

  applyChatTemplate(messages: readonly ChatMessage[], options: ChatTemplateOptions = {}): string {
    if (!Array.isArray(messages) || !messages.every((message) => isObject(message) && typeof own(message, 'role') === 'string')) {
      throw new WasmformerError('invalid-argument', `[chat] messages: expected a list of { role, content }, got ${kindOf(messages)}`);
    }
    const { addGenerationPrompt = false, template, tools, documents, ...variables } = options;
    const source = this.#chooseTemplate(template, tools);
    let compiled = this.#compiled.get(source);
    if (compiled === undefined) {
      compiled = new ChatTemplate(source, this.#parts.where);
      this.#compiled.set(source, compiled);
    }
    const named: Record<string, unknown> = {};
    for (const role of kRoles) {
      const id = this.specials[role];
      if (id !== null) named[`${role}_token`] = this.idToToken(id);
    }
    // Templates ask `if tools` or `tools is not none`: what is not given must be none, not undefined.
    return compiled.render({
      ...named,
      ...variables,
      messages,
      tools: tools ?? null,
      documents: documents ?? null,
      add_generation_prompt: addGenerationPrompt,
    });
  }

  #chooseTemplate(template: string | undefined, tools: unknown[] | undefined): string {
    const templates = this.#templates;
    if (template !== undefined) return templates.get(template) ?? template;
    const chosen = (tools !== undefined ? templates.get('tool_use') : undefined) ?? templates.get('default');
    if (chosen !== undefined) return chosen;
    const names = [...templates.keys()];
    throw new WasmformerError(
      'unsupported',
      names.length > 0
        ? `[chat] template: expected the name of one of ${names.join(', ')}`
        : `[chat] ${this.#parts.where}: has no chat template; it is a base model (use generate), or pass one as \`template\``,
    );
  }
}

/**
 * The tokenizer of a model: tokenizer.json, or vocab.json with merges.txt (byte-level BPE, as GPT-2's), or llama2.c's
 * tokenizer.bin.
 * @returns null where the folder has none: such a model works with ids
 * @throws WasmformerError `unsupported` for a lone SentencePiece model, `invalid-file`
 */
export async function openTokenizer(
  folder: ModelFolder,
  format: string,
  modelType: unknown,
  signal?: AbortSignal,
): Promise<Tokenizer | null> {
  if (format === 'llama2.c') {
    const source = await folder.find('tokenizer.bin', signal);
    return source === null ? null : readLlama2cTokenizer(await source.read(0, source.size, signal), `${folder.name}: tokenizer.bin`);
  }
  const text = await readText(folder, 'tokenizer.json', signal);
  if (text !== null) {
    const json = parseJson(text, `${folder.name}: tokenizer.json`);
    const settings = await readSettings(folder, signal);
    return buildTokenizer(folder, json, settings, modelType, false);
  }
  const vocab = await readText(folder, 'vocab.json', signal);
  const merges = vocab === null ? null : await readText(folder, 'merges.txt', signal);
  if (vocab !== null && merges !== null) {
    const settings = await readSettings(folder, signal);
    const added = await readObjectIfListed(folder, 'added_tokens.json', signal);
    return buildTokenizer(folder, fromVocabAndMerges(vocab, merges, added, settings, folder.name), settings, modelType, true);
  }
  for (const file of ['tokenizer.model', 'spiece.model', 'sentencepiece.bpe.model', 'vocab.txt', 'tekken.json']) {
    const listed = await folder.list();
    if (listed === null && file !== 'tokenizer.model') continue;
    if (await folder.has(file, signal)) {
      throw new WasmformerError(
        'unsupported',
        `[${folder.name}] ${file}: this kind of tokenizer is not supported; expected a tokenizer.json (transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...))`,
      );
    }
  }
  return null;
}

async function readObjectIfListed(folder: ModelFolder, file: string, signal: AbortSignal | undefined): Promise<JsonObject | null> {
  return (await folder.list()) === null ? null : readObject(folder, file, signal);
}

/** tokenizer_config.json, with what other files add: roles it does not name, and the chat template. */
async function readSettings(folder: ModelFolder, signal: AbortSignal | undefined): Promise<JsonObject> {
  const settings: JsonObject = Object.assign(Object.create(null), await readObject(folder, 'tokenizer_config.json', signal));
  if (!kRoles.some((role) => tokenText(own(settings, `${role}_token`)) !== null)) {
    const map = await readObjectIfListed(folder, 'special_tokens_map.json', signal);
    for (const [key, value] of Object.entries(map ?? {})) {
      if (!Object.hasOwn(settings, key)) settings[key] = value;
    }
  }
  // A template in a file of its own wins; where the folder's files are not known, it is looked for when it is needed.
  const names = await folder.list();
  if (
    names !== null &&
    (names.includes('chat_template.jinja') || (!Object.hasOwn(settings, 'chat_template') && names.includes('chat_template.json')))
  ) {
    settings.chat_template = [...(await findTemplates(folder, signal))].map(([name, template]) => ({ name, template }));
  }
  return settings;
}

/** A token as settings write it: a string, or an object with its `content`. */
function tokenText(value: unknown): string | null {
  if (typeof value === 'string') return value;
  const content = isObject(value) ? own(value, 'content') : undefined;
  return typeof content === 'string' ? content : null;
}

interface AddedToken {
  id: number;
  content: string;
  special: boolean;
  lstrip: boolean;
  rstrip: boolean;
  normalized: boolean;
  single_word: boolean;
}

function addedToken(id: number, value: unknown, special: boolean): AddedToken | null {
  const content = tokenText(value);
  if (content === null || content === '') return null;
  const flag = (key: string, preset: boolean): boolean => {
    const given = isObject(value) ? own(value, key) : undefined;
    return typeof given === 'boolean' ? given : preset;
  };
  return {
    id,
    content,
    special: special || flag('special', false),
    lstrip: flag('lstrip', false),
    rstrip: flag('rstrip', false),
    normalized: flag('normalized', false),
    single_word: flag('single_word', false),
  };
}

/** The tokenizer.json that a byte-level vocab.json and merges.txt stand for. */
function fromVocabAndMerges(
  vocabText: string,
  mergesText: string,
  added: JsonObject | null,
  settings: JsonObject,
  name: string,
): JsonObject {
  const vocab = parseJson(vocabText, `${name}: vocab.json`);
  if (!isObject(vocab)) throw new WasmformerError('invalid-file', `[${name}] vocab.json: expected an object, got ${kindOf(vocab)}`);
  const merges: [string, string][] = [];
  for (const line of mergesText.split('\n')) {
    const pair = line.replace(/\r$/, '');
    if (pair === '' || pair.startsWith('#version')) continue;
    const space = pair.indexOf(' ');
    if (space < 1 || space !== pair.lastIndexOf(' '))
      throw new WasmformerError('invalid-file', `[${name}] merges.txt: expected two parts on each line, got ${kindOf(pair)}`);
    merges.push([pair.slice(0, space), pair.slice(space + 1)]);
  }
  const bos = tokenText(settings.bos_token);
  const bosId = bos !== null && Object.hasOwn(vocab, bos) ? vocab[bos] : undefined;
  const withBos = own(settings, 'add_bos_token') === true && typeof bosId === 'number';
  return {
    added_tokens: Object.entries(added ?? {}).flatMap(([content, id]) =>
      typeof id === 'number' ? [{ id, content, special: false, normalized: false }] : [],
    ),
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: own(settings, 'add_prefix_space') === true, trim_offsets: true, use_regex: true },
    post_processor: withBos
      ? {
          type: 'TemplateProcessing',
          single: [{ SpecialToken: { id: bos, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
          pair: [],
          special_tokens: {},
        }
      : { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false },
    decoder: { type: 'ByteLevel' },
    model: { type: 'BPE', unk_token: null, fuse_unk: false, byte_fallback: false, vocab, merges },
  };
}

function buildTokenizer(folder: ModelFolder, json: unknown, settings: JsonObject, modelType: unknown, plain: boolean): Tokenizer {
  const where = `${folder.name}: ${plain ? 'vocab.json' : 'tokenizer.json'}`;
  const bad = (message: string): WasmformerError => new WasmformerError('invalid-file', `[${where}] ${message}`);
  if (!isObject(json)) throw bad(`JSON: expected an object, got ${kindOf(json)}`);
  const model = own(json, 'model');
  if (!isObject(model)) throw bad(`model: expected an object, got ${kindOf(model)}`);
  const vocab = readVocabulary(model, bad);
  const ids = idsOf(vocab);

  const added = new Map<number, AddedToken>();
  const add = (token: AddedToken | null): void => {
    if (token === null) return;
    added.set(token.id, token);
    vocab[token.id] = token.content;
    ids.set(token.content, token.id);
  };
  const listed = own(json, 'added_tokens') ?? [];
  if (!Array.isArray(listed)) throw bad(`added_tokens: expected a list, got ${kindOf(listed)}`);
  for (const one of listed) {
    const id = isObject(one) ? own(one, 'id') : undefined;
    if (!isTokenId(id)) throw bad(`added_tokens: expected ids below ${kMostTokens}, got ${kindOf(id)}`);
    add(addedToken(id, one, false));
  }
  const more = own(settings, 'added_tokens_decoder');
  for (const [key, value] of isObject(more) ? Object.entries(more) : []) {
    const id = Number(key);
    if (isTokenId(id) && !added.has(id)) add(addedToken(id, value, false));
  }

  // The roles, and further special tokens. One the vocabulary lacks gets the next id, as in transformers.
  const special = (value: unknown): number | null => {
    const content = tokenText(value);
    if (content === null || content === '') return null;
    const id = ids.get(content) ?? vocab.length;
    const known = added.get(id);
    if (known) known.special = true;
    else add(addedToken(id, value, true));
    return id;
  };
  const specials: SpecialTokens = { bos: null, eos: null, pad: null, unk: null, sep: null, cls: null, mask: null, all: [] };
  for (const role of kRoles) specials[role] = special(own(settings, `${role}_token`));
  if (
    specials.bos === null &&
    specials.eos === null &&
    ids.has('<|endoftext|>') &&
    (modelType === 'gpt2' || /^GPT2/.test(String(own(settings, 'tokenizer_class'))))
  ) {
    // GPT-2's own tokenizer class has these as defaults, and its files name none.
    specials.bos = special('<|endoftext|>');
    specials.eos = specials.bos;
    specials.unk ??= specials.bos;
  }
  const extra = own(settings, 'additional_special_tokens') ?? own(settings, 'extra_special_tokens');
  for (const one of Array.isArray(extra) ? extra : []) special(one);
  specials.all = [...added.values()].filter((token) => token.special).map((token) => token.id);

  const encoder = makeEncoder(
    {
      ...json,
      normalizer: own(json, 'normalizer') ?? null,
      pre_tokenizer: rewritePreTokenizer(own(json, 'pre_tokenizer') ?? null),
      post_processor: own(json, 'post_processor') ?? null,
      // Decoding is done here; what the library needs of it is that it is there.
      decoder: null,
      added_tokens: [...added.values()],
    },
    bad,
  );
  const isBpe = own(model, 'type') === 'BPE' || (own(model, 'type') === undefined && Array.isArray(own(model, 'merges')));
  const templates = readTemplates(own(settings, 'chat_template'));
  return new VocabularyTokenizer({
    where: folder.name,
    vocab,
    decoder: own(json, 'decoder') ?? null,
    // transformers leaves BPE alone whatever the flag says: the clean-up would take spaces that were in the text.
    cleanUp: !isBpe && own(settings, 'clean_up_tokenization_spaces') === true,
    specials,
    templates,
    findTemplates: (signal) => findTemplates(folder, signal),
    encode(text, addSpecialTokens) {
      let encoded: (number | null | undefined)[];
      try {
        encoded = encoder.encode(text, { add_special_tokens: addSpecialTokens }).ids;
      } catch (cause) {
        throw new WasmformerError('invalid-file', `[${where}] tokenizer: a text could not be split: ${(cause as Error).message}`, {
          cause,
        });
      }
      // Without an unknown token, what has no id is dropped.
      return encoded.filter((id) => id !== undefined && id !== null);
    },
  });
}

const kMostTokens = 2 ** 24;

function idsOf(vocab: readonly (string | undefined)[]): Map<string, number> {
  const ids = new Map<string, number>();
  vocab.forEach((token, id) => {
    if (token !== undefined) ids.set(token, id);
  });
  return ids;
}

function isTokenId(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 && value < kMostTokens;
}

function readVocabulary(model: JsonObject, bad: (message: string) => WasmformerError): (string | undefined)[] {
  const given = own(model, 'vocab');
  const vocab: (string | undefined)[] = [];
  if (Array.isArray(given)) {
    for (const one of given) {
      if (!Array.isArray(one) || typeof one[0] !== 'string')
        throw bad(`model.vocab: expected pairs of token and score, got ${kindOf(one)}`);
      vocab.push(one[0]);
    }
    return vocab;
  }
  if (!isObject(given)) throw bad(`model.vocab: expected an object or a list, got ${kindOf(given)}`);
  for (const [token, id] of Object.entries(given)) {
    if (!isTokenId(id)) throw bad(`model.vocab: ${token}: expected an id below ${kMostTokens}, got ${kindOf(id)}`);
    vocab[id] = token;
  }
  return vocab;
}

const kBehaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];

/** Checks what the library would read wrongly, or warn of on the console and leave out. */
function checkComponent(component: unknown, bad: (message: string) => WasmformerError): void {
  if (!isObject(component)) return;
  const type = own(component, 'type');
  for (const inner of [own(component, 'normalizers'), own(component, 'pretokenizers')]) {
    if (Array.isArray(inner)) for (const one of inner) checkComponent(one, bad);
  }
  if (type !== 'Split' && type !== 'Replace') return;
  const pattern = own(component, 'pattern');
  const text = isObject(pattern) ? (own(pattern, 'Regex') ?? own(pattern, 'String')) : undefined;
  if (typeof text !== 'string')
    throw bad(`${type}.pattern: expected { Regex } or { String }, got ${kindOf(isObject(pattern) ? text : pattern)}`);
  const behavior = own(component, 'behavior');
  if (type === 'Split' && !kBehaviors.includes(behavior as string)) {
    throw bad(
      `Split.behavior: expected one of ${kBehaviors.join(', ')}, got ${typeof behavior === 'string' ? behavior : kindOf(behavior)}`,
    );
  }
}

function makeEncoder(json: JsonObject, bad: (message: string) => WasmformerError): Encoder {
  checkComponent(own(json, 'normalizer'), bad);
  checkComponent(own(json, 'pre_tokenizer'), bad);
  try {
    return new Encoder(json as ConstructorParameters<typeof Encoder>[0], {} as ConstructorParameters<typeof Encoder>[1]);
  } catch (cause) {
    const message = (cause as Error).message;
    if (/^Unknown .* type/.test(message)) throw new WasmformerError('unsupported', `[tokenizer] ${message}`, { cause });
    throw bad(`tokenizer: ${message}`);
  }
}

/** GPT-2's pattern (encoder.py), as the byte-level pre-tokenizer applies it. */
const kGpt2Pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const kPunctuation = '[\\p{P}\\x21-\\x2F\\x3A-\\x40\\x5B-\\x60\\x7B-\\x7E]';

function splitBy(regex: string): JsonObject {
  return { type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false };
}

/**
 * The same pre-tokenizer in the terms the library gets right: its own byte-level, digit and punctuation splitters use
 * JavaScript's classes of white space and digits, or join what should stay apart, and its Split knows two of the five
 * behaviours.
 */
export function rewritePreTokenizer(config: unknown): unknown {
  if (!isObject(config)) return config;
  switch (own(config, 'type')) {
    case 'Sequence': {
      const inner = own(config, 'pretokenizers');
      return Array.isArray(inner) ? { ...config, pretokenizers: inner.map(rewritePreTokenizer) } : config;
    }
    case 'ByteLevel': {
      if (own(config, 'use_regex') === false) return config;
      const prefix = own(config, 'add_prefix_space') === true ? [{ type: 'Replace', pattern: { Regex: '\\A[^ ]' }, content: ' $&' }] : [];
      return {
        type: 'Sequence',
        pretokenizers: [...prefix, splitBy(kGpt2Pattern), { type: 'ByteLevel', add_prefix_space: false, use_regex: false }],
      };
    }
    case 'Digits':
      return splitBy(own(config, 'individual_digits') === true ? '\\p{N}' : '\\p{N}+');
    case 'Punctuation': {
      const behavior = String(own(config, 'behavior') ?? 'Isolated');
      return rewritePreTokenizer({ type: 'Split', pattern: { Regex: kPunctuation }, behavior, invert: false });
    }
    case 'Split': {
      const pattern = own(config, 'pattern');
      const string = isObject(pattern) ? own(pattern, 'String') : undefined;
      const regex =
        typeof string === 'string' ? string.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&') : isObject(pattern) ? own(pattern, 'Regex') : undefined;
      if (typeof regex !== 'string' || own(config, 'invert') === true) return config;
      switch (own(config, 'behavior')) {
        case 'MergedWithPrevious':
          return splitBy(`[\\s\\S]*?(?:${regex})|[\\s\\S]+`);
        case 'MergedWithNext':
          return splitBy(`(?:${regex})(?:(?!${regex})[\\s\\S])*|(?:(?!${regex})[\\s\\S])+`);
        case 'Contiguous':
          return splitBy(`(?:${regex})+`);
        default:
          return config;
      }
    }
    default:
      return config;
  }
}

function readTemplates(given: unknown): Map<string, string> {
  const templates = new Map<string, string>();
  if (typeof given === 'string') templates.set('default', given);
  for (const one of Array.isArray(given) ? given : []) {
    const name = isObject(one) ? own(one, 'name') : undefined;
    const template = isObject(one) ? own(one, 'template') : undefined;
    if (typeof name === 'string' && typeof template === 'string') templates.set(name, template);
  }
  return templates;
}

async function findTemplates(folder: ModelFolder, given: AbortSignal | undefined): Promise<Map<string, string>> {
  // Asked for long after the load, whose own signal may have ended something else since.
  const signal = given ?? new AbortController().signal;
  const text = await readText(folder, 'chat_template.jinja', signal);
  if (text !== null) return new Map([['default', text]]);
  const json = await readObject(folder, 'chat_template.json', signal);
  return readTemplates(json === null ? undefined : own(json, 'chat_template'));
}
