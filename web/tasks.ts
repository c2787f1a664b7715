import type { RewriteRequest } from './engine/tasks.ts';
import {
  boolean,
  callback,
  checked,
  count,
  fail,
  isArrayOf,
  kind,
  object,
  oneOf,
  positiveInteger,
  reading,
  resolveGeneration,
  signal,
  string,
} from './options.ts';
import type { SummarizeOptions, TranslateOptions, WindowOptions } from './task-types.ts';
import type { GenerateOptions } from './types.ts';

/** A task's arguments as the engine takes them. */
export interface CheckedTask {
  items: unknown[];
  /** Whether the caller gave an array. */
  many: boolean;
  request: Record<string, any>;
  signal?: AbortSignal;
  onSentence?: TranslateOptions['onSentence'];
}

const strings = kind(
  'a string or an array of strings',
  (value) => typeof value === 'string' || isArrayOf(value, (item) => typeof item === 'string'),
);
const windowed = kind('true, false or { size, overlap }', (value) => typeof value === 'boolean' || object.test(value));
const poolings = ['mean', 'cls', 'last', 'lasttoken', 'max', 'mean_sqrt_len_tokens', 'weightedmean'];

/** What each task takes, `translate` and `summarize` beside generation options. */
const taskOptions = {
  translate: {
    sourceLanguage: string,
    targetLanguage: string,
    split: oneOf(true, false, 'lines'),
    truncation: boolean,
    alignment: kind('true, false or { layer, head }', (value) => typeof value === 'boolean' || object.test(value)),
    onSentence: callback,
  },
  summarize: { truncation: boolean, window: windowed },
  embed: {
    normalize: boolean,
    pooling: kind(
      `one or several of ${poolings.join(', ')}`,
      (value) => [value].flat().length > 0 && isArrayOf([value].flat(), (item) => poolings.includes(item)),
    ),
    truncation: boolean,
    prompt: string,
    promptName: string,
    signal,
  },
  fillMask: {
    topK: positiveInteger,
    targets: kind('a string or several', (value) => strings.test(value) && value.length > 0),
    truncation: boolean,
    signal,
  },
  classify: {
    topK: positiveInteger,
    function: oneOf('softmax', 'sigmoid', 'none'),
    aggregation: oneOf('none', 'simple', 'first', 'average', 'max'),
    ignoreLabels: strings,
    truncation: boolean,
    window: windowed,
    signal,
  },
  answer: {
    topK: positiveInteger,
    maxAnswerLength: positiveInteger,
    maxLength: positiveInteger,
    docStride: count,
    impossible: boolean,
    signal,
  },
};
export type TaskName = keyof typeof taskOptions;

const isString = (item: unknown): boolean => typeof item === 'string';

/** What each task works on, and in words. */
const inputs: Partial<Record<TaskName, [expected: string, test: (item: any) => boolean]>> = {
  classify: [
    'a string, { text, pair },',
    (item) => isString(item) || (isString(item?.text) && isString(item.pair) && Object.keys(item).length === 2),
  ],
  answer: ['a question and a context, both strings,', (item) => isString(item?.question) && isString(item.context)],
};

/** Checks a task's options and what it works on: one text or an array of these. */
export function checkTask(where: TaskName, input: unknown, options: unknown): CheckedTask {
  return reading(where, () => {
    const { signal, ...request } = checked(where, options, taskOptions[where]);
    checkParts(where, request);
    return { ...checkItems(where, input), request, signal };
  });
}

function checkItems(where: TaskName, input: unknown): { items: unknown[]; many: boolean } {
  const [expected, test] = inputs[where] ?? ['a string', isString];
  const many = Array.isArray(input);
  const items = many ? Array.from(input) : [input];
  for (const item of items) if (!test(item)) fail(where, 'text', `${expected} or an array of these`, item);
  return { items, many };
}

/** Checks options that are objects. */
function checkParts(where: string, request: Record<string, any>): void {
  if (object.test(request.window)) {
    const { size = Infinity, overlap = 0 }: WindowOptions = checked(where, request.window, { size: positiveInteger, overlap: count });
    if (overlap >= size) fail(where, 'window.overlap', `less than its size, ${size}`, overlap);
  }
  if (object.test(request.alignment)) checked(where, request.alignment, { layer: count, head: count });
}

/** Checks the arguments of `translate` or `summarize` and resolves them against the model's files. */
export function checkRewrite(
  where: 'translate' | 'summarize',
  input: unknown,
  options: TranslateOptions & SummarizeOptions = {},
  config: Readonly<Record<string, unknown>>,
  generationConfig: Readonly<Record<string, unknown>>,
): CheckedTask {
  return reading(where, () => {
    const kinds = taskOptions[where];
    if (!object.test(options)) fail(where, 'options', 'an object', options);
    for (const name of ['sourceLanguage', 'targetLanguage'] as const) {
      if (options[name] !== undefined && !string.test(options[name])) fail(where, name, string.expected, options[name]);
    }
    const { prefix, params, inWords } = taskOf(where, options, config);
    const generation = resolveGeneration(where, options as GenerateOptions, { ...generationConfig, ...params }, kinds);
    for (const name of ['cache', 'addSpecialTokens', 'decoderInputIds']) {
      if ((options as Record<string, unknown>)[name] !== undefined)
        fail(where, name, 'none here, but with generate', (options as Record<string, unknown>)[name]);
    }
    if (generation.numReturnSequences > 1) fail(where, 'numReturnSequences', '1 here, more with generate', generation.numReturnSequences);
    const { sourceLanguage, targetLanguage, split, truncation, window, alignment, onSentence, signal } = options;
    const request: RewriteRequest = {
      generation,
      prefix,
      sourceLanguage,
      targetLanguage: inWords ? undefined : targetLanguage,
      split,
      truncation,
      window,
      alignment,
    };
    checkParts(where, request);
    return { ...checkItems(where, input), request, signal, onSentence };
  });
}

/** What config.json says of a task: the words to set before a text, and generation options (T5, BART). */
function taskOf(
  where: 'translate' | 'summarize',
  { sourceLanguage, targetLanguage }: TranslateOptions,
  config: Readonly<Record<string, unknown>>,
): { prefix: string; params: Record<string, unknown>; inWords: boolean } {
  const all = (config.task_specific_params ?? {}) as Record<string, Record<string, unknown>>;
  // Languages by their first letters: `en_XX` is `en`.
  const short = (language: string | undefined) => language?.split(/[-_]/)[0] ?? '\\w+';
  const pattern = where === 'summarize' ? /^summarization$/ : /^translation_\w+_to_\w+$/;
  const wanted = where === 'summarize' ? pattern : new RegExp(`^translation_${short(sourceLanguage)}_to_${short(targetLanguage)}$`);
  const known = Object.keys(all).filter((name) => pattern.test(name));
  const found = known.filter((name) => wanted.test(name));
  const inWords = known.some((name) => all[name]?.prefix !== undefined);
  if (found.length !== 1 && inWords) {
    fail(
      where,
      'sourceLanguage, targetLanguage',
      `one of ${known.map((name) => name.slice(12).replace('_to_', ' to ')).join(', ')}`,
      `${sourceLanguage} to ${targetLanguage}`,
    );
  }
  const { prefix = '', ...params } = (found.length === 1 ? all[found[0]] : undefined) ?? {};
  return { prefix: String(prefix), params, inWords };
}
