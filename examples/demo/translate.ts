// Translating: the text, its translation word over word, the beams, and where the decoder looked.
import type { AlignmentLink, Model, Segment, Tensor, TranslateOptions, Translation } from 'wasmformer';
import { type Place, showProblem } from './models.ts';
import { element, enable, input, isEnabled, onPress, say } from './page.ts';
import { drawAttention, hideLater, oneHead } from './picture.ts';
import { duration, explain, plural } from './words.ts';

/** Texts up to this length (UTF-16) are looked into at once; of longer ones each sentence when it is chosen. */
const short = 200;
/** Tokens of a sentence that can still be drawn. */
const mostTokens = 200;

const source = element<HTMLTextAreaElement>('source-text');
const select = (id: string) => element<HTMLSelectElement>(id);

let model: Model | null = null;
/** Whether the model is the one that came with the page. */
let shipped = false;
let running: AbortController | null = null;
/** What is on the page: the text, what became of it and how. */
let shown: { text: string; result: Translation; options: TranslateOptions; summary: boolean } | null = null;
/** The sentence whose attention is drawn. */
let seen: Segment | null = null;

const isSummary = () => document.querySelector<HTMLInputElement>('input[name=task]:checked')!.value === 'summarize';

function settings(signal: AbortSignal): TranslateOptions {
  const options: TranslateOptions = { numBeams: Number(input('beam-count').value), signal };
  if (isSummary()) return options;
  if (select('source-language').value) options.sourceLanguage = select('source-language').value;
  if (select('target-language').value) options.targetLanguage = select('target-language').value;
  return { ...options, alignment: true };
}

/** Translates what is in the box; what was running ends. `typed`: nobody pressed a button, so little is said. */
async function run(typed = false): Promise<void> {
  running?.abort();
  if (!model) return;
  const translator = model;
  const text = source.value;
  if (text.trim() === '') {
    clear(typed ? 'Ready.' : 'Write a text first.');
    if (!typed) source.focus();
    return;
  }
  const own = new AbortController();
  running = own;
  enable('stop-translate', true);
  element('problem').hidden = true;
  say('copied-translation', '');
  const summary = isSummary();
  if (!typed) say('translate-status', summary ? 'Summarising…' : 'Translating…');
  const began = performance.now();
  const parts: string[] = [];
  try {
    const options = settings(own.signal);
    const result = summary
      ? await translator.summarize(text, { ...options, window: true })
      : await translator.translate(text, {
          ...options,
          attentions: text.length <= short,
          onSentence({ text, done, total }) {
            if (total === 1 || own.signal.aborted) return;
            parts.push(text);
            element('translation').textContent = parts.join(' ');
            say('translate-speed', `sentence ${done} of ${total}`);
          },
        });
    if (own.signal.aborted) return;
    const took = duration(performance.now() - began);
    shown = { text, result, options, summary };
    show();
    const cut = result.finishReason === 'length' ? 'It stopped at the limit of its length.' : 'Done.';
    say('translate-status', [cut, ...(result.notes ?? []).map((note) => `Note: ${note}.`)].join(' '));
    say('translate-speed', `${plural(result.tokenIds.length, 'token')} in ${took}`);
    await look(0, own.signal);
  } catch (error) {
    if (running !== own) return;
    const status = own.signal.aborted ? 'You stopped it.' : 'Nothing came.';
    if (shown?.options.signal === own.signal) say('translate-status', status);
    else {
      // What stood there belonged to another text.
      clear(status);
      element('translation').textContent = parts.join(' ');
    }
    if (!own.signal.aborted) showProblem(error);
  } finally {
    if (running === own) rest();
  }
}

/** Nothing is running any more. */
function rest(): void {
  running = null;
  enable('stop-translate', false);
}

/** Writes out a translation. */
function show(): void {
  const { text, result, summary } = shown!;
  element('translation').textContent = result.text;
  enable('copy-translation', true);
  element('pairs-section').hidden = summary;
  element('pairs').replaceChildren(...(summary ? [] : wordOverWord(text, result.text, result.alignment ?? [])));
  const { segments } = result;
  element('part-setting').hidden = segments.length < 2;
  select('part').replaceChildren(...segments.map(({ source }, i) => new Option(text.slice(...source).trim(), String(i))));
}

/** The text, with the words that came of each of its words above it. */
function wordOverWord(text: string, translation: string, links: AlignmentLink[]): Node[] {
  const above = new Map<number, { end: number; words: string[] }>();
  for (const { source, target } of links) {
    const [begin, end] = source;
    const word = above.get(begin) ?? { end, words: [] };
    word.words.push(translation.slice(...target));
    above.set(begin, word);
  }
  const nodes: Node[] = [];
  let at = 0;
  for (const [begin, { end, words }] of [...above].sort(([a], [b]) => a - b)) {
    // Punctuation and figures stand for themselves.
    if (words.join() === text.slice(begin, end)) continue;
    const ruby = document.createElement('ruby');
    const reading = Object.assign(document.createElement('rt'), { textContent: words.join(' ') });
    ruby.append(text.slice(begin, end), reading);
    nodes.push(document.createTextNode(text.slice(at, begin)), ruby);
    at = end;
  }
  return [...nodes, document.createTextNode(text.slice(at))];
}

/** Looks into one sentence: its beams and its attention. */
async function look(index: number, signal: AbortSignal): Promise<void> {
  const now = shown;
  const segment = now?.result.segments[index];
  if (!now || !segment || !model) {
    hideBeams();
    forget('There is nothing to look at in this text.');
    return;
  }
  const text = now.text.slice(...segment.source);
  await showAttention(text, segment, signal);
  if (!signal.aborted) await showBeams(text, segment, signal);
}

async function showAttention(text: string, segment: Segment, signal: AbortSignal): Promise<void> {
  const { options, summary } = shown!;
  seen = null;
  if (!element<HTMLDetailsElement>('translate-inside').open) return;
  if (Math.max(segment.sourceTokens.length, segment.tokens.length) > mostTokens) {
    forget(`This is too long to draw: more than ${plural(mostTokens, 'token')}.`);
    return;
  }
  try {
    let found = segment;
    if (!found.crossAttentions) {
      const again = { ...options, signal, alignment: undefined, attentions: true };
      [found] = (await (summary ? model!.summarize(text, again) : model!.translate(text, { ...again, split: false }))).segments;
    }
    if (signal.aborted) return;
    seen = found;
    say('stack-status', `${plural(seen.sourceTokens.length, 'token')} of the text, ${plural(seen.tokens.length, 'token')} written.`);
    element('stack-view').hidden = false;
    fillLayers();
    draw();
  } catch (error) {
    if (signal.aborted) throw error;
    const { meaning, detail } = explain(error);
    forget(`${meaning} ${detail}`);
  }
}

/** The (H, T, S) weights of each layer of the chosen stack. */
function layers(): Tensor[] {
  const stacks = { cross: seen!.crossAttentions, encoder: seen!.encoderAttentions, decoder: seen!.decoderAttentions };
  return stacks[select('stack').value as keyof typeof stacks]!;
}

/** Offers the layers and heads of the chosen stack; of cross-attention first the layer that translations are aligned by. */
function fillLayers(): void {
  const all = layers();
  const [heads] = all[0].shape;
  const best = Number(model!.config.alignment_layer ?? Math.max(0, all.length - 2));
  const fill = (id: string, options: [string, number][], first: number) => {
    const kept = select(id).value;
    select(id).replaceChildren(...options.map(([text, value]) => new Option(text, String(value))));
    select(id).value = options.some(([, value]) => String(value) === kept) ? kept : String(first);
  };
  const numbers = (count: number) => Array.from({ length: count }, (_, i): [string, number] => [String(i), i]);
  fill('stack-layer', numbers(all.length), select('stack').value === 'cross' ? best : 0);
  fill('stack-head', [['Mean of all', -1], ...numbers(heads)], -1);
}

/** What the picture of each stack shows: a title, and how to read it. */
const words = {
  cross: [
    'Cross-attention',
    'Each row is a token as it was written, each column a token of the text. The brighter, the more it looked there.',
  ],
  encoder: ['Self-attention of the encoder', 'Each row is a token of the text, each column a token it takes from. The brighter, the more.'],
  decoder: [
    'Self-attention of the decoder',
    'Each row is a token of the translation, each column a token it takes from: itself and those before it.',
  ],
};

function draw(): void {
  if (!seen) return;
  const stack = select('stack').value as keyof typeof words;
  const [layer, head] = [Number(select('stack-layer').value), Number(select('stack-head').value)];
  let weights = oneHead(layers()[layer], head);
  // Syllables need no mark of the space before them; parts of words do.
  const written = seen.targetTokens!.map((token) => (shipped ? token.trim() : token));
  let [rows, columns] = [seen.sourceTokens, seen.sourceTokens];
  if (stack === 'decoder') {
    weights = hideLater(weights);
    rows = columns = written;
  } else if (stack === 'cross') {
    // The step that reads one token writes the next; the last is read by none.
    const { data, shape } = weights;
    weights = { data: data.subarray(0, (shape[0] - 1) * shape[1]), shape: [shape[0] - 1, shape[1]] };
    rows = written.slice(1);
  }
  const [title, caption] = words[stack];
  const frame = element('stack-map');
  frame.setAttribute('aria-label', title);
  drawAttention(frame, weights, columns, rows, `Layer ${layer}, ${head < 0 ? 'mean of heads' : `head ${head}`}`);
  say('stack-caption', caption);
}

/** Takes the picture away. */
function forget(why: string): void {
  seen = null;
  element('stack-view').hidden = true;
  say('stack-status', why);
}

/** Lists all beams of a sentence, the likeliest first; of a model that must be told its task or language the winner only. */
async function showBeams(text: string, segment: Segment, signal: AbortSignal): Promise<void> {
  const beams = Number(shown!.options.numBeams);
  if (beams === 1) {
    hideBeams();
    return;
  }
  const found = await model!.generate(text, { numBeams: beams, numReturnSequences: beams, signal }).result;
  if (signal.aborted) return;
  const all = found as { text: string; score: number; tokenIds: number[] }[];
  const same = String(all[0].tokenIds) === String(segment.tokenIds);
  const best = segment.text.split(' ');
  element('beams').replaceChildren(
    ...(same ? all : [segment]).map(({ text, score }) => {
      const item = document.createElement('li');
      const words = text.trim().split(' ');
      for (const [i, word] of words.entries()) {
        if (i > 0) item.append(' ');
        if (words.length === best.length && word !== best[i]) {
          item.append(Object.assign(document.createElement('mark'), { textContent: word }));
        } else item.append(word);
      }
      item.append(
        ' ',
        Object.assign(document.createElement('span'), { className: 'quiet numbers', textContent: score.toFixed(3).replace('-', '\u2212') }),
      );
      return item;
    }),
  );
  say(
    'beams-line',
    same
      ? 'The number is the log-probability, by length: the nearer to 0, the likelier. What differs from the first is marked.'
      : 'Only the winner can be shown of a model that is told its task or its languages.',
  );
  element('beams-section').hidden = false;
}

function hideBeams(): void {
  element('beams-section').hidden = true;
}

/** Takes everything away that was made of a text. */
function clear(status: string): void {
  running?.abort();
  rest();
  shown = null;
  for (const id of ['translation', 'pairs', 'beams']) element(id).replaceChildren();
  for (const id of ['pairs-section', 'part-setting', 'beams-section']) element(id).hidden = true;
  enable('copy-translation', false);
  say('translate-status', status);
  say('translate-speed', '');
  forget('Translate a text first.');
}

/** Offers the languages that a model knows: as tasks of its configuration (T5), else by its tokenizer. */
function offerLanguages({ config, tokenizer }: Model): void {
  const tasks = Object.keys(config.task_specific_params ?? {}).flatMap((name) => {
    const names = /^translation_(\w+)_to_(\w+)$/.exec(name);
    return names ? [names.slice(1)] : [];
  });
  const known = tokenizer?.languages ?? [];
  element('languages').hidden = tasks.length + known.length === 0;
  for (const [side, id] of ['source-language', 'target-language'].entries()) {
    const codes = tasks.length > 0 ? [...new Set(tasks.map((names) => names[side]))] : ['', ...known];
    select(id).replaceChildren(...codes.map((code) => new Option(code || 'As the model says', code)));
  }
}

/** Looks into another sentence; what was running ends. */
function lookAt(index: number): void {
  running?.abort();
  const own = new AbortController();
  running = own;
  enable('stop-translate', true);
  say('translate-status', 'Looking inside…');
  look(index, own.signal)
    .catch((error) => {
      if (!own.signal.aborted) showProblem(error);
    })
    .finally(() => {
      if (running !== own) return;
      say('translate-status', own.signal.aborted ? 'You stopped it.' : 'Done.');
      rest();
    });
}

/** Names what the tab does. */
function labelTask(): void {
  const summary = isSummary();
  say('run-translate', summary ? 'Summarise' : 'Translate');
  element('translation').setAttribute('aria-label', summary ? 'Summary' : 'Translation');
  element('translation').dataset.empty = `The ${summary ? 'summary' : 'translation'} will appear here.`;
}

/** Sets up the tab; what it wants of its model. */
export function startTranslating(): Place {
  let timer: ReturnType<typeof setTimeout>;
  const typed = () => {
    clearTimeout(timer);
    if (input('as-you-type').checked) timer = setTimeout(() => void run(true), 250);
  };
  source.addEventListener('input', (event) => {
    if (!(event as InputEvent).isComposing) typed();
  });
  source.addEventListener('compositionend', typed);
  source.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (isEnabled('run-translate')) void run();
  });
  element('translate-form').addEventListener('submit', (event) => {
    event.preventDefault();
    if (isEnabled('run-translate')) void run();
  });
  addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !element('translate-panel').hidden) running?.abort();
  });
  onPress('stop-translate', () => running?.abort());
  onPress('copy-translation', async () => {
    try {
      await navigator.clipboard.writeText(element('translation').textContent ?? '');
      say('copied-translation', 'Copied.');
    } catch {
      say('copied-translation', 'This browser did not allow it.');
    }
  });
  input('beam-count').addEventListener('input', () => say('beam-count-value', input('beam-count').value));
  for (const id of ['beam-count', 'source-language', 'target-language', 'as-you-type']) element(id).addEventListener('change', typed);
  for (const radio of document.querySelectorAll('input[name=task]')) {
    radio.addEventListener('change', () => {
      labelTask();
      clear('Ready.');
      typed();
    });
  }
  select('part').addEventListener('change', () => lookAt(Number(select('part').value)));
  element('translate-inside').addEventListener('toggle', () => {
    if (!seen && shown && !running) lookAt(Number(select('part').value));
  });
  select('stack').addEventListener('change', () => {
    if (!seen) return;
    fillLayers();
    draw();
  });
  for (const id of ['stack-layer', 'stack-head']) element(id).addEventListener('change', draw);

  return {
    folder: 'pinyin',
    name: 'Chinese to pinyin',
    facts: 'translate-about',
    example: 'Helsinki-NLP/opus-mt-en-de',
    refusal: ({ tasks }) =>
      tasks.includes('translate')
        ? undefined
        : `It neither translates nor summarises.${tasks.includes('generate') ? ' Open the tab Write and choose it there.' : ''}`,
    onModel(loaded, own) {
      model = loaded;
      shipped = own;
      clear('Ready.');
      say('source-label', own ? 'Chinese text' : 'Text');
      source.lang = own ? 'zh' : '';
      for (const id of ['translation', 'pairs', 'beams', 'stack-map']) element(id).lang = own && id !== 'pairs' ? 'zh-Latn' : source.lang;
      // A letter by letter answer is for small models.
      input('as-you-type').checked = loaded.info().parameters < 2e7;
      element('task').hidden = own;
      document.querySelector<HTMLInputElement>('input[name=task][value=translate]')!.checked = true;
      labelTask();
      offerLanguages(loaded);
      enable('run-translate', true);
      if (own) void run(true);
    },
    onProblem(error) {
      if (!model) say('translate-status', 'There is no model to translate with.');
      showProblem(error);
    },
  };
}
