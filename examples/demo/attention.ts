// A first look inside: what each token of the text attends to, in one head of one layer.
import type { Model, Tensor } from 'wasmformer';
import { element, input, say } from './page.ts';
import { drawAttention, hideLater, lastInView, markRow, oneHead, rowAt } from './picture.ts';
import { explain, percent, plural } from './words.ts';

/** Tokens shown. No token sees those after it, so a text's beginning shows the same as the whole would. */
const most = 128;

let model: Model | null = null;
let ids: number[] = [];
let names: string[] = [];
let weights: Tensor | null = null;
let running: AbortController | null = null;

const select = (id: string) => element<HTMLSelectElement>(id);

/** Takes over a model that has just been loaded. */
export function attentionModel(loaded: Model): void {
  model = loaded;
  const { layers, heads } = loaded.info();
  for (const [id, count] of [
    ['layer', layers],
    ['head', heads],
  ] as const) {
    select(id).replaceChildren(...Array.from({ length: count }, (_, i) => new Option(String(i))));
  }
  attentionClear('Generate a text first.');
}

/** Forgets the text. */
export function attentionClear(why: string): void {
  running?.abort();
  weights = null;
  ids = [];
  element('views').hidden = true;
  say('inside-status', why);
}

/** Takes a text: all its tokens, the prompt's too. */
export async function attentionText(tokenIds: number[]): Promise<void> {
  ids = tokenIds.slice(0, most);
  names = [];
  input('token').max = String(ids.length - 1);
  await compute();
}

async function compute(): Promise<void> {
  if (!model || ids.length === 0 || !element<HTMLDetailsElement>('inside').open) return;
  running?.abort();
  const own = new AbortController();
  running = own;
  try {
    const layer = Number(select('layer').value);
    const head = Number(select('head').value);
    const [{ attentions }] = await model.forward(
      { inputIds: [ids] },
      { attentions: { layers: [layer], heads: [head] }, signal: own.signal },
    );
    const fresh = names.length === 0;
    const found = fresh ? await tokenNames(model, ids) : names;
    if (own.signal.aborted) return;
    names = found;
    weights = attentions![0];
    say('inside-status', `The first ${plural(ids.length, 'token')} of the text above.`);
    element('views').hidden = false;
    draw();
    if (fresh) {
      // A text is looked at from its beginning, where most of the picture in view is filled.
      element('map').scrollTo(0, 0);
      input('token').value = String(Math.max(0, lastInView(element('map'))));
    }
    showRow();
  } catch (error) {
    if (own.signal.aborted) return;
    const { meaning, detail } = explain(error);
    attentionClear(`${meaning} ${detail}`);
  }
}

/** Each token as text of its own; a token that is part of a character shows as a dot. */
async function tokenNames(model: Model, ids: number[]): Promise<string[]> {
  if (!model.tokenizer) return ids.map((id) => ` ${id}`);
  const kinds = [...new Set(ids)];
  const texts = await model.decode(
    kinds.map((id) => [id]),
    { skipSpecialTokens: false },
  );
  const byId = new Map(kinds.map((id, i) => [id, texts[i].replaceAll('\uFFFD', '·')]));
  return ids.map((id) => byId.get(id)!);
}

/** The weight with which `row` attends to `column`. */
function weight(row: number, column: number): number {
  const [, , columns] = weights!.shape;
  return weights!.data[row * columns + column];
}

function glow(): string {
  return getComputedStyle(document.documentElement).getPropertyValue('--glow').trim();
}

/** Draws the picture of one head. */
function draw(): void {
  if (!weights) return;
  const shown = hideLater(oneHead(weights, 0));
  const labels = model?.tokenizer ? names : ids.map(String);
  drawAttention(element('map'), shown, labels, labels, `Layer ${select('layer').value}, head ${select('head').value}`);
}

function quoted(name: string): string {
  if (name === ' ') return 'a space';
  if (name === '\n') return 'a line break';
  return `“${name.replaceAll('\n', '↵').trim() || name}”`;
}

/** Shows what one token takes from which; again when the colours have changed. `scroll`: the picture follows. */
export function showRow(scroll = true): void {
  if (!weights) return;
  const row = Number(input('token').value);
  const size = ids.length;
  markRow(element('map'), row, size, scroll);

  const rgb = glow();
  element('tokens').replaceChildren(
    ...names.map((name, column) => {
      const token = document.createElement('span');
      token.textContent = name.replaceAll('\n', '↵\n') || '·';
      if (column > row) token.className = 'later';
      else token.style.backgroundColor = `rgb(${rgb} / ${(0.85 * Math.sqrt(weight(row, column))).toFixed(3)})`;
      if (column === row) token.className = 'chosen';
      token.dataset.column = String(column);
      return token;
    }),
  );

  const best = Array.from({ length: row + 1 }, (_, column) => column)
    .sort((a, b) => weight(row, b) - weight(row, a))
    .slice(0, 3)
    .filter((column) => weight(row, column) >= 0.005);
  const where = (column: number) => (column === row ? 'itself' : `${quoted(names[column])}, ${plural(row - column, 'token')} back`);
  const sentence = `Token ${row + 1}, ${quoted(names[row])}, takes ${best
    .map((column) => `${percent(weight(row, column))} from ${where(column)}`)
    .join('; ')}.`;
  const sink =
    row > 4 && weight(row, 0) > 0.5 ? ' Much weight on the very first token often means that the head found nothing to do here.' : '';
  say('sentence', sentence + sink);
  input('token').setAttribute('aria-valuetext', sentence);
}

function choose(row: number, scroll = true): void {
  input('token').value = String(Math.max(0, Math.min(ids.length - 1, row)));
  showRow(scroll);
}

export function startAttention(): void {
  for (const id of ['layer', 'head']) select(id).addEventListener('change', () => void compute());
  element('inside').addEventListener('toggle', () => {
    if (!weights) void compute();
  });
  input('token').addEventListener('input', () => showRow());
  const map = element('map');
  for (const type of ['pointermove', 'pointerdown'] as const) {
    map.addEventListener(type, (event) => {
      const row = weights && rowAt(map, event);
      if (row !== null && row >= 0 && row < ids.length) choose(row, false);
    });
  }
  element('tokens').addEventListener('click', (event) => {
    const { column } = (event.target as HTMLElement).dataset;
    if (column) choose(Number(column));
  });
}
