// Training a model in the page: its loss, what it writes meanwhile, the attention of one head; stopped, gone on with, saved, loaded.
import { create, type Model, type TrainOptions, type TrainStep, trainTokenizer } from 'wasmformer';
import { LossChart } from './chart.ts';
import { describeModel, loadFiles, type Place, showProblem, takeModel } from './models.ts';
import { element, enable, input, isEnabled, onPress, say } from './page.ts';
import { drawAttention, hideLater, oneHead } from './picture.ts';
import { explain, plural, whole } from './words.ts';
import { zip } from './zip.ts';

const tab = 'train';
const defaultText = new URL('./moby-dick.txt', import.meta.url);
const defaultSentence = 'the sea, the whale, the sea';
/** The file of a saved model with the text it has learned from, which it takes to go on. */
const textFile = 'training_text.txt';
/** Characters a text needs at least, and of it those at its end that are held out: a share, within bounds. */
const shortest = 400;
const heldOut = { share: 0.05, least: 100, most: 8000 };
/** Characters of a pasted text that the page inserts itself, and of one that the box shows only the beginning of: browsers take seconds. */
const [longPaste, mostShown, beginning] = [2000, 20_000, 1500];
/** Tokens whose attention is drawn, characters written at a time, samples kept. */
const [mostDrawn, mostWritten, mostSamples] = [32, 400, 40];
/** Milliseconds between two announcements of the loss. */
const announceEvery = 15_000;
const sampling = { doSample: true, temperature: 0.8 };

interface Size {
  layers: number;
  width: number;
  heads: number;
  context: number;
  batch: number;
  learningRate: number;
  dropout: number;
  steps: number;
  evalEvery: number;
  about: string;
}
const sizes: Record<string, Size> = {
  small: {
    layers: 2,
    width: 64,
    heads: 4,
    context: 128,
    batch: 512,
    learningRate: 0.003,
    dropout: 0,
    steps: 5000,
    evalEvery: 25,
    about: 'Spells words after a minute.',
  },
  medium: {
    layers: 4,
    width: 128,
    heads: 4,
    context: 128,
    batch: 1024,
    learningRate: 0.002,
    dropout: 0.1,
    steps: 3000,
    evalEvery: 25,
    about: 'Slower, and better in the end.',
  },
  large: {
    layers: 6,
    width: 192,
    heads: 6,
    context: 256,
    batch: 2048,
    learningRate: 0.001,
    dropout: 0.2,
    steps: 3000,
    evalEvery: 20,
    about: 'For a text of some megabytes and an evening.',
  },
};

const form = element<HTMLFormElement>('train-form');
const ownText = element<HTMLTextAreaElement>('train-text');
const sentence = input('train-sentence');
const output = element('try-output');
const select = (id: string) => element<HTMLSelectElement>(id);
const numberIn = (id: string) => Number(input(id).value);

let chart: LossChart;
/** The visitor's text where the box shows only its beginning. */
let longText: string | null = null;
let book: Promise<string> | null = null;
let model: Model | null = null;
let running: AbortController | null = null;
/** Whether the model that comes is the one that is being made here. */
let making = false;
let writing: AbortController | null = null;
/** The text that the model's training can go on with; null where there is no training of it. */
let trainedOn: string | null = null;
/** Steps that the model has taken, and of those the ones before its present training. */
let steps = 0;
let stepsBefore = 0;
let shown: TrainStep | null = null;
let announced = 0;

/** The text that comes with the page; asked for again if that failed. */
function readBook(): Promise<string> {
  book ??= fetch(defaultText)
    .then((response) => response.text())
    .catch((error) => {
      book = null;
      throw Object.assign(error, { code: 'network' });
    });
  return book;
}

const usesOwn = () => document.querySelector<HTMLInputElement>('input[name=corpus]:checked')!.value === 'own';

const ownWords = () => longText ?? ownText.value;

/** Puts a text into the box. */
function setOwn(given: string): void {
  const text = given.replace(/\r\n?/g, '\n');
  longText = text.length > mostShown ? text : null;
  ownText.readOnly = longText !== null;
  ownText.value = longText === null ? text : `${text.slice(0, beginning)}…`;
  describeText();
}

function paste(event: ClipboardEvent): void {
  const text = event.clipboardData?.getData('text/plain') ?? '';
  if (text === '' || (longText === null && text.length < longPaste)) return;
  event.preventDefault();
  const { value, selectionStart, selectionEnd } = ownText;
  setOwn(longText === null ? value.slice(0, selectionStart) + text + value.slice(selectionEnd) : text);
}

function chooseText(own: boolean): void {
  document.querySelector<HTMLInputElement>(`input[name=corpus][value=${own ? 'own' : 'default'}]`)!.checked = true;
  element('own-text').hidden = !own;
  describeText();
}

function describeText(): void {
  const held = `The last twentieth, at most ${whole(heldOut.most)} characters, is held out: the model is measured with it and never learns it.`;
  const { length } = ownWords();
  if (!usesOwn())
    say('corpus-line', `The first thirteen chapters of Melville's novel, which come with this page: 128,113 characters. ${held}`);
  else if (length < shortest) say('corpus-line', `Paste ${whole(shortest)} characters or more; it stays in this tab. ${held}`);
  else say('corpus-line', `${plural(length, 'character')}. ${held}`);
}

/** What is learned, and what is held out. */
function split(text: string): [string, string] {
  const { share, least, most } = heldOut;
  let at = text.length - Math.max(least, Math.min(most, Math.round(text.length * share)));
  // Not within a character of two units.
  if (/[\udc00-\udfff]/.test(text[at])) --at;
  return [text.slice(0, at), text.slice(at)];
}

function describeSize(): void {
  const { layers, heads, width, context, about } = sizes[select('size').value];
  say('size-help', `${plural(layers, 'layer')} of ${plural(heads, 'head')}, ${width} wide, looks back ${context} characters. ${about}`);
}

function chooseSize(): void {
  const { learningRate, dropout, steps, batch } = sizes[select('size').value];
  for (const [id, value] of Object.entries({ 'learning-rate': learningRate, dropout, steps, batch })) input(id).value = String(value);
  describeSize();
}

/** Buttons for what can be done now. */
function offer(): void {
  enable('start-training', !running);
  enable('stop-training', running !== null);
  enable('continue-training', !running && model !== null);
  enable('save-training', model !== null);
  enable('try-write', model !== null && !writing);
  enable('try-stop', writing !== null);
}

/** The text to learn from; null after a word about why there is none. */
async function textToLearn(): Promise<string | null> {
  const text = usesOwn() ? ownWords() : await readBook();
  if (text.length >= shortest) return text;
  say(
    'train-status',
    `Paste a text of at least ${whole(shortest)} characters first: from ${whole(text.length)} there is nothing to learn.`,
  );
  ownText.focus();
  return null;
}

/** A model that knows nothing, over the characters of a text. */
async function make(text: string, signal: AbortSignal): Promise<void> {
  const size = select('size').value;
  const { layers, width, heads, context } = sizes[size];
  const { tokenizer, vocabSize } = await trainTokenizer([text], { type: 'char', signal });
  const config = {
    model_type: 'gpt2',
    vocab_size: vocabSize,
    n_layer: layers,
    n_embd: width,
    n_head: heads,
    n_positions: context,
    bos_token_id: tokenizer.specials.bos,
    eos_token_id: tokenizer.specials.eos,
  };
  const made = await create(config, { seed: numberIn('train-seed'), tokenizer, signal });
  making = true;
  await takeModel(tab, made, `A ${size} model of your own`).finally(() => {
    making = false;
  });
}

/** The loss of what is held out before the first step. */
async function lossBefore(learner: Model, held: string, signal: AbortSignal): Promise<number> {
  const length = Math.min(128, learner.info().contextLength || 128);
  const windows = Array.from({ length: Math.min(20, Math.ceil(held.length / length)) }, (_, i) => held.slice(i * length, (i + 1) * length));
  const scores = await learner.score(windows, { signal });
  const found = scores.flatMap(({ logprobs }) => Array.from(logprobs)).filter((logprob) => !Number.isNaN(logprob));
  return -found.reduce((sum, logprob) => sum + logprob, 0) / found.length;
}

async function train(fresh: boolean): Promise<void> {
  if (running || !form.reportValidity()) return;
  const own = new AbortController();
  const { signal } = own;
  running = own;
  element('problem').hidden = true;
  offer();
  let learner: Model | null = null;
  try {
    const text = await textToLearn();
    if (text === null) return;
    const [learned, held] = split(text);
    if (fresh) {
      say('train-status', 'Making a model that knows nothing…');
      await make(text, signal);
    }
    learner = model!;
    signal.throwIfAborted();
    const resume = trainedOn === text;
    if (!resume) stepsBefore = steps;
    announced = performance.now();
    say('train-status', `Learning from ${plural(learned.length, 'character')}…`);
    if (!sentence.value)
      sentence.value = text.includes(defaultSentence.slice(0, 8)) ? defaultSentence : held.slice(0, defaultSentence.length);
    const { evalEvery } = sizes[select('size').value];
    const goes = numberIn('steps');
    const options: TrainOptions = {
      evalData: held,
      steps: resume ? steps - stepsBefore + goes : goes,
      batchTokens: numberIn('batch'),
      learningRate: numberIn('learning-rate'),
      warmup: 20,
      dropout: numberIn('dropout'),
      seed: numberIn('train-seed'),
      evalEvery,
      sampleEvery: 2 * evalEvery,
      sample: { ...sampling, maxNewTokens: 100, seed: numberIn('train-seed') },
      resume,
      signal,
    };
    if (steps === 0) {
      const loss = await lossBefore(learner, held, signal);
      chart.held(0, loss);
      say('held-now', loss.toFixed(2));
      await look();
    }
    let first = true;
    for await (const step of learner.train(learned, options)) {
      trainedOn = text;
      steps = stepsBefore + step.step;
      show(step);
      if (step.evalLoss !== undefined) await look();
      // Now it has what training takes.
      if (first) await describeModel(tab);
      first = false;
    }
    if (learner === model) say('train-status', `${plural(steps, 'step')} are done. Continue takes more.`);
  } catch (error) {
    if (learner && learner !== model) return;
    if (signal.aborted) say('train-status', steps > 0 ? `Stopped after ${plural(steps, 'step')}. Continue goes on.` : 'Stopped.');
    else {
      say('train-status', 'The training has ended.');
      showProblem(error);
    }
  } finally {
    if (running === own) running = null;
    showNumbers();
    say('train-speed', '');
    offer();
  }
}

/** Takes down what a step gave; numbers on the page change a few times a second. */
function show(step: TrainStep): void {
  chart.learned(steps, step.loss);
  if (step.evalLoss !== undefined) chart.held(steps, step.evalLoss);
  if (step.sample !== undefined) addSample(step.sample);
  if (shown === null) setTimeout(showNumbers, 250);
  shown = { ...step, evalLoss: step.evalLoss ?? shown?.evalLoss };
  if (step.evalLoss === undefined || performance.now() - announced < announceEvery) return;
  announced = performance.now();
  say('train-status', `After ${plural(steps, 'step')} the loss is ${step.evalLoss.toFixed(2)} on what is held out.`);
}

function showNumbers(): void {
  if (!shown) return;
  say('step-now', whole(steps));
  say('loss-now', shown.loss.toFixed(2));
  if (shown.evalLoss !== undefined) say('held-now', shown.evalLoss.toFixed(2));
  say('train-speed', `${whole(Math.round(shown.tokensPerSecond))} characters a second`);
  shown = null;
}

function addSample(text: string): void {
  const region = element('samples');
  const list = region.querySelector('ol') ?? region.appendChild(document.createElement('ol'));
  const item = document.createElement('li');
  item.append(
    Object.assign(document.createElement('span'), { className: 'quiet', textContent: `Step ${whole(steps)}` }),
    Object.assign(document.createElement('span'), { textContent: text }),
  );
  list.prepend(item);
  if (list.children.length > mostSamples) list.lastElementChild!.remove();
}

/** Draws the attention of the chosen head as it is now. Between two steps the model is free for that. */
async function look(): Promise<void> {
  const seen = model;
  if (!seen || element('train-panel').hidden || !element<HTMLDetailsElement>('train-inside').open) return;
  try {
    const text = sentence.value || defaultSentence;
    const ids = (await seen.tokenize(text, { addSpecialTokens: false })).slice(0, mostDrawn);
    const [layer, head] = ['train-layer', 'train-head'].map((id) => Number(select(id).value));
    const [[{ attentions }], names] = await Promise.all([
      seen.forward({ inputIds: [ids] }, { attentions: { layers: [layer], heads: [head] } }),
      seen.tokenStrings(ids),
    ]);
    if (seen !== model) return;
    element('train-view').hidden = false;
    say('train-inside-status', `After ${plural(steps, 'step')}.`);
    drawAttention(element('train-map'), hideLater(oneHead(attentions![0], 0)), names, names, `Layer ${layer}, head ${head}`);
  } catch (error) {
    if (seen !== model) return;
    const { meaning, detail } = explain(error);
    say('train-inside-status', `${meaning} ${detail}`);
  }
}

/** Writes on from the text in the box, within what the model can look back on. */
async function write(): Promise<void> {
  if (!model || writing) return;
  const writer = model;
  const own = new AbortController();
  writing = own;
  offer();
  const given = element<HTMLTextAreaElement>('try-prompt').value || '\n';
  output.textContent = given;
  try {
    const { contextLength } = writer.info();
    const most = contextLength > 0 ? contextLength : 512;
    const ids = await writer.tokenize(given, { addSpecialTokens: false });
    for (let left = mostWritten; left > 0; ) {
      const inputIds = ids.slice(-Math.ceil(most / 2));
      const room = Math.min(left, most - inputIds.length);
      const stream = writer.generate(
        { inputIds },
        { ...sampling, maxNewTokens: room, seed: Math.floor(Math.random() * 2 ** 32), signal: own.signal },
      );
      for await (const { text } of stream) output.append(text);
      const { tokenIds, finishReason } = await stream.result;
      if (finishReason !== 'length' || tokenIds.length === 0) break;
      ids.push(...tokenIds);
      left -= tokenIds.length;
    }
  } catch (error) {
    if (writer === model) showProblem(error);
  } finally {
    writing = null;
    offer();
  }
}

/** Hands the browser the model, its optimiser and its text as one file. */
async function save(): Promise<void> {
  if (!model) return;
  enable('save-training', false);
  try {
    const files = await model.save(undefined, { optimizer: trainedOn !== null });
    if (trainedOn !== null) files.push({ name: textFile, bytes: new TextEncoder().encode(trainedOn) });
    const link = document.createElement('a');
    link.href = URL.createObjectURL(await zip(files));
    link.download = `my-model-${steps}.zip`;
    link.click();
    // The download has its own hold on the bytes by then.
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    say('train-status', `Saved after ${plural(steps, 'step')}: load ${link.download} here to go on, or in the tab Write.`);
  } catch (error) {
    showProblem(error);
  } finally {
    offer();
  }
}

/** What a saved training was at, from its files. */
async function readSaved(files: File[]): Promise<void> {
  const loaded = model;
  const find = (name: string) => files.find((file) => file.name === name);
  const [state, learned] = await Promise.all([find('trainer_state.json')?.text(), find(textFile)?.text()]);
  if (!state || loaded !== model) return;
  try {
    steps = Number(JSON.parse(state).step) || 0;
  } catch {
    return;
  }
  say('step-now', whole(steps));
  if (learned === undefined) return;
  trainedOn = learned;
  const own = learned !== (await readBook());
  if (own) setOwn(learned);
  chooseText(own);
  say('train-status', `Loaded after ${plural(steps, 'step')}. Continue goes on.`);
}

function takeOver(loaded: Model, files: File[]): void {
  // What runs belongs to the model before.
  if (!making) running?.abort();
  writing?.abort();
  model = loaded;
  trainedOn = null;
  steps = stepsBefore = 0;
  shown = null;
  chart.clear();
  element('samples').replaceChildren();
  output.replaceChildren();
  element('train-view').hidden = true;
  sentence.value = '';
  say('step-now', '0');
  for (const id of ['loss-now', 'held-now']) say(id, '–');
  const { layers, heads } = loaded.info();
  for (const [id, count] of [
    ['train-layer', layers],
    ['train-head', heads],
  ] as const) {
    const chosen = Math.min(Number(select(id).value), count - 1);
    select(id).replaceChildren(...Array.from({ length: count }, (_, i) => new Option(String(i), String(i), false, i === chosen)));
  }
  if (!making) {
    running = null;
    say('train-status', 'Loaded. Continue trains it further on the text above.');
    void readSaved(files).catch(showProblem);
    void look();
  }
  offer();
}

/** What needs a panel that is in view. */
export function showTraining(): void {
  void readBook().catch(showProblem);
  void look();
}

/** Sets up the tab; what it wants of its model. */
export function startTraining(): Place {
  chart = new LossChart(element('loss-chart'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (isEnabled('start-training')) void train(true);
  });
  element('start-training').addEventListener('click', (event) => {
    if (!isEnabled('start-training')) event.preventDefault();
  });
  // A field that the browser wants to point at has to be in view.
  for (const field of form.elements) {
    field.addEventListener('invalid', () => {
      element<HTMLDetailsElement>('train-details').open = true;
    });
  }
  onPress('stop-training', () => running?.abort());
  onPress('continue-training', () => void train(false));
  onPress('save-training', () => void save());
  input('load-training').addEventListener('change', () => {
    void loadFiles([...input('load-training').files!]);
    input('load-training').value = '';
  });
  for (const radio of document.querySelectorAll<HTMLInputElement>('input[name=corpus]')) {
    radio.addEventListener('change', () => chooseText(usesOwn()));
  }
  ownText.addEventListener('input', describeText);
  ownText.addEventListener('paste', paste);
  input('text-file').addEventListener('change', async () => {
    const file = input('text-file').files?.[0];
    input('text-file').value = '';
    if (file) setOwn(await file.text());
  });
  onPress('clear-text', () => {
    setOwn('');
    ownText.focus();
  });
  select('size').addEventListener('change', chooseSize);
  for (const id of ['train-layer', 'train-head', 'train-sentence']) element(id).addEventListener('change', () => void look());
  element('train-inside').addEventListener('toggle', () => void look());
  element('try-form').addEventListener('submit', (event) => {
    event.preventDefault();
    if (isEnabled('try-write')) void write();
  });
  onPress('try-stop', () => writing?.abort());
  addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || element('train-panel').hidden || element<HTMLDialogElement>('sources').open) return;
    (writing ?? running)?.abort();
  });
  chooseText(false);
  chooseSize();
  return {
    folder: 'moby-dick-char',
    name: 'Moby-Dick, letter by letter',
    facts: 'train-about',
    example: 'openai-community/gpt2',
    options: { trainable: true },
    invitation: 'Start one below, or choose one to train further.',
    refusal({ tasks, encoderDecoder }) {
      if (!encoderDecoder && tasks.includes('generate')) return undefined;
      return 'Only models that continue texts are trained on this page.';
    },
    onModel: (loaded, _, files) => takeOver(loaded, files),
    onProblem(error) {
      showProblem(error);
    },
  };
}
