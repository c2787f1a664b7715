// Choosing, loading and describing a model.
import { cache, type LoadOptions, load, type Model, type ModelInfo, type Progress } from 'wasmformer';
import { element, input, onPress, say } from './page.ts';
import { about, bytes, explain, whole } from './words.ts';

type Source = Parameters<typeof load>[0];

export interface Models {
  /** Called with a model that is ready; the one before is disposed of afterwards. */
  onModel(model: Model): void;
  onProblem(error: unknown): void;
  onWarning(error: unknown): void;
}

let current: Model | null = null;
let loading: AbortController | null = null;
let handlers: Models;

const dialog = () => element<HTMLDialogElement>('sources');
/** Where the page's own model is, also when the page stands under a sub-path. */
const shippedUrl = new URL('model/', document.baseURI).href;

export function startModels(given: Models): void {
  handlers = given;
  onPress('choose', () => {
    dialog().showModal();
    void showKept();
  });
  onPress('close-sources', () => dialog().close());
  onPress('cancel-load', () => loading?.abort());
  onPress('shipped', () => {
    dialog().close();
    void loadShipped();
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
    void start(id, id, options);
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

export function loadShipped(): Promise<void> {
  return start(shippedUrl, 'Moby-Dick, letter by letter', { cacheDir: false });
}

function loadFiles(files: File[]): Promise<void> {
  const [folder, ...rest] = (files[0]?.webkitRelativePath ?? '').split('/');
  const name = rest.length > 0 ? folder : files.length === 1 ? files[0].name : 'Files from this computer';
  return start(files, name, {});
}

/** Loads a model. The one before goes on working until the new one is ready. */
async function start(source: Source, name: string, options: LoadOptions): Promise<void> {
  loading?.abort();
  const own = new AbortController();
  loading = own;
  const before = current;
  const bar = element<HTMLProgressElement>('load-progress');
  bar.removeAttribute('value');
  bar.classList.add('busy');
  element('problem').hidden = true;
  say('model-name', `Loading ${name}`);
  say('model-line', 'Looking for its files…');
  say('load-status', `Loading ${name}`);
  const focused = document.activeElement === element('choose');
  element('choose').hidden = true;
  element('cancel-load').hidden = false;
  if (focused) element('cancel-load').focus();
  const began = performance.now();
  let cached = 0;
  let sized = false;
  const onProgress = (progress: Progress) => {
    const { file, overallLoaded, overallTotal } = progress;
    // The total is worth showing once it has the weights in it.
    sized ||= /\.(safetensors|bin)$/.test(file);
    if (own.signal.aborted || !sized) return;
    if (progress.cached) cached = Math.max(cached, progress.loaded);
    if (overallTotal > 0) bar.value = Math.min(1, overallLoaded / overallTotal);
    const seconds = (performance.now() - began) / 1000;
    const fetched = overallLoaded - cached;
    const speed = seconds > 1 && fetched > 0 ? `, ${bytes(fetched / seconds)} a second` : '';
    say('model-line', `${file}: ${bytes(overallLoaded)} of ${bytes(overallTotal)}${speed}`);
  };
  try {
    const model = await load(source, { ...options, onProgress, signal: own.signal });
    current = model;
    handlers.onModel(model);
    await before?.dispose();
    await describe(name);
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    say('load-status', `${element('model-name').textContent} is ready after ${seconds} seconds.`);
    for (const warning of model.info().warnings) handlers.onWarning(warning);
  } catch (error) {
    if (loading !== own) return;
    say('load-status', own.signal.aborted ? 'Loading was cancelled.' : 'Loading failed.');
    if (!own.signal.aborted) handlers.onProblem(error);
    if (current) await describe(currentName);
    else {
      say('model-name', 'No model yet');
      say('model-line', 'Choose one to begin.');
    }
  } finally {
    if (loading === own) {
      const focused = document.activeElement === element('cancel-load');
      loading = null;
      bar.classList.remove('busy');
      element('choose').hidden = false;
      element('cancel-load').hidden = true;
      if (focused) element('choose').focus();
    }
  }
}

let currentName = '';

/** Fills the line at the top and the table at the side. */
async function describe(name: string): Promise<void> {
  if (!current) return;
  currentName = name;
  const info = current.info();
  const memory = await current.memory();
  say('model-name', name);
  say('model-line', `${info.architecture}, ${about(info.parameters)} parameters, ${bytes(memory.total)} of memory`);
  const rows = facts(info).concat([
    ['Weights in memory', `${bytes(memory.weights)} (${info.dtype})`],
    ['Memory in all', bytes(memory.total)],
    ['Memory a token', bytes(info.memory.cachePerToken)],
    ['Arithmetic', `${info.simd.level}: ${info.simd.reason}`],
    ['Threads', `${info.threads.count}: ${info.threads.reason}`],
  ]);
  if (info.commit) rows.push(['Version', info.commit.slice(0, 12)]);
  element('about').replaceChildren(
    ...rows.map(([term, text]) => {
      const row = document.createElement('div');
      row.append(Object.assign(document.createElement('dt'), { textContent: term }));
      row.append(Object.assign(document.createElement('dd'), { textContent: text }));
      return row;
    }),
  );
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
    ['Layers', String(info.layers)],
    ['Heads', info.heads === info.kvHeads ? String(info.heads) : `${info.heads}, sharing keys and values of ${info.kvHeads}`],
    ['Width', whole(info.hiddenSize)],
    ['Vocabulary', `${whole(info.vocabSize)} tokens`],
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
        await cache.clear(id).catch(handlers.onProblem);
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
      if (files.length > 0) await start(files, items.length === 1 ? items[0].name : 'Files from this computer', {});
    } catch (error) {
      handlers.onProblem(error);
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
    element('prompt').focus();
  });
  const text = (tag: string, content: string, className = '') =>
    Object.assign(document.createElement(tag), { textContent: content, className });
  box.replaceChildren(text('strong', meaning), ...(advice ? [text('p', advice)] : []), text('p', detail, 'quiet'), close);
  box.hidden = false;
}
