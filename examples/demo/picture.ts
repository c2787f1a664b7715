// Attention drawn by the library's own plotAttention, with a mark on the row that is read.
import { plotAttention, type Tensor } from 'wasmformer';

const svgSpace = 'http://www.w3.org/2000/svg';

/** The (T, S) weights of one head of (H, T, S), or with `head` -1 the mean over the heads. */
export function oneHead({ data, shape: [heads, rows, columns] }: Tensor, head: number): Tensor {
  const size = rows * columns;
  if (head >= 0) return { data: data.slice(head * size, (head + 1) * size), shape: [rows, columns] };
  const mean = new Float32Array(size);
  for (let h = 0; h < heads; ++h) for (let i = 0; i < size; ++i) mean[i] += data[h * size + i] / heads;
  return { data: mean, shape: [rows, columns] };
}

/** Marks what a causal model never looks at, which is then not drawn. */
export function hideLater({ data, shape: [rows, columns] }: Tensor): Tensor {
  const visible = data.slice();
  for (let row = 0; row < rows; ++row) visible.fill(Number.NaN, row * columns + row + 1, (row + 1) * columns);
  return { data: visible, shape: [rows, columns] };
}

/** The weight to draw brightest: one in a hundred is at least so large. Few weights of many keys come near 1. */
function brightest(data: Float32Array): number {
  const sorted = data.filter((weight) => !Number.isNaN(weight)).sort();
  return Math.max(0.1, Math.min(1, Math.ceil(10 * sorted[Math.floor(0.99 * (sorted.length - 1))]) / 10));
}

/** Pixels of a cell: the smallest has labels of 10 pixels. */
const [smallest, largest] = [18, 30];

/** Pixels that a picture may be wide. A panel that is not in view has columns as wide as those of the one that is. */
function roomFor(frame: HTMLElement): number {
  const room = frame.parentElement!.clientWidth - 2;
  return room > 0 ? room : document.querySelector('[role=tabpanel]:not([hidden]) .writing')!.clientWidth - 36;
}

/**
 * Draws (T, S) weights into `frame`: source tokens on x, target tokens on y. The cells are as large as the element around the
 * frame has room for; where that is too narrow, the labels stay in view while the picture is scrolled.
 * @param title what the picture shows, for those who do not see it
 */
export function drawAttention(frame: HTMLElement, weights: Tensor, source: string[], target: string[], title: string): void {
  const room = roomFor(frame);
  const max = brightest(weights.data);
  let cell = Math.min(largest, Math.floor(Math.min(room / source.length, 64 * (smallest / target.length))));
  for (;;) {
    cell = Math.max(smallest, cell);
    frame.innerHTML = plotAttention(weights, source, target, { title, cell, max });
    const over = svgOf(frame).width.baseVal.value - room;
    if (over <= 0 || cell === smallest) break;
    cell -= Math.ceil(over / source.length);
  }
  pinLabels(frame, source.length, target.length, room);
}

const svgOf = (frame: HTMLElement) => frame.querySelector('svg')!;

/** The cells, in units of one cell. */
const cells = (frame: HTMLElement) => frame.querySelector<SVGGElement>('g')!;

/** Where the cells begin, and the size of one. */
function grid(frame: HTMLElement): { left: number; top: number; cell: number } {
  const { a, e, f } = cells(frame).transform.baseVal.consolidate()!.matrix;
  return { left: e, top: f, cell: a };
}

/** Moves the title and the labels of columns and rows into pictures of their own, which the style sheet keeps at the edges of `room` pixels. */
function pinLabels(frame: HTMLElement, columns: number, rows: number, room: number): void {
  const svg = svgOf(frame);
  const { left, top, cell } = grid(frame);
  const texts = [...svg.querySelectorAll(':scope > text')];
  const { width, height } = svg.viewBox.baseVal;
  const strip = (className: string, w: number, h: number, labels: Element[]) => {
    const pinned = svg.cloneNode(false) as SVGSVGElement;
    for (const [name, value] of Object.entries({ class: className, viewBox: `0 0 ${w} ${h}`, width: w, height: h, 'aria-hidden': true })) {
      pinned.setAttribute(name, String(value));
    }
    pinned.append(...labels);
    frame.append(pinned);
  };
  strip('pinned top', width, top, texts.slice(1, columns + 1));
  strip('pinned side', left, Math.min(height, top + (rows + 0.25) * cell), texts.slice(columns + 1, columns + rows + 1));
  strip('pinned side top', left, top, []);
  strip('pinned side top title', Math.min(width, room), Number(svg.getAttribute('font-size')) * 2, texts.slice(0, 1));
}

/** The last row of a square picture that is in view whole, up to its diagonal, while nothing is scrolled. */
export function lastInView(frame: HTMLElement): number {
  const { left, top, cell } = grid(frame);
  return Math.floor((Math.min(frame.clientWidth - left, frame.clientHeight - top) - 2) / cell) - 1;
}

/** Frames a row of a square picture, and brings its diagonal into view. */
export function markRow(frame: HTMLElement, row: number, size: number, scroll: boolean): void {
  let mark = frame.querySelector('.row-mark');
  if (!mark) {
    mark = document.createElementNS(svgSpace, 'rect');
    mark.setAttribute('class', 'row-mark');
    mark.setAttribute('height', '1');
    cells(frame).append(mark);
  }
  mark.setAttribute('width', String(size));
  mark.setAttribute('y', String(row));
  if (!scroll) return;
  const { left, top, cell } = grid(frame);
  const at = row * cell;
  const near = (scrolled: number, view: number) => Math.max(Math.min(scrolled, at), at + cell + 2 - view);
  frame.scrollTop = near(frame.scrollTop, frame.clientHeight - top);
  frame.scrollLeft = near(frame.scrollLeft, frame.clientWidth - left);
}

/** The row under the pointer; none where the labels of the columns are. */
export function rowAt(frame: HTMLElement, { clientX, clientY, target }: MouseEvent): number {
  if ((target as Element).closest('.top')) return -1;
  return Math.floor(new DOMPoint(clientX, clientY).matrixTransform(cells(frame).getScreenCTM()!.inverse()).y);
}
