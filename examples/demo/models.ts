// Choosing, loading and describing models: one for each tab.
import { cache, inspect, type LoadOptions, load, type Model, type ModelInfo, type Progress } from 'wasmformer';
import { element, input, mainField, onPress, say } from './page.ts';
import { about, bytes, explain, plural, whole } from './words.ts';
import { unzip } from './zip.ts';

type Source = Parameters<typeof load>[0];

/** What a tab wants of its model, and what it does with it. */
export interface Place {
  /** The model that comes with the page: its folder under models/, and what to call it. */
  folder: string;
  name: string;
  /** The id of the list that describes the model. */
  facts: string;
  /** An example of a model on the Hub. */
  example: string;
  /** What every model here is loaded with. */
  options?: LoadOptions;
  /** What to do where there is no model; without it the one that comes with the page is loaded when the tab is opened. */
  invitation?: string;
  /** Why a model will not do here, or nothing. */
  refusal(info: Pick<ModelInfo, 'tasks' | 'encoderDecoder'>): string | undefined;
  /** Called with a model that is ready, and the files it came in if it did; the one before is disposed of afterwards. */
  onModel(model: Model, shipped: boolean, files: File[]): void;
  onProblem(error: unknown): void;
}

/** What the bar at the top says; `progress` from 0 to 1, or null where it is not known. */
interface Bar {
  title: string;
  line: string;
  status: string;
  progress: number | null;
}

/** A tab's model and the loading of the next. What it says stands in the bar at the top while its tab is open. */
class Loader {
  readonly place: Place;
  #model: Model | null = null;
  #name = '';
  #loading: AbortController | null = null;
  #bar: Bar;

  constructor(place: Place) {
    this.place = place;
    this.#bar = { title: 'No model yet', line: place.invitation ?? '\u00a0', status: '', progress: null };
  }

  /** Whether the model that comes with the page is to be loaded. */
  get idle(): boolean {
    return !this.#model && !this.#loading && this.place.invitation === undefined;
  }

  cancel(): void {
    this.#loading?.abort();
  }

  #say(change: Partial<Bar>): void {
    Object.assign(this.#bar, change);
    this.show();
  }

  /** Fills the bar, if this tab is open. */
  show(): void {
    if (shown !== this) return;
    const { title, line, status, progress } = this.#bar;
    say('model-name', title);
    say('model-line', line);
    say('load-status', status);
    const bar = element<HTMLProgressElement>('load-progress');
    bar.classList.toggle('busy', this.#loading !== null);
    if (progress === null) bar.removeAttribute('value');
    else bar.value = progress;
    const [gone, come] = this.#loading ? ['choose', 'cancel-load'] : ['cancel-load', 'choose'];
    const focused = document.activeElement === element(gone);
    element(gone).hidden = true;
    element(come).hidden = false;
    if (focused) element(come).focus();
  }

  shipped(): Promise<void> {
    // The folder stands beside the page, also when that is under a sub-path.
    const { folder, name } = this.place;
    return this.start(new URL(`models/${folder}/`, document.baseURI).href, name, { cacheDir: false }, true);
  }

  /** Loads a model. The one before goes on working until the new one is ready. */
  async start(source: Source, name: string, options: LoadOptions, shipped = false): Promise<void> {
    this.#loading?.abort();
    const own = new AbortController();
    const { signal } = own;
    this.#loading = own;
    element('problem').hidden = true;
    this.#say({ title: `Loading ${name}`, line: 'Looking for its files…', status: `Loading ${name}`, progress: null });
    const began = performance.now();
    let cached = 0;
    let sized = false;
    const onProgress = (progress: Progress) => {
      const { file, overallLoaded, overallTotal } = progress;
      // The total is worth showing once it has the weights in it.
      sized ||= /\.(safetensors|bin)$/.test(file);
      if (signal.aborted || !sized) return;
      if (progress.cached) cached = Math.max(cached, progress.loaded);
      const seconds = (performance.now() - began) / 1000;
      const fetched = overallLoaded - cached;
      const speed = seconds > 1 && fetched > 0 ? `, ${bytes(fetched / seconds)} a second` : '';
      this.#say({
        line: `${file}: ${bytes(overallLoaded)} of ${bytes(overallTotal)}${speed}`,
        progress: overallTotal > 0 ? Math.min(1, overallLoaded / overallTotal) : this.#bar.progress,
      });
    };
    try {
      // Known before the weights are downloaded.
      if (!shipped) this.#check(await inspect(source, { ...options, signal }));
      const model = await load(source, { ...options, ...this.place.options, onProgress, signal });
      await this.#replace(model, name, shipped, Array.isArray(source) ? source.filter((file) => file instanceof File) : []);
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      this.#say({ status: `${name} is ready after ${seconds} seconds.` });
      for (const warning of model.info().warnings) showProblem(warning);
    } catch (error) {
      if (this.#loading !== own) return;
      this.#say({ status: signal.aborted ? 'Loading was cancelled.' : 'Loading failed.' });
      if (!signal.aborted) this.place.onProblem(error);
      if (this.#model) await this.#describe();
      else this.#say({ title: 'No model yet', line: this.place.invitation ?? 'Choose one to begin.' });
    } finally {
      if (this.#loading === own) {
        this.#loading = null;
        this.show();
      }
    }
  }

  /** Takes over a model that the tab made. */
  async take(model: Model, name: string): Promise<void> {
    this.#loading?.abort();
    await this.#replace(model, name, false, []);
  }

  async #replace(model: Model, name: string, shipped: boolean, files: File[]): Promise<void> {
    const before = this.#model;
    this.#model = model;
    this.#name = name;
    this.place.onModel(model, shipped, files);
    await before?.dispose();
    await this.#describe();
  }

  #check(info: Pick<ModelInfo, 'tasks' | 'encoderDecoder'>): void {
    const message = this.place.refusal(info);
    if (message) throw Object.assign(new Error(message), { code: 'elsewhere' });
  }

  /** Says anew what the model takes, unless the next is on its way. */
  async refresh(): Promise<void> {
    if (!this.#loading) await this.#describe();
  }

  /** The line at the top and the table at the side. */
  async #describe(): Promise<void> {
    const model = this.#model;
    if (!model) return;
    const info = model.info();
    const memory = await model.memory();
    this.#say({
      title: this.#name,
      line: `${info.architecture}, ${about(info.parameters)} parameters, ${bytes(memory.total)} of memory`,
    });
    const rows = facts(info).concat([
      ['Weights in memory', `${bytes(memory.weights)} (${info.dtype})`],
      ['Memory in all', bytes(memory.total)],
      ['Memory a token', bytes(info.memory.cachePerToken)],
      ['Arithmetic', `${info.simd.level}: ${info.simd.reason}`],
      ['Threads', `${info.threads.count}: ${info.threads.reason}`],
    ]);
    if (info.commit) rows.push(['Version', info.commit.slice(0, 12)]);
    element(this.place.facts).replaceChildren(
      ...rows.map(([term, text]) => {
        const row = document.createElement('div');
        row.append(Object.assign(document.createElement('dt'), { textContent: term }));
        row.append(Object.assign(document.createElement('dd'), { textContent: text }));
        return row;
      }),
    );
  }
}

let shown: Loader;
const loaders = new Map<string, Loader>();
const dialog = () => element<HTMLDialogElement>('sources');

/** Shows the model of a tab, and loads the one that came with the page if it has none yet. */
export function showModelOf(tab: string): void {
  shown = loaders.get(tab)!;
  shown.show();
  element('problem').hidden = true;
  input('hub-id').placeholder = shown.place.example;
  say('shipped-name', shown.place.name);
  if (shown.idle) void shown.shipped();
}

/** Gives a tab a model that it made. */
export function takeModel(tab: string, model: Model, name: string): Promise<void> {
  return loaders.get(tab)!.take(model, name);
}

/** Says anew what a tab's model takes. */
export function describeModel(tab: string): Promise<void> {
  return loaders.get(tab)!.refresh();
}

/** @param places by the ids of their tabs */
export function startModels(places: Record<string, Place>): void {
  for (const [tab, place] of Object.entries(places)) loaders.set(tab, new Loader(place));
  onPress('choose', () => {
    dialog().showModal();
    void showKept();
  });
  onPress('close-sources', () => dialog().close());
  onPress('cancel-load', () => shown.cancel());
  onPress('shipped', () => {
    dialog().close();
    void shown.shipped();
  });
  element('hub').addEventListener('submit', (event) => {
    event.preventDefault();
    dialog().close();
    const options: LoadOptions = {};
    if (input('hub-revision').value.trim()) options.revision = input('hub-revision').value.trim();
    if (input('hub-token').value.trim()) options.token = input('hub-token').value.trim();
    if (input('hub-endpoint').value.trim()) options.endpoint = input('hub-endpoint').value.trim();
    if (input('hub-dtype').value) options.dtype = input('hub-dtype').value as LoadOptions['dtype'];
    const id = input('hub-id').value.trim();
    void shown.start(id, id, options);
  });
  for (const id of ['folder', 'files']) {
    input(id).addEventListener('change', () => {
      dialog().close();
      void loadFiles([...input(id).files!]);
      input(id).value = '';
    });
  }
  startDrop();
}

/** Loads files, or those in an archive, into the open tab. */
export async function loadFiles(files: File[], called?: string): Promise<void> {
  const [folder, ...rest] = (files[0]?.webkitRelativePath ?? '').split('/');
  const name = called ?? (rest.length > 0 ? folder : files.length === 1 ? files[0].name : 'Files from this computer');
  const archive = files.length === 1 && /\.zip$/i.test(files[0].name);
  try {
    await shown.start(archive ? await unzip(files[0]) : files, name.replace(/\.zip$/i, ''), {});
  } catch (error) {
    showProblem(error);
  }
}

/** The layers and heads, of an encoder-decoder those of both. */
function stacks({ encoderDecoder, encoderLayers, encoderHeads, layers, heads, kvHeads }: ModelInfo): [string, string][] {
  if (!encoderDecoder) {
    return [
      ['Layers', String(layers)],
      ['Heads', heads === kvHeads ? String(heads) : `${heads}, sharing keys and values of ${kvHeads}`],
    ];
  }
  const stack = (name: string, depth = 0, width = 0): [string, string][] =>
    depth > 0 ? [[name, `${plural(depth, 'layer')}, ${plural(width, 'head')}`]] : [];
  return [...stack('Encoder', encoderLayers, encoderHeads), ...stack('Decoder', layers, heads)];
}

function facts(info: ModelInfo): [string, string][] {
  const positions: Record<string, string> = {
    learned: 'learnt table',
    rope: 'rotary',
    alibi: 'linear biases',
    sinusoidal: 'sine waves',
  };
  return [
    ['Architecture', info.architecture],
    ['Parameters', whole(info.parameters)],
    ...stacks(info),
    ['Width', whole(info.hiddenSize)],
    [
      'Vocabulary',
      info.sourceVocabSize && info.sourceVocabSize !== info.vocabSize
        ? `${whole(info.sourceVocabSize)} tokens read, ${whole(info.vocabSize)} written`
        : `${whole(info.vocabSize)} tokens`,
    ],
    ['Context', info.contextLength ? `${whole(info.contextLength)} tokens${info.contextIsWall ? '' : ', can be passed'}` : 'not stated'],
    ['Positions', positions[info.positions] ?? info.positions],
  ];
}

/** Lists what this browser keeps, with buttons to load and to remove it. */
async function showKept(): Promise<void> {
  const list = element<HTMLUListElement>('kept');
  let found: Awaited<ReturnType<typeof cache.list>> = [];
  try {
    found = await cache.list();
  } catch {}
  const sizes = new Map<string, number>();
  for (const { id, size } of found) sizes.set(id, (sizes.get(id) ?? 0) + size);
  element('kept-none').hidden = sizes.size > 0;
  list.replaceChildren(
    ...[...sizes].map(([id, size]) => {
      const item = document.createElement('li');
      const remove = Object.assign(document.createElement('button'), { type: 'button', textContent: 'Remove' });
      remove.setAttribute('aria-label', `Remove ${id}`);
      remove.addEventListener('click', async () => {
        await cache.clear(id).catch(showProblem);
        await showKept();
        element('close-sources').focus();
      });
      item.append(
        Object.assign(document.createElement('span'), { textContent: id }),
        Object.assign(document.createElement('span'), { textContent: bytes(size), className: 'quiet' }),
        remove,
      );
      return item;
    }),
  );
}

function startDrop(): void {
  const cover = element('drop');
  let depth = 0;
  const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes('Files') ?? false;
  addEventListener('dragenter', (event) => {
    if (hasFiles(event)) cover.classList.toggle('over', ++depth > 0);
  });
  addEventListener('dragleave', (event) => {
    if (hasFiles(event)) cover.classList.toggle('over', --depth > 0);
  });
  addEventListener('dragover', (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  addEventListener('drop', async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    cover.classList.remove('over');
    if (dialog().open) dialog().close();
    // Items are gone once the event is over: they are taken before anything is awaited.
    const items = [...event.dataTransfer!.items].map((item) => item.webkitGetAsEntry() ?? item.getAsFile()).filter((item) => item !== null);
    try {
      const files = (await Promise.all(items.map(filesIn))).flat();
      if (files.length > 0) await loadFiles(files, items.length === 1 ? items[0].name : undefined);
    } catch (error) {
      showProblem(error);
    }
  });
}

/** The files of a dropped folder, not those of folders in it; or the one dropped file. */
async function filesIn(entry: FileSystemEntry | File): Promise<File[]> {
  if (entry instanceof File) return [entry];
  const file = (one: FileSystemFileEntry) => new Promise<File>((resolve, reject) => one.file(resolve, reject));
  if (entry.isFile) return [await file(entry as FileSystemFileEntry)];
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: File[] = [];
  for (;;) {
    const batch = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (batch.length === 0) return found;
    for (const inner of batch) if (inner.isFile) found.push(await file(inner as FileSystemFileEntry));
  }
}

/** A problem as words, in the box kept for it. */
export function showProblem(error: unknown): void {
  const { meaning, advice, detail } = explain(error);
  const box = element('problem');
  const close = Object.assign(document.createElement('button'), { type: 'button', textContent: 'All right' });
  close.addEventListener('click', () => {
    box.hidden = true;
    mainField().focus();
  });
  const text = (tag: string, content: string, className = '') =>
    Object.assign(document.createElement(tag), { textContent: content, className });
  box.replaceChildren(text('strong', meaning), ...(advice ? [text('p', advice)] : []), text('p', detail, 'quiet'), close);
  box.hidden = false;
}
