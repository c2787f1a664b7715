import { WasmformerError } from '../errors.ts';
import type { EncodeOptions, Encoding, SentenceSettings, Tokenizer } from '../files/index.ts';
import type { GenerateRequest } from '../options.ts';
import type {
  AlignmentLink,
  Answer,
  AnswerOptions,
  ClassifyInput,
  ClassifyOptions,
  EmbedOptions,
  FilledMask,
  FillMaskOptions,
  Label,
  LengthOptions,
  Offsets,
  Rewritten,
  Segment,
  WindowOptions,
} from '../task-types.ts';
import type { ForwardResult, GenerateResult, ModelInfo, Tensor } from '../types.ts';
import type { Flat } from './flat.ts';
import { isInWord, isSpaced, sentencesOf, splitNear, trimmed, wordsOf } from './words.ts';

/** The model as tasks see it. Nothing here waits in a queue: a task holds its place from beginning to end. */
export interface TaskHost {
  info: ModelInfo;
  config: Readonly<Record<string, unknown>>;
  tokenizer: Tokenizer;
  sentence: SentenceSettings | null;
  /** Segments that the model tells apart. */
  tokenTypes: number;
  /** What tokens stand for. */
  strings(ids: Iterable<number>, target?: boolean): string[];
  /** Both reject with the signal's reason once it aborts. */
  forward(
    input: { inputIds: Int32Array[]; tokenTypeIds?: Int32Array[]; decoderInputIds?: Int32Array[] },
    request: Flat,
  ): Promise<ForwardResult[]>;
  generate(prompts: Int32Array[], request: GenerateRequest): Promise<GenerateResult[]>;
  emit(event: unknown): void;
}

/** `translate` and `summarize`, checked and resolved. */
export interface RewriteRequest {
  generation: GenerateRequest;
  /** Set before each text that the encoder reads. */
  prefix: string;
  sourceLanguage?: string;
  /** For the tokenizer or the decoder; of models that are told in words it is in the prefix. */
  targetLanguage?: string;
  split?: boolean | 'lines';
  truncation?: boolean;
  window?: boolean | WindowOptions;
  alignment?: boolean | { layer?: number; head?: number };
}

/** What a model can do, by the names of its methods. */
export function tasksOf(
  { encoderDecoder, encoderOnly, head }: Pick<ModelInfo, 'encoderDecoder' | 'encoderOnly' | 'head'>,
  embeds: boolean,
): string[] {
  const labelled: Partial<Record<string, string>> = {
    'masked-language': 'fillMask',
    sequence: 'classify',
    token: 'classify',
    question: 'answer',
  };
  const tasks = encoderDecoder ? ['generate', 'translate', 'summarize'] : encoderOnly ? [] : ['generate'];
  if (labelled[head]) tasks.push(labelled[head]);
  if (!encoderDecoder && (encoderOnly || embeds)) tasks.push('embed');
  return tasks;
}

const tasks: Record<string, (host: TaskHost, texts: any[], request: any) => Promise<unknown[]>> = {
  translate: (host, texts, request) => rewrite(host, texts, request, translationJobs),
  summarize: (host, texts, request) => rewrite(host, texts, request, summaryJobs),
  embed,
  fillMask,
  classify,
  answer,
};

/** Does a task for each of some texts. @throws WasmformerError `unsupported` for one that the model is not made for */
export async function runTask(name: string, host: TaskHost, texts: any[], request: Record<string, any>): Promise<unknown[]> {
  const can = tasksOf(host.info, host.sentence !== null || request.pooling !== undefined);
  if (!can.includes(name)) {
    const { architecture, head } = host.info;
    throw new WasmformerError(
      'unsupported',
      `[${name}] model: expected one made for it, got ${architecture} (head: ${head}), whose methods are ${can.join(', ')}`,
    );
  }
  return tasks[name](host, texts, request);
}

function invalid(where: string, what: string, expected: string, got: unknown): WasmformerError {
  return new WasmformerError('invalid-argument', `[${where}] ${what}: expected ${expected}, got ${got}`);
}

/** Tokens of a text, special ones included, that the model is made for. */
function limitOf({ info, tokenizer }: TaskHost): number {
  return Math.min(info.contextLength || Infinity, tokenizer.maxLength ?? Infinity);
}

/** A stretch of an encoding, and which of its tokens they are. */
interface Part extends Encoding {
  index: number[];
}

/** Some of the tokens, by their numbers. */
function partOf(encoding: Encoding, index: number[]): Part {
  const lists = Object.entries(encoding).map(([name, list]) => [name, index.map((i) => list[i])]);
  return { ...Object.fromEntries(lists), index } as unknown as Part;
}

/** A text encoded behind a prefix, whose tokens count as added. */
function encodeAfter(tokenizer: Tokenizer, prefix: string, text: string, options?: EncodeOptions): Encoding {
  const encoding = tokenizer.encodeFully(prefix + text, options);
  const lead = prefix.length;
  return {
    ...encoding,
    offsets: encoding.offsets.map(([begin, end]) => [Math.max(0, begin - lead), Math.max(0, end - lead)]),
    sequence: encoding.sequence.map((one, t) => (encoding.offsets[t][1] <= lead ? -1 : one)),
  };
}

/** An encoding in parts of at most `limit` tokens, as the options say; of two texts the second is cut. */
function fit(where: string, encoding: Encoding, limit: number, { truncation, window }: LengthOptions, notes: string[] = []): Part[] {
  const { size = limit, overlap = 0 } = typeof window === 'object' ? window : {};
  const most = Math.min(size, limit);
  const { ids, sequence } = encoding;
  const all = [...ids.keys()];
  if (ids.length <= most) return [partOf(encoding, all)];
  const cut = sequence.includes(1) ? 1 : 0;
  const [inside, around] = [true, false].map((is) => all.filter((i) => (sequence[i] === cut) === is));
  const count = inside.length;
  const room = most - ids.length + count;
  const piece = (begin: number) =>
    partOf(
      encoding,
      [...around, ...inside.slice(begin, begin + room)].sort((a, b) => a - b),
    );
  if (window && room > overlap) {
    const parts: Part[] = [];
    for (let begin = 0; ; begin += room - overlap) {
      parts.push(piece(begin));
      if (begin + room >= count) return parts;
    }
  }
  if (truncation && room > 0) {
    notes.push(`${ids.length} tokens were cut to ${most}`);
    return [piece(0)];
  }
  throw invalid(
    where,
    'text',
    `at most ${most} tokens${window ? `, of which ${overlap} overlap and ${ids.length - count} stand around` : ''}`,
    ids.length +
      (where === 'answer'
        ? ''
        : ` (${where === 'summarize' || where === 'classify' ? 'window: true reads it in pieces, ' : ''}truncation: true leaves its end out)`),
  );
}

/** Runs parts through the model, some at a time, and hands on each one's result. */
async function forEachForward(host: TaskHost, parts: Part[], request: Flat, use: (result: ForwardResult, i: number) => void, most = 2048) {
  const typed = host.tokenTypes > 1;
  for (let begin = 0; begin < parts.length; ) {
    let end = begin;
    let tokens = 0;
    do tokens += parts[end++].ids.length;
    while (end < parts.length && tokens + parts[end].ids.length <= most);
    const some = parts.slice(begin, end);
    const inputIds = some.map(({ ids }) => Int32Array.from(ids));
    const results = await host.forward(
      { inputIds, ...(typed ? { tokenTypeIds: some.map(({ typeIds }) => Int32Array.from(typeIds)) } : {}) },
      request,
    );
    for (const [i, result] of results.entries()) use(result, begin + i);
    begin = end;
  }
}

function softmax(row: ArrayLike<number>): number[] {
  let most = -Infinity;
  for (let i = 0; i < row.length; ++i) most = Math.max(most, row[i]);
  const powers = Array.from(row, (x) => Math.exp(x - most));
  const sum = powers.reduce((total, x) => total + x, 0);
  return powers.map((x) => x / sum);
}

/** Indices of the k highest scores, the highest first and NaN last; the lower index first among equals. */
function ranked(scores: ArrayLike<number>, k = scores.length): number[] {
  const key = (i: number) => (Number.isNaN(scores[i]) ? -Infinity : scores[i]);
  return Array.from(scores, (_, i) => i)
    .sort((a, b) => key(b) - key(a) || a - b)
    .slice(0, k);
}

function mean(numbers: number[]): number {
  return numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
}

function rowOf({ data, shape }: Tensor, row: number): Float32Array {
  const width = shape[1];
  return data.subarray(row * width, (row + 1) * width);
}

async function embed(host: TaskHost, texts: string[], options: EmbedOptions): Promise<Float32Array[]> {
  const { tokenizer, info, sentence } = host;
  const where = 'embed';
  if (sentence?.foreign) throw new WasmformerError('unsupported', `[${where}] modules.json: ${sentence.foreign} is not built`);
  const { prompts = {}, includePrompt = true, lowerCase = false, maxLength = null } = sentence ?? {};
  const name = options.promptName ?? (options.prompt === undefined ? sentence?.promptName : null) ?? null;
  if (name !== null && !Object.hasOwn(prompts, name)) {
    throw invalid(where, 'promptName', `one of the model's (${Object.keys(prompts).join(', ') || 'it has none'})`, name);
  }
  const prompt = options.prompt ?? (name === null ? '' : prompts[name]);
  const modes = [options.pooling ?? sentence?.pooling ?? 'mean'].flat();
  const limit = info.contextIsWall || maxLength === null ? Math.min(limitOf(host), maxLength ?? Infinity) : maxLength;
  const encode = (text: string) => tokenizer.encodeFully(lowerCase ? text.toLowerCase() : text);
  let first = 0;
  if (prompt !== '' && !includePrompt) {
    const { ids } = encode(prompt);
    first = ids.length - (tokenizer.specials.all.includes(ids.at(-1) ?? -1) ? 1 : 0);
  }
  const parts = texts.flatMap((text) => fit(where, encode(prompt + text), limit, options));
  const vectors = texts.map(() => new Float32Array(modes.length * info.hiddenSize));
  const some = [...parts.keys()].filter((i) => parts[i].ids.length > 0);
  await forEachForward(
    host,
    some.map((i) => parts[i]),
    info.head === 'none' ? {} : { logits: false, hiddenStates: true },
    ({ lastHiddenState, hiddenStates }, i) => {
      const states = (lastHiddenState ?? hiddenStates?.at(-1)) as Tensor;
      const vector = vectors[some[i]];
      for (const [m, mode] of modes.entries()) vector.set(pooled(mode, states, first), m * states.shape[1]);
      if (options.normalize ?? sentence?.normalize ?? false) {
        const norm = Math.max(Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0)), 1e-12);
        for (const [d, x] of vector.entries()) vector[d] = x / norm;
      }
    },
  );
  return vectors;
}

/** One vector for the states (T, D) of a text, those before `first` left out (but not of the weights that grow with the position). */
function pooled(mode: string, states: Tensor, first: number): ArrayLike<number> {
  const [T, D] = states.shape;
  if (mode === 'cls') return rowOf(states, Math.min(first, T - 1));
  if (mode.startsWith('last')) return rowOf(states, T - 1);
  const sums = new Float64Array(D).fill(mode === 'max' ? -Infinity : 0);
  let total = 0;
  for (let t = first; t < T; ++t) {
    const weight = mode === 'weightedmean' ? t + 1 : 1;
    const row = rowOf(states, t);
    total += weight;
    for (let d = 0; d < D; ++d) sums[d] = mode === 'max' ? Math.max(sums[d], row[d]) : sums[d] + weight * row[d];
  }
  return mode === 'max' ? sums : sums.map((x) => x / Math.max(mode === 'mean_sqrt_len_tokens' ? Math.sqrt(total) : total, 1e-9));
}

async function fillMask(host: TaskHost, texts: string[], options: FillMaskOptions): Promise<(FilledMask[] | FilledMask[][])[]> {
  const { tokenizer } = host;
  const where = 'fillMask';
  const { mask, pad } = tokenizer.specials;
  if (mask === null) throw new WasmformerError('unsupported', `[${where}] tokenizer: expected one with a mask token, got none`);
  const targets =
    options.targets === undefined
      ? null
      : [options.targets].flat().map((target) => {
          const id = tokenizer.tokenToId(target);
          if (id !== null) return id;
          const ids = tokenizer.encode(target, { addSpecialTokens: false });
          if (ids.length === 1 && ids[0] !== tokenizer.specials.unk) return ids[0];
          throw invalid(where, 'targets', 'what is one token each', `'${target}' (${ids.map((id) => tokenizer.idToToken(id)).join(' ')})`);
        });
  const parts = texts.map((text) => {
    const [part] = fit(where, tokenizer.encodeFully(text), limitOf(host), options);
    if (!part.ids.includes(mask)) throw invalid(where, 'text', `a mask, ${tokenizer.idToToken(mask)}`, 'none');
    return part;
  });
  const found: (FilledMask[] | FilledMask[][])[] = [];
  const use = ({ logits }: ForwardResult, i: number) => {
    const { ids } = parts[i];
    const places = [...ids.keys()].filter((t) => ids[t] === mask);
    const single = places.length === 1;
    const rows = places.map((place) => {
      const scores = softmax(rowOf(logits as Tensor, place));
      const chosen = targets ?? [...scores.keys()];
      return ranked(
        chosen.map((id) => scores[id]),
        options.topK ?? 5,
      ).map((n) => {
        const tokenId = chosen[n];
        const filled = ids.map((id, t) => (t === place ? tokenId : id)).filter((id) => id !== pad);
        return {
          tokenId,
          token: tokenizer.idToToken(tokenId) ?? '',
          text: tokenizer.decode([tokenId]),
          score: scores[tokenId],
          sequence: tokenizer.decode(filled, { skipSpecialTokens: single }),
        };
      });
    });
    found.push(single ? rows[0] : rows);
  };
  await forEachForward(host, parts, {}, use, 1);
  return found;
}

async function classify(host: TaskHost, inputs: ClassifyInput[], options: ClassifyOptions): Promise<Label[][]> {
  const where = 'classify';
  const { info, config, tokenizer } = host;
  const ofTokens = info.head === 'token';
  for (const name of ofTokens ? (['topK', 'function'] as const) : (['aggregation', 'ignoreLabels'] as const)) {
    if (options[name] !== undefined)
      throw invalid(where, name, `none with a model that labels ${ofTokens ? 'tokens' : 'texts'}`, options[name]);
  }
  const names = (config.id2label ?? {}) as Record<string, unknown>;
  const nameOf = (label: number) => String(names[label] ?? `LABEL_${label}`);
  const texts = inputs.map((input) => (typeof input === 'string' ? { text: input, pair: undefined } : input));
  const parts: Part[] = [];
  const owner: number[] = [];
  for (const [i, { text, pair }] of texts.entries()) {
    for (const part of fit(where, tokenizer.encodeFully(text, { pair }), limitOf(host), options)) owner.push(parts.push(part) && i);
  }
  const logits: Tensor[][] = texts.map(() => []);
  await forEachForward(host, parts, {}, (result, i) => logits[owner[i]].push(result.logits as Tensor));

  return texts.map(({ text }, i) => {
    if (ofTokens) {
      const { aggregation = 'none', ignoreLabels = ['O'] } = options;
      const own = parts.filter((_, p) => owner[p] === i);
      const found = own
        .flatMap((part, w) => entities(host, text, part, logits[i][w], aggregation, nameOf))
        .filter(({ label }) => !ignoreLabels.includes(label));
      return (own.length > 1 ? withoutOverlaps(found) : found).map(({ label, score, begin, end, index }) => ({
        label,
        score,
        text: text.slice(begin, end),
        offsets: [begin, end] as Offsets,
        ...(aggregation === 'none' ? { index } : {}),
      }));
    }
    const { problem_type: problem } = config;
    const count = logits[i][0].data.length;
    const kind =
      options.function ??
      (problem === 'regression' ? 'none' : problem === 'multi_label_classification' || count === 1 ? 'sigmoid' : 'softmax');
    const windows = logits[i].map(({ data }) =>
      kind === 'softmax' ? softmax(data) : Array.from(data, (x) => (kind === 'none' ? x : 1 / (1 + Math.exp(-x)))),
    );
    const scores = windows[0].map((_, label) => mean(windows.map((window) => window[label])));
    return ranked(scores, options.topK).map((label) => ({ label: nameOf(label), score: scores[label] }));
  });
}

/** A labelled stretch of text. */
interface Entity {
  label: string;
  score: number;
  begin: number;
  end: number;
  index: number;
}

/** The labels of a text's tokens, joined as Hugging Face's token classification pipeline does. */
function entities(
  { tokenizer }: TaskHost,
  text: string,
  part: Part,
  logits: Tensor,
  aggregation: string,
  nameOf: (label: number) => string,
): Entity[] {
  const prefix = tokenizer.subwordPrefix;
  const words: (Omit<Entity, 'label' | 'score'> & { tokens: number[][] })[] = [];
  const byWord = aggregation !== 'none' && aggregation !== 'simple';
  for (const [t, id] of part.ids.entries()) {
    if (part.sequence[t] !== 0) continue;
    const [begin, end] = part.offsets[t];
    const scores = softmax(rowOf(logits, t));
    // Without such a prefix tokens say nothing of words: what no space stands before goes on.
    const goesOn =
      id !== tokenizer.specials.unk &&
      (prefix ? tokenizer.idToToken(id)?.startsWith(prefix) : begin > 0 && !text.slice(begin - 1, begin + 1).includes(' '));
    const last = words.at(-1);
    if (byWord && last && goesOn) {
      last.tokens.push(scores);
      last.end = end;
    } else {
      words.push({ tokens: [scores], begin, end, index: part.index[t] });
    }
  }
  const labelled = words.map(({ tokens, ...place }) => {
    const highest = tokens.map((scores) => scores[ranked(scores, 1)[0]]);
    const scores =
      aggregation === 'average'
        ? tokens[0].map((_, l) => mean(tokens.map((token) => token[l])))
        : tokens[aggregation === 'max' ? ranked(highest, 1)[0] : 0];
    const [label] = ranked(scores, 1);
    return { label: nameOf(label), score: scores[label], ...place };
  });
  if (aggregation === 'none') return labelled;
  const groups: Entity[][] = [];
  const tagOf = (label: string) => label.replace(/^[BI]-/, '');
  for (const entity of labelled) {
    const last = groups.at(-1);
    if (last && !entity.label.startsWith('B-') && tagOf(entity.label) === tagOf(last[last.length - 1].label)) last.push(entity);
    else groups.push([entity]);
  }
  return groups.map((group) => ({
    ...group[0],
    label: group[0].label.replace(/^[^-]*-/, ''),
    score: mean(group.map(({ score }) => score)),
    end: group[group.length - 1].end,
  }));
}

/** Of stretches that overlap, as windows give them, the longest, and of equally long ones the likeliest. */
function withoutOverlaps(found: Entity[]): Entity[] {
  const kept: Entity[] = [];
  for (const entity of found.sort((a, b) => a.begin - b.begin)) {
    const last = kept.at(-1);
    if (!last || entity.begin >= last.end) {
      kept.push(entity);
    } else {
      const longer = entity.end - entity.begin - (last.end - last.begin);
      if (longer > 0 || (longer === 0 && entity.score > last.score)) kept[kept.length - 1] = entity;
    }
  }
  return kept;
}

async function answer(host: TaskHost, inputs: { question: string; context: string }[], options: AnswerOptions): Promise<Answer[][]> {
  const where = 'answer';
  const limit = limitOf(host);
  const { topK = 1, maxAnswerLength = 15, maxLength = Math.min(384, limit), impossible = false } = options;
  if (maxLength > limit) throw invalid(where, 'maxLength', `at most ${limit} tokens`, maxLength);
  const overlap = options.docStride ?? Math.min(128, maxLength >> 1);
  const answers: Answer[][] = [];
  for (const { question, context } of inputs) {
    const encoding = host.tokenizer.encodeFully(question, { pair: context });
    if (!encoding.sequence.includes(1))
      throw invalid(where, 'context', 'a text with at least one token', JSON.stringify(context.slice(0, 40)));
    const parts = fit(where, encoding, maxLength, { window: { size: maxLength, overlap } });
    const found = new Map<string, Answer>();
    let none = Infinity;
    const use = ({ startLogits, endLogits }: ForwardResult, i: number) => {
      const { ids, sequence, offsets } = parts[i];
      // The first token stands for "no answer" where the model has such a token.
      const open = ids.map((id, t) => sequence[t] === 1 || (t === 0 && id === host.tokenizer.specials.cls));
      const [starts, ends] = [startLogits, endLogits].map((tensor) =>
        softmax(open.map((is, t) => (is ? (tensor as Tensor).data[t] : -1e4))),
      );
      none = Math.min(none, starts[0] * ends[0]);
      const spans: { score: number; begin: number; end: number }[] = [];
      for (let begin = 0; begin < ids.length; ++begin) {
        for (let end = begin; sequence[begin] === 1 && end < ids.length && end < begin + maxAnswerLength && sequence[end] === 1; ++end) {
          spans.push({ score: starts[begin] * ends[end], begin, end });
        }
      }
      for (const n of ranked(
        spans.map(({ score }) => score),
        2 * topK + 10,
      )) {
        const { score, begin, end } = spans[n];
        let [from, to] = [offsets[begin][0], offsets[end][1]];
        while (isInWord(context, from)) --from;
        while (isInWord(context, to)) ++to;
        const key = `${from} ${to}`;
        if (!(Number(found.get(key)?.score) >= score)) found.set(key, { text: context.slice(from, to), score, offsets: [from, to] });
      }
    };
    await forEachForward(host, parts, {}, use);
    const all = [...found.values(), ...(impossible ? [{ text: '', score: none, offsets: [0, 0] as Offsets }] : [])];
    answers.push(
      ranked(
        all.map(({ score }) => score),
        topK,
      ).map((n) => all[n]),
    );
  }
  return answers;
}

/** A stretch of a text to be made anew. */
interface Job {
  /** Which text. */
  index: number;
  source: Offsets;
  part: Part;
  /** What stands before it in the result. */
  gap: string;
}

/** The stretches of a text, and what stands after the last of them. */
type Planner = (host: TaskHost, text: string, index: number, request: RewriteRequest, notes: string[]) => { jobs: Job[]; rest: string };

const translationJobs: Planner = (host, text, index, request, notes) => {
  const { tokenizer } = host;
  const { split = true, prefix, truncation } = request;
  let { targetLanguage } = request;
  const marked = tokenizer.languages.length > 0;
  const limit = limitOf(host);
  // Marian's code at the beginning of a text is one for each of its sentences.
  let at = 0;
  const code = />>([^<>\s]+)<<\s*/y.exec(text);
  if (code && marksSource(tokenizer)) {
    targetLanguage = code[1];
    at = code[0].length;
  }
  const encode = (begin: number, end: number) =>
    encodeAfter(tokenizer, prefix, text.slice(begin, end), { sourceLanguage: marked ? request.sourceLanguage : undefined, targetLanguage });
  const jobs: Job[] = [];
  const add = (begin: number, end: number): void => {
    const encoding = encode(begin, end);
    const middle = split === true && encoding.ids.length > limit && !truncation ? splitNear(text, begin, end) : 0;
    if (middle > 0) {
      notes.push(`a sentence of ${encoding.ids.length} tokens was split at ${middle}`);
      for (const [from, to] of [trimmed(text, begin, middle), trimmed(text, middle, end)]) if (from < to) add(from, to);
      return;
    }
    const [part] = fit('translate', encoding, limit, { truncation }, notes);
    jobs.push({ index, source: [begin, end], part, gap: text.slice(at, begin) });
    at = end;
  };
  for (const [begin, end] of sentencesOf(text, at, split, request.sourceLanguage)) add(begin, end);
  return { jobs, rest: text.slice(at) };
};

const summaryJobs: Planner = (host, text, index, request, notes) => {
  if (text.trim() === '') return { jobs: [], rest: '' };
  const parts = fit('summarize', encodeAfter(host.tokenizer, request.prefix, text), limitOf(host), request, notes);
  const jobs = parts.map((part, i): Job => {
    const places = part.offsets.filter((_, t) => part.sequence[t] === 0);
    return { index, source: [places[0]?.[0] ?? 0, places.at(-1)?.[1] ?? 0], part, gap: i > 0 ? ' ' : '' };
  });
  return { jobs, rest: '' };
};

/** Whether a model is told the target language by a token before the source, as Marian's are. */
function marksSource(tokenizer: Tokenizer): boolean {
  return tokenizer.tokenToId(`>>${tokenizer.languages[0]}<<`) !== null;
}

/** Tells the decoder its language: as its first token, or as the first that it writes. */
function addressDecoder({ tokenizer, config }: TaskHost, request: RewriteRequest): GenerateRequest {
  const { generation, targetLanguage } = request;
  const known = tokenizer.languages;
  if (known.length === 0 || marksSource(tokenizer)) return generation;
  const id = targetLanguage === undefined ? null : tokenizer.languageId(targetLanguage);
  const { native } = generation;
  const [start] = [native.decoderStartTokenId ?? config.decoder_start_token_id ?? null].flat() as (number | null)[];
  const starts = start === null || known.some((code) => tokenizer.languageId(code) === start);
  if (id === null) {
    if (native.forcedBosTokenId !== undefined || (start !== null && starts)) return generation;
    throw invalid('translate', 'targetLanguage', `a code such as ${known.slice(0, 5).join(', ')}`, targetLanguage ?? 'none');
  }
  return { ...generation, native: { ...native, ...(starts ? { decoderStartTokenId: [id] } : { forcedBosTokenId: id }) } };
}

/** Most sequences that are written at once, beams counted. */
const widest = 16;

async function rewrite(host: TaskHost, texts: string[], request: RewriteRequest, plan: Planner): Promise<Rewritten[]> {
  const isTranslation = plan === translationJobs;
  if (request.alignment) alignmentOf(host, request);
  const notes: string[][] = texts.map(() => []);
  const plans = texts.map((text, i) => plan(host, text, i, request, notes[i]));
  const jobs = plans.flatMap((one) => one.jobs);
  const generation = isTranslation && jobs.length > 0 ? addressDecoder(host, request) : request.generation;
  const results: Rewritten[] = texts.map((_, _i) => ({
    text: '',
    tokens: [],
    tokenIds: [],
    sourceTokens: [],
    score: 0,
    finishReason: 'stop',
    ...(request.alignment ? { alignment: [] } : {}),
    segments: [],
  }));
  const width = Math.max(1, Math.floor(widest / Number(generation.native.numBeams ?? 1)));
  const { maxTime } = generation;
  const began = performance.now();
  for (let begin = 0; begin < jobs.length; begin += width) {
    const some = jobs.slice(begin, begin + width);
    const left = maxTime === undefined ? {} : { maxTime: Math.max(0, maxTime - (performance.now() - began) / 1000) };
    const written = await host.generate(
      some.map(({ part }) => Int32Array.from(part.ids)),
      { ...generation, ...left },
    );
    for (const [n, one] of written.entries()) {
      const { text: raw, tokenIds, score, finishReason, promptTokens: _, seed: __, notes: more = [], ...looks } = one;
      const { index, source, part, gap } = some[n];
      const whole = results[index];
      const text = raw.trim();
      // Sentences that nothing separates, as in Chinese, are separated where the translation's script does so.
      const before = whole.segments.at(-1)?.text;
      const space = isTranslation && gap === '' && before && text !== '' && isSpaced(before + text) ? ' ' : gap;
      const target: Offsets = [whole.text.length + space.length, whole.text.length + space.length + text.length];
      whole.text += space + text;
      const segment: Segment = {
        source,
        target,
        text,
        tokens: host.strings(tokenIds, true),
        tokenIds,
        sourceTokens: host.strings(part.ids),
        score,
        finishReason,
        ...looks,
      };
      if (request.alignment) {
        const lead = raw.length - raw.trimStart().length;
        segment.alignment = await align(
          host,
          request,
          generation,
          part,
          tokenIds,
          [texts[index], source[0]],
          [whole.text, target[0] - lead],
        );
        whole.alignment?.push(...segment.alignment);
      }
      whole.segments.push(segment);
      for (const name of ['tokens', 'tokenIds', 'sourceTokens'] as const) (whole[name] as unknown[]).push(...segment[name]);
      whole.score += score;
      notes[index].push(...more);
      if (finishReason !== 'stop') whole.finishReason = finishReason;
      host.emit({ index, source, text, score, done: begin + n + 1, total: jobs.length });
    }
  }
  for (const [i, { rest }] of plans.entries()) {
    const [only, ...more] = results[i].segments;
    results[i].text += rest;
    if (notes[i].length > 0) results[i].notes = [...new Set(notes[i])];
    if (only && more.length === 0) {
      const { source: _, target: __, text: ___, ...same } = only;
      Object.assign(results[i], same);
    }
  }
  return results;
}

/** The layer and the head that links are read from. */
function alignmentOf({ info, config }: TaskHost, { alignment }: RewriteRequest): { layer: number; head?: number } {
  const { layer = Number(config.alignment_layer ?? Math.max(0, info.layers - 2)), head } = typeof alignment === 'object' ? alignment : {};
  for (const [name, index, count] of [
    ['layer', layer, info.layers],
    ['head', head ?? 0, info.heads],
  ] as const) {
    if (!(Number.isInteger(index) && index >= 0 && index < count))
      throw invalid('translate', `alignment.${name}`, `a whole number below ${count}`, index);
  }
  return { layer, head };
}

/**
 * Which words of a source the words of its translation look at, in one teacher-forced pass: the cross-attention of the step that
 * writes a token, averaged over the heads of one layer, special tokens of the source left out.
 */
async function align(
  host: TaskHost,
  request: RewriteRequest,
  { native }: GenerateRequest,
  part: Part,
  tokenIds: number[],
  [text, begin]: [string, number],
  [translation, targetBegin]: [string, number],
): Promise<AlignmentLink[]> {
  const { config, tokenizer } = host;
  const { layer, head } = alignmentOf(host, request);
  const [start] = [native.decoderStartTokenId ?? config.decoder_start_token_id ?? config.bos_token_id ?? 0].flat() as number[];
  const [{ crossAttentions }] = await host.forward(
    { inputIds: [Int32Array.from(part.ids)], decoderInputIds: [Int32Array.from([start, ...tokenIds.slice(0, -1)])] },
    {
      logits: false,
      attentions: true,
      'attentions.layers': [layer],
      ...(head === undefined ? {} : { 'attentions.heads': [head] }),
    },
  );
  const [{ data, shape }] = crossAttentions as Tensor[];
  const [H, T, S] = shape;
  const decoder = (tokenizer.target ?? tokenizer).createDecoder({ skipSpecialTokens: true });
  let at = targetBegin;
  const written = tokenIds.map((id): Offsets => {
    const from = at;
    at += decoder.push(id).length;
    return [from, at];
  });
  const read = part.offsets.map(([from, to], s): Offsets => (part.sequence[s] === 0 ? [begin + from, begin + to] : [0, 0]));
  const sources = wordsOf(text, read);
  if (sources.length === 0) return [];
  return wordsOf(translation, written).map(({ offsets, tokens }) => {
    const scores = sources.map((source) => {
      let sum = 0;
      for (const t of tokens) for (const s of source.tokens) for (let h = 0; h < H; ++h) sum += data[(h * T + t) * S + s];
      return sum / (tokens.length * H);
    });
    const [best] = ranked(scores, 1);
    return { source: sources[best].offsets, target: offsets, score: scores[best] };
  });
}
