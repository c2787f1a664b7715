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

/**
 * Draws (T, S) weights into `frame`: source tokens on x, target tokens on y.
 * @param title what the picture shows, for those who do not see it
 */
export function drawAttention(frame: HTMLElement, weights: Tensor, source: string[], target: string[], title: string): void {
  const cell = Math.max(10, Math.min(24, Math.floor((frame.clientWidth - 64) / source.length)));
  frame.innerHTML = plotAttention(weights, source, target, { title, cell, max: brightest(weights.data) });
}

/** The cells, in units of one cell. */
const cells = (frame: HTMLElement) => frame.querySelector<SVGGElement>('g')!;

/** Frames a row of a square picture, and brings its diagonal into view. */
export function markRow(frame: HTMLElement, row: number, size: number, scroll: boolean): void {
  let mark = frame.querySelector('rect');
  if (!mark) {
    mark = document.createElementNS(svgSpace, 'rect');
    mark.setAttribute('class', 'row-mark');
    mark.setAttribute('height', '1');
    cells(frame).append(mark);
  }
  mark.setAttribute('width', String(size));
  mark.setAttribute('y', String(row));
  if (!scroll) return;
  const [outer, inner] = [frame, mark].map((one) => one.getBoundingClientRect());
  frame.scrollTop += inner.top - outer.top - outer.height / 2;
  frame.scrollLeft += inner.left + (inner.width * row) / size - outer.left - outer.width / 2;
}

/** The row under the pointer. */
export function rowAt(frame: HTMLElement, { clientX, clientY }: MouseEvent): number {
  return Math.floor(new DOMPoint(clientX, clientY).matrixTransform(cells(frame).getScreenCTM()!.inverse()).y);
}
