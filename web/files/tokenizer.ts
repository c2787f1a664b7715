import { WasmformerError } from '../errors.ts';
import { type ChatMessage, ChatTemplate, type ChatTemplateOptions } from './chat.ts';
import { readObject, readText } from './checkpoint.ts';
import { byteLevelBytes, compileDecoder, fallbackByte, type StreamDecoder, TokenStream } from './decoder.ts';
import { describeGguf } from './gguf-tokenizer.ts';
import { isObject, type JsonObject, kindOf, own, parseJson } from './json.ts';
import { readLlama2cTokenizer } from './llama2c-tokenizer.ts';
import { compileNormalizer, type Fail } from './normalizer.ts';
import { type AddedToken, type Encoding, finished, Pipeline } from './pipeline.ts';
import { compilePostProcessor, type PostProcessor, specialPart } from './post-processor.ts';
import { compilePreTokenizer } from './pre-tokenizer.ts';
import type { ModelFolder } from './source.ts';
import { compileModel } from './subword.ts';
import { type Description, defaultRoles, describeFiles, familyOf, type LanguageRule, languageRule } from './tokenizer-files.ts';
import { writeTokenizer } from './tokenizer-written.ts';

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

export interface EncodeOptions {
  /** A second text: what a question is asked of, a hypothesis. An empty one is none, as in transformers. */
  pair?: string;
  /** Adds what the model expects around a text (BOS, say); true by default. */
  addSpecialTokens?: boolean;
  /** The text's language, for models that mark it; else what tokenizer_config.json says. */
  sourceLanguage?: string;
  /** The language to translate into: `asTarget` marks the text with it, and some models mark the source with it. */
  targetLanguage?: string;
  /** Encodes what the decoder reads: with `target`, in the target language. */
  asTarget?: boolean;
}

/** Text to ids and back. */
export interface Tokenizer {
  /** The largest id plus one. */
  readonly vocabSize: number;
  readonly specials: SpecialTokens;
  /** The decoder's own tokenizer, where it differs from the encoder's. */
  readonly target: Tokenizer | null;
  /** The codes of languages that the model marks texts with. */
  readonly languages: string[];
  /** Tokens a text should have at most, specials included; null where the files do not say. */
  readonly maxLength: number | null;
  /** What tokens inside a word begin with ("##"), where the model marks them so. */
  readonly subwordPrefix: string | null;
  encode(text: string, options?: EncodeOptions): number[];
  /** `encode` in steps, between which other work can be done. */
  encodeSteps(text: string, options?: EncodeOptions): Generator<undefined, number[]>;
  /** Ids with the segment, the place in the text and the text of each. */
  encodeFully(text: string, options?: EncodeOptions): Encoding;
  /** The id of a language's token, or null. */
  languageId(code: string): number | null;
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

/** Files by name, and what gives their bytes. */
export type Kept = Map<string, () => Uint8Array>;

const kRoles = ['bos', 'eos', 'pad', 'unk', 'sep', 'cls', 'mask'] as const;

/** What a tokenizer is built from. */
export interface TokenizerParts {
  where: string;
  /** Token strings by id. */
  vocab: readonly (string | undefined)[];
  /** One or two texts. */
  steps(texts: readonly string[], addSpecialTokens: boolean, around?: PostProcessor): Generator<undefined, Encoding>;
  languages?: ReadonlyMap<string, number>;
  rule?: LanguageRule | null;
  /** The languages of texts where a call names none. */
  source?: string | null;
  destination?: string | null;
  target?: Tokenizer | null;
  maxLength?: number | null;
  subwordPrefix?: string | null;
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
    const special = new Set(parts.specials.all.map((id) => parts.vocab[id] as string));
    this.#steps = compileDecoder({ config: parts.decoder, cleanUp: parts.cleanUp, special }, parts.where);
  }

  get target(): Tokenizer | null {
    return this.#parts.target ?? null;
  }

  get languages(): string[] {
    return [...(this.#parts.languages?.keys() ?? [])];
  }

  get maxLength(): number | null {
    return this.#parts.maxLength ?? null;
  }

  get subwordPrefix(): string | null {
    return this.#parts.subwordPrefix ?? null;
  }

  languageId(code: string): number | null {
    return this.#parts.languages?.get(code) ?? null;
  }

  encode(text: string, options?: EncodeOptions): number[] {
    return this.encodeFully(text, options).ids;
  }

  *encodeSteps(text: string, options?: EncodeOptions): Generator<undefined, number[]> {
    return (yield* this.#encoded(text, options)).ids;
  }

  encodeFully(text: string, options?: EncodeOptions): Encoding {
    return finished(this.#encoded(text, options));
  }

  *#encoded(text: string, options: EncodeOptions = {}): Generator<undefined, Encoding> {
    const { pair, addSpecialTokens = true, asTarget = false } = options;
    for (const [name, value] of Object.entries({ text, pair: pair ?? '' })) {
      if (typeof value !== 'string')
        throw new WasmformerError('invalid-argument', `[tokenizer] ${name}: expected a string, got ${kindOf(value)}`);
    }
    const around = this.#around(options);
    if (asTarget && this.target !== null) return this.target.encodeFully(text, { pair, addSpecialTokens });
    return yield* this.#parts.steps(pair ? [text, pair] : [text], addSpecialTokens, around);
  }

  /** What stands around a text in the languages of a call, where the model marks languages. */
  #around({ sourceLanguage, targetLanguage, asTarget }: EncodeOptions): PostProcessor | undefined {
    const { rule, source, destination } = this.#parts;
    const idOf = (name: string, code: string): number => {
      const id = this.languageId(code);
      if (id !== null) return id;
      const known = this.languages;
      const near = known.filter((one) => one.slice(0, 2).toLowerCase() === code.slice(0, 2).toLowerCase());
      const expected =
        known.length === 0
          ? 'none, as this model marks no languages'
          : `a code such as ${(near.length > 0 ? near : known).slice(0, 5).join(', ')}`;
      throw new WasmformerError('invalid-argument', `[tokenizer] ${name}: expected ${expected}, got ${kindOf(code)}`);
    };
    const given = sourceLanguage === undefined || rule?.place === 'target' ? undefined : idOf('sourceLanguage', sourceLanguage);
    const wanted = targetLanguage === undefined ? undefined : idOf('targetLanguage', targetLanguage);
    if (!rule) return undefined;
    const own = given ?? (source ? this.languageId(source) : null);
    const mark =
      rule.place === 'target'
        ? asTarget
          ? null
          : (wanted ?? null)
        : asTarget
          ? (wanted ?? (destination ? this.languageId(destination) : own))
          : own;
    if (mark === null) return undefined;
    const end = this.specials.eos === null ? [] : [this.specials.eos];
    const [before, after] = rule.place === 'after' ? [[], [...end, mark]] : [[mark], end];
    return (parts, add) => {
      const texts = parts.map((part) => ({ ...part, typeIds: part.ids.map(() => 0) }));
      return add ? [specialPart(before, 0), ...texts, specialPart(after, 0)] : texts;
    };
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
 * The tokenizer of a model: tokenizer.json, or the files that the model's class in transformers reads (tokenizer-files.ts),
 * or llama2.c's tokenizer.bin.
 * @param metadata of a GGUF file, whose own tokenizer comes before any other
 * @param kept gets the files of transformers that say the same, where the tokenizer is read from others
 * @returns null where the folder has none: such a model works with ids
 * @throws WasmformerError `unsupported` for a kind that is not known, `invalid-file`
 */
export async function openTokenizer(
  folder: ModelFolder,
  format: string,
  modelType: unknown,
  signal?: AbortSignal,
  metadata?: JsonObject,
  kept?: Kept,
): Promise<Tokenizer | null> {
  const inside = metadata && describeGguf(metadata, folder.focus ?? 'GGUF');
  if (inside) return buildTokenizer(folder, inside.description, inside.settings, inside.family, kept);
  if (format === 'llama2.c') {
    const source = await folder.find('tokenizer.bin', signal);
    if (source === null) return null;
    return readLlama2cTokenizer(await source.read(0, source.size, signal), `${folder.name}: tokenizer.bin`, kept);
  }
  const text = await readText(folder, 'tokenizer.json', signal);
  const json = text === null ? null : parseJson(text, `${folder.name}: tokenizer.json`);
  const settings = await readSettings(folder, signal);
  const family = familyOf(settings, modelType);
  if (json === null) {
    const description = await describeFiles(folder, family, settings, signal);
    return description === null ? null : buildTokenizer(folder, description, settings, family);
  }
  const description: Description = { file: 'tokenizer.json', json: json as JsonObject };
  const file = 'target_tokenizer.json';
  // A folder that cannot be listed is asked only for a model that may have one.
  const target = ((await folder.list())?.includes(file) ?? modelType === 'transformer') ? await readText(folder, file, signal) : null;
  if (target !== null) {
    description.target = { file, json: parseJson(target, `${folder.name}: ${file}`) as JsonObject };
  }
  return buildTokenizer(folder, description, settings, family);
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

function buildTokenizer(
  folder: ModelFolder,
  description: Description,
  settings: JsonObject,
  family: ReturnType<typeof familyOf>,
  kept?: Kept,
): Tokenizer {
  const { json, native, lead } = description;
  const where = `${folder.name}: ${description.file}`;
  const bad = (message: string): WasmformerError => new WasmformerError('invalid-file', `[${where}] ${message}`);
  if (!isObject(json)) throw bad(`JSON: expected an object, got ${kindOf(json)}`);
  const model = own(json, 'model');
  if (native === undefined && !isObject(model)) throw bad(`model: expected an object, got ${kindOf(model)}`);
  const vocab = native?.vocab ?? readVocabulary(model as JsonObject, bad);
  const ids = idsOf(vocab);
  const modelIds = new Map(ids);

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
  for (const one of description.special ?? []) special(one);
  const specials: SpecialTokens = { bos: null, eos: null, pad: null, unk: null, sep: null, cls: null, mask: null, all: [] };
  for (const role of kRoles) {
    const named = `${role}_token`;
    if (Object.hasOwn(settings, named)) specials[role] = special(own(settings, named));
    else if (family !== null) {
      // The class's own default, if the vocabulary has it.
      const preset = defaultRoles[family][role];
      if (ids.has(tokenText(preset) ?? '')) specials[role] = special(preset);
    }
  }
  const extra = own(settings, 'additional_special_tokens') ?? own(settings, 'extra_special_tokens');
  for (const one of Array.isArray(extra) ? extra : []) special(one);
  specials.all = [...added.values()].filter((token) => token.special).map((token) => token.id);

  const idOf = (token: string): number | undefined => ids.get(token);
  const fail: Fail = (message, code) => (code === undefined ? bad(message) : new WasmformerError(code, `[${where}] tokenizer: ${message}`));
  let pipeline: Pipeline;
  try {
    pipeline = new Pipeline({
      added: added.values(),
      normalize: native?.normalize ?? compileNormalizer(own(json, 'normalizer'), fail),
      preTokenize: compilePreTokenizer(own(json, 'pre_tokenizer'), fail),
      subwords: native?.subwords ?? compileModel(model as JsonObject, modelIds, fail),
      tokenOf: (id) => vocab[id] ?? '',
      postProcess: compilePostProcessor(own(json, 'post_processor'), idOf, fail),
      lead,
      apart:
        !native &&
        !lead &&
        [...added.values()].every(({ lstrip, rstrip, single_word, content }) => !(lstrip || rstrip || single_word || /\s/.test(content))) &&
        keepsApart(own(json, 'normalizer'), own(json, 'pre_tokenizer'), model),
    });
  } catch (cause) {
    // Nested beyond the stack, say.
    throw cause instanceof WasmformerError ? cause : bad(`tokenizer: ${(cause as Error).message}`);
  }
  const isBpe =
    isObject(model) && (own(model, 'type') === 'BPE' || (own(model, 'type') === undefined && Array.isArray(own(model, 'merges'))));
  const rule = languageRule(family, settings);
  const codes = new Map<string, number>();
  if (rule !== null)
    vocab.forEach((token, id) => {
      const code = rule.pattern.exec(token ?? '')?.[1];
      if (code !== undefined) codes.set(code, id);
    });
  const maxLength = own(settings, 'model_max_length');
  const templates = readTemplates(own(settings, 'chat_template'));
  if (kept) {
    const whole = () => ({ ...json, ...native?.written?.(vocab) });
    writeTokenizer(kept, { json: whole, vocab, added: [...added.values()], specials, templates, maxLength });
  }
  return new VocabularyTokenizer({
    where: folder.name,
    vocab,
    decoder: own(json, 'decoder') ?? null,
    // transformers leaves BPE alone whatever the flag says: the clean-up would take spaces that were in the text.
    cleanUp: !isBpe && own(settings, 'clean_up_tokenization_spaces') === true,
    specials,
    templates,
    findTemplates: (signal) => findTemplates(folder, signal),
    steps: (texts, addSpecialTokens, around) => pipeline.steps(texts, addSpecialTokens, around),
    languages: codes,
    rule,
    source: tokenText(own(settings, 'src_lang')) ?? rule?.preset ?? null,
    destination: tokenText(own(settings, 'tgt_lang')),
    target: description.target === undefined ? null : buildTokenizer(folder, description.target, settings, family),
    maxLength: typeof maxLength === 'number' && maxLength > 0 && maxLength < 1e6 ? maxLength : null,
    subwordPrefix:
      isObject(model) && own(model, 'type') === 'WordPiece' ? (tokenText(own(model, 'continuing_subword_prefix')) ?? '##') : null,
  });
}

/** Whether what these stages make of a text up to a space is the same whatever comes then, and the other way round. */
function keepsApart(normalizer: any, preTokenizer: any, model: any): boolean {
  if (normalizer && normalizer.type !== 'BertNormalizer') return false;
  if (!preTokenizer) {
    // Nothing but characters.
    const { type, merges, fuse_unk, continuing_subword_prefix, end_of_word_suffix, ignore_merges } = model;
    return type === 'BPE' && merges.length === 0 && !(fuse_unk || continuing_subword_prefix || end_of_word_suffix || ignore_merges);
  }
  const all = preTokenizer.type === 'Sequence' ? preTokenizer.pretokenizers : [preTokenizer];
  const cuts = ({ type, add_prefix_space, use_regex }: any) =>
    type === 'ByteLevel' ? add_prefix_space === false && use_regex !== false : ['BertPreTokenizer', 'WhitespaceSplit'].includes(type);
  return all.some(cuts) && all.every((one: any) => one.type === 'Digits' || cuts(one));
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
