// Writing with the model: prompt, settings, the stream of text.
import type { Cache, ChatMessage, FinishReason, GenerateResult, GenerationStream, Model } from 'wasmformer';
import { attentionClear, attentionModel, attentionText, startAttention } from './attention.ts';
import { type Place, showProblem } from './models.ts';
import { element, enable, input, isEnabled, onPress, say } from './page.ts';
import { plural, whole } from './words.ts';

const prompt = element<HTMLTextAreaElement>('prompt');
const output = element('output');
/** The prompt of the text mode while the chat's is in the box, and the other way round. */
const drafts = { text: '', chat: '' };

let model: Model | null = null;
let mode: 'text' | 'chat' = 'text';
let running: AbortController | null = null;
let conversation: ChatMessage[] = [];
let conversationCache: Cache | null = null;

function options(signal: AbortSignal) {
  if (input('new-seed').checked) input('seed').value = String(crypto.getRandomValues(new Uint32Array(1))[0] % 100_000);
  const common = { maxNewTokens: Number(input('max-tokens').value), seed: Number(input('seed').value), signal };
  const temperature = Number(input('temperature').value);
  if (temperature === 0) return { ...common, doSample: false };
  return { ...common, doSample: true, temperature, topP: Number(input('top-p').value), topK: Number(input('top-k').value) };
}

/** Appends text once a frame at most, and keeps the end in view for a reader who was there. */
class Paper {
  #node: Text;
  #waiting = '';
  #frame = 0;

  constructor(parent: HTMLElement) {
    this.#node = parent.appendChild(document.createTextNode(''));
  }

  write(text: string): void {
    this.#waiting += text;
    if (this.#frame === 0 && text !== '') this.#frame = requestAnimationFrame(() => this.flush());
  }

  flush(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#waiting === '') return;
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 48;
    this.#node.appendData(this.#waiting);
    this.#waiting = '';
    if (atEnd) output.scrollTop = output.scrollHeight;
  }
}

function add(className: string, text = '', parent: HTMLElement = output, tag = 'span'): HTMLElement {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return parent.appendChild(node);
}

/** One side's turn in a conversation; the element that its text goes into. */
function addTurn(who: string, text: string): HTMLElement {
  const turn = add('turn', '', output, 'div');
  add('who', who, turn);
  return add('said', text, turn);
}

function endOf(result: GenerateResult, most: number): string {
  const ends: Record<FinishReason, string> = {
    stop: 'The model ended the text.',
    length: result.tokenIds.length < most ? "It stopped at the end of the model's context." : 'It stopped at the limit you set.',
    time: 'It stopped when its time was up.',
    aborted: 'You stopped it.',
  };
  return ends[result.finishReason];
}

async function generate(): Promise<void> {
  if (!model || running) return;
  const form = element<HTMLFormElement>('form');
  if (!form.reportValidity()) return;
  const text = prompt.value;
  const numbers = model.tokenizer ? null : (text.match(/\d+/g) ?? []).map(Number);
  if (numbers?.length === 0) {
    say('status', 'Write at least one token id first.');
    prompt.focus();
    return;
  }
  if (mode === 'chat' && text.trim() === '') {
    say('status', 'Write a message first.');
    prompt.focus();
    return;
  }
  const writer = model;
  const chats = mode === 'chat';
  const talk = conversation;
  const own = new AbortController();
  running = own;
  element('problem').hidden = true;
  enable('generate', false);
  enable('stop', true);
  for (const id of ['continue', 'copy']) enable(id, false);
  say('copied', '');
  say('speed', '');
  say('status', chats ? 'The model is answering…' : 'Generating…');
  attentionClear('Waiting for the text…');

  let ids: number[] = [];
  let tokens = 0;
  const began = performance.now();
  let first = 0;
  // From the first token on; of a short text, which may come all at once, from the start.
  const speed = () => {
    const now = performance.now();
    return now - first > 200 ? ((tokens - 1) * 1000) / (now - first) : (tokens * 1000) / (now - began);
  };
  const timer = setInterval(() => {
    if (tokens > 1) say('speed', `${plural(tokens, 'token')}, ${rate(speed())} a second`);
  }, 250);
  let paper: Paper | null = null;
  try {
    const settings = options(own.signal);
    let stream: GenerationStream<GenerateResult>;
    if (chats) {
      if (talk.length === 0) {
        output.replaceChildren();
        const system = element<HTMLTextAreaElement>('system').value.trim();
        if (system) talk.push({ role: 'system', content: system });
      }
      talk.push({ role: 'user', content: text });
      prompt.value = '';
      addTurn('You', text);
      paper = new Paper(addTurn('Model', ''));
      conversationCache ??= await writer.createCache();
      stream = writer.chat(talk, { ...settings, cache: conversationCache });
    } else {
      output.replaceChildren();
      add('given', text);
      paper = new Paper(add('new'));
      stream = writer.generate(numbers ? { inputIds: numbers } : text, settings);
    }
    output.scrollTop = output.scrollHeight;
    for await (const piece of stream) {
      if (tokens++ === 0) first = performance.now();
      paper.write(numbers ? ` ${piece.tokenId}` : piece.text);
    }
    const elapsed = speed();
    clearInterval(timer);
    const result = await stream.result;
    paper.flush();
    // Another model or a new conversation came meanwhile; the paper is theirs.
    if (talk !== conversation) return;
    const end = endOf(result, Number(input('max-tokens').value));
    say('status', `${end} ${(result.notes ?? []).map((note) => `Note: ${note}.`).join(' ')}`.trim());
    say('speed', `${plural(result.tokenIds.length, 'token')}${tokens > 1 ? `, ${rate(elapsed)} a second` : ''}, seed ${result.seed}`);
    // What led here: a text as the tokenizer reads it, a conversation as the template writes it.
    const before = chats
      ? await writer.tokenize(await writer.applyChatTemplate(talk), { addSpecialTokens: false })
      : (numbers ?? (await writer.tokenize(text)));
    if (chats) talk.push({ role: 'assistant', content: result.text });
    ids = [...before, ...result.tokenIds];
  } catch (error) {
    paper?.flush();
    if (talk === conversation) {
      say('status', 'Nothing more came.');
      showProblem(error);
    }
    if (chats && talk.at(-1)?.role === 'user') talk.pop();
  } finally {
    clearInterval(timer);
    running = null;
    enable('generate', true);
    enable('stop', false);
    enable('copy', output.textContent !== '');
    enable('continue', !chats && output.textContent !== '');
  }
  if (talk !== conversation) return;
  if (ids.length > 0) await attentionText(ids);
  else attentionClear('Generate a text first.');
}

function rate(speed: number): string {
  return speed < 9.95 ? speed.toFixed(1) : whole(Math.round(speed));
}

function setMode(next: 'text' | 'chat'): void {
  if (next === mode) return;
  running?.abort();
  drafts[mode] = prompt.value;
  mode = next;
  prompt.value = drafts[mode];
  const chat = mode === 'chat';
  label();
  element('generate').textContent = chat ? 'Send' : 'Generate';
  element('continue').hidden = chat;
  element('fresh').hidden = !chat;
  element('system-setting').hidden = !chat;
  element('keys').replaceChildren(
    ...(chat ? keys('Enter', ' sends, ') : keys('Ctrl', ' ', 'Enter', ' generates, ')),
    ...keys('Esc', ' stops'),
  );
  clearPaper();
}

/** What the box above is for. */
function label(): void {
  const text = model?.tokenizer === null ? 'Token ids to continue (this model has no tokenizer)' : 'Text to continue';
  say('prompt-label', mode === 'chat' ? 'Your message' : text);
}

/** Names of keys and words between them, by turns. */
function keys(...parts: string[]): Node[] {
  return parts.map((part, i) =>
    i % 2 === 0 ? Object.assign(document.createElement('kbd'), { textContent: part }) : document.createTextNode(part),
  );
}

function clearPaper(): void {
  output.replaceChildren();
  conversation = [];
  void conversationCache?.dispose().catch(() => {});
  conversationCache = null;
  for (const id of ['continue', 'copy']) enable(id, false);
  say('speed', '');
  say('status', 'Ready.');
  attentionClear('Generate a text first.');
}

/** Sets up the tab; what it wants of its model. */
export function startWriting(): Place {
  element('form').addEventListener('submit', (event) => {
    event.preventDefault();
    if (isEnabled('generate')) void generate();
  });
  element('generate').addEventListener('click', (event) => {
    if (!isEnabled('generate')) event.preventDefault();
  });
  prompt.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing) return;
    const wanted = mode === 'chat' ? !event.shiftKey : event.ctrlKey || event.metaKey;
    if (!wanted) return;
    event.preventDefault();
    if (isEnabled('generate')) void generate();
  });
  addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && running && !element<HTMLDialogElement>('sources').open) {
      event.preventDefault();
      running.abort();
    }
  });
  onPress('stop', () => running?.abort());
  onPress('continue', () => {
    prompt.value = output.textContent ?? '';
    void generate();
  });
  onPress('fresh', () => {
    running?.abort();
    clearPaper();
    prompt.focus();
  });
  onPress('copy', async () => {
    try {
      await navigator.clipboard.writeText(output.textContent ?? '');
      say('copied', 'Copied.');
    } catch {
      say('copied', 'This browser did not allow it.');
    }
  });
  for (const radio of document.querySelectorAll<HTMLInputElement>('input[name=mode]')) {
    radio.addEventListener('change', () => setMode(radio.value as 'text' | 'chat'));
  }
  for (const id of ['temperature', 'top-p']) input(id).addEventListener('input', () => say(`${id}-value`, input(id).value));

  startAttention();
  return {
    folder: 'moby-dick-char',
    name: 'Moby-Dick, letter by letter',
    facts: 'about',
    example: 'HuggingFaceTB/SmolLM2-135M-Instruct',
    refusal({ tasks, encoderDecoder }) {
      if (encoderDecoder) return 'It makes a new text of another. Open the tab Translate and choose it there.';
      return tasks.includes('generate') ? undefined : 'It reads texts and does not continue them.';
    },
    onModel(loaded) {
      running?.abort();
      conversationCache = null;
      model = loaded;
      const chats = loaded.tokenizer?.hasChatTemplate ?? false;
      element('mode').hidden = !chats;
      if (!chats) {
        document.querySelector<HTMLInputElement>('input[name=mode][value=text]')!.checked = true;
        setMode('text');
      }
      clearPaper();
      label();
      const hasIds = /^[\d\s,]*$/.test(prompt.value);
      if (loaded.tokenizer === null && !hasIds) prompt.value = '1 2 3';
      enable('generate', true);
      attentionModel(loaded);
    },
    onProblem(error) {
      if (!model) say('status', 'There is no model to write with.');
      showProblem(error);
    },
  };
}
