import { WasmformerError } from './errors.ts';
import { tensorFrom } from './ops.ts';
import { checkOptions, isArrayOf, reading } from './options.ts';
import type { PlotOptions, TensorLike } from './types.ts';

const where = 'plotAttention';

/** Viridis (Smith, van der Walt 2015, CC0): seventeen of its colours; linear between them, at most 6 of 255 off. */
const viridis = '44015448186a472d7b4240863b528b33638d2c728e26828e21918c1f9f8827ad813dbc745cc86381d34daadc32d5e21afde725'
  .match(/../g)
  ?.map((hex) => Number.parseInt(hex, 16)) as number[];
const steps = 16;

/** The colour of a number from 0 to 1. */
function colour(value: number): string {
  const at = steps * Math.min(1, Math.max(0, value));
  const first = Math.min(steps - 1, Math.floor(at));
  let text = '#';
  for (let i = first * 3; i < first * 3 + 3; ++i) {
    text += Math.round(viridis[i] + (viridis[i + 3] - viridis[i]) * (at - first))
      .toString(16)
      .padStart(2, '0');
  }
  return text;
}

const escaped = (text: string) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

/** A token as it can be read: spaces and what has no picture of its own are written out, a mark without a letter gets a circle. */
function visible(token: string): string {
  return (
    token
      // The joiners U+200C and U+200D shape what is around them, so they stay unless they are all there is.
      .replace(
        /[\0- \x7f-\xa0\xad\u1680\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufffe\uffff\p{Cs}]|^[\u200c\u200d]+$/gu,
        (c) => {
          if (c === ' ') return '\u2423';
          const code = c.charCodeAt(0);
          return code < 32 ? JSON.stringify(c).slice(1, -1) : `\\u${code.toString(16).padStart(4, '0')}`;
        },
      )
      .replace(/^\p{M}/u, '\u25cc$&') || '\u2205'
  );
}

/** A title, whose spaces are no more than that. */
const plain = (title: string) => visible(title).replaceAll('\u2423', ' ');

/** What a label takes in a line, in ems, roughly: ideographs and emoji are as wide as they are high, capitals wider than other letters, and marks take nothing. */
function widthOf(text: string): number {
  const count = (pattern: RegExp) => text.match(pattern)?.length ?? 0;
  return (
    0.62 * count(/[^\p{M}\u200c\u200d]/gu) +
    0.45 * count(/[\u1100-\u11ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uff60]|[^\0-\uffff]/gu) +
    0.14 * count(/\p{Lu}/gu)
  );
}

/** The beginning of what is too long for a label; it is not cut within a character, unless that is a heap of marks. */
function shortened(text: string): string {
  const head = text.slice(0, 600).replace(/[\ud800-\udbff]$/, '');
  // Engines that lack it may cut between a letter and its mark.
  const characters = Intl.Segmenter ? Array.from(new Intl.Segmenter().segment(head), ({ segment }) => segment) : Array.from(head);
  return characters.length > 24 || head !== text ? `${characters.slice(0, 23).join('')}\u2026` : text;
}

/**
 * Draws attention weights as an SVG: source tokens on x, target tokens on y, viridis from 0 (dark) to `max` (bright). Pure and
 * synchronous, in Node and in a page. Text and lines have the colour of the text around the picture, so it suits light and dark
 * pages. Up to 4096 cells have tooltips. Spaces, control characters and such in tokens are made visible.
 * @param weights (T, S), or (H, T, S) for one picture a head: rows are targets, columns sources
 * @param source S tokens, the keys
 * @param target T tokens, the queries
 * @returns the text of an `<svg>` element
 */
export function plotAttention(weights: TensorLike, source: readonly string[], target: readonly string[], options?: PlotOptions): string {
  return reading(where, () => {
    const expect = (fits: boolean, what: string, expected: unknown, got: unknown) => {
      if (!fits) throw new WasmformerError('invalid-argument', `[${where}] ${what}: expected ${expected}, got ${got}`);
    };
    const { data, shape } = tensorFrom(where, 'weights', weights);
    expect(shape.length === 2 || shape.length === 3, 'weights', '(T, S) or (H, T, S)', `(${shape.join(', ')})`);
    const [T, S] = shape.slice(-2);
    const H = shape.length > 2 ? shape[0] : 1;
    const {
      title = '',
      titles,
      cell = 24,
      max = 1,
      columns = Math.ceil(Math.sqrt(H)),
    } = checkOptions(where, options, ['title', 'titles', 'cell', 'max', 'columns']);
    expect(T * S * H > 0 && data.length === T * S * H, 'weights', `${T * S * H} numbers, at least one`, data.length);
    const isString = (value: unknown) => typeof value === 'string';
    const counted = (list: readonly string[], what: string, count: number) =>
      expect(isArrayOf(list, isString) && list.length === count, what, `an array of ${count} strings`, list?.length);
    expect(isString(title), 'title', 'a string', typeof title);
    counted(source, 'source', S);
    counted(target, 'target', T);
    const heads = titles ?? (shape.length > 2 ? Array.from({ length: H }, (_, h) => `head ${h}`) : ['']);
    counted(heads, 'titles', H);
    for (const [name, value] of Object.entries({ cell, max, columns }))
      expect(Number.isFinite(value) && value > 0, name, 'a number above 0', typeof value === 'number' ? value : typeof value);
    const across = Math.ceil(columns);

    const size = Math.max(5, Math.min(14, cell * 0.58));
    const n = (value: number) => +value.toFixed(2);
    const text = (label: string, x: number, y: number, anchor: string, more = '') => {
      const short = shortened(label);
      return (
        `<text x="${n(x)}" y="${n(y)}" dy=".35em" text-anchor="${anchor}" unicode-bidi="plaintext"${more}>` +
        `${short === label ? '' : `<title>${escaped(label)}</title>`}${escaped(short)}</text>`
      );
    };
    const square = (x: number, y: number, value: number, tip = '') =>
      `<path d="M${x} ${y}h1v1H${x}z" fill="${colour(value / max)}"${tip ? `><title>${escaped(tip)}</title></path>` : '/>'}`;
    const line = Math.ceil(size * 2);
    const [xs, ys] = [source, target].map((tokens) => tokens.map(visible));
    const longest = (labels: string[]) => Math.max(...labels.map((label) => widthOf(shortened(label)))) * size;

    // Labels of the source lie flat where they fit above their column, otherwise they climb to the right.
    const flat = longest(xs) <= cell;
    const climb = Math.ceil(flat ? size * 1.4 : longest(xs) * Math.SQRT1_2 + size);
    const left = Math.ceil(longest(ys) + size);
    const top = climb + (heads[0] ? line : 0);
    const width = Math.ceil(left + Math.max(S * cell, (S - 0.5) * cell + (flat ? 0 : climb)) + size);
    const height = Math.ceil(top + T * cell + size);
    const header = title ? line : 0;
    const [wide, high] = [
      Math.max(width * Math.min(across, H), Math.ceil(left + 150 + size * 4), Math.ceil(widthOf(title) * size * 1.2)),
      header + height * Math.ceil(H / across) + line,
    ];
    const parts = [
      `<svg xmlns="http://www.w3.org/2000/svg" role="img" direction="ltr" viewBox="0 0 ${wide} ${high}" ` +
        `width="${wide}" height="${high}" font-family="sans-serif" font-size="${n(size)}" fill="currentColor">` +
        `<title>${escaped(plain(title || 'Attention'))}</title>` +
        `<desc>Attention weights of ${T} target tokens (rows) over ${S} source tokens (columns)${H > 1 ? ` in ${H} heads` : ''}.</desc>`,
    ];
    if (title) parts.push(text(plain(title), size, size, 'start', ' font-weight="bold"'));
    for (let h = 0; h < H; ++h) {
      const x = left + (h % across) * width;
      const y = header + top + Math.floor(h / across) * height;
      if (heads[h]) parts.push(text(plain(heads[h]), x + (S * cell) / 2, y - climb - size * 0.8, 'middle'));
      xs.forEach((label, s) => {
        const [at, above] = [x + (s + 0.5) * cell, y - size * 0.6];
        parts.push(
          flat ? text(label, at, above, 'middle') : text(label, at, above, 'start', ` transform="rotate(-45 ${n(at)} ${n(above)})"`),
        );
      });
      parts.push(...ys.map((label, t) => text(label, x - size * 0.4, y + (t + 0.5) * cell, 'end')));
      parts.push(`<g transform="translate(${n(x)} ${n(y)})scale(${cell})" shape-rendering="crispEdges">`);
      for (let t = 0; t < T; ++t) {
        for (let s = 0; s < S; ++s) {
          const value = data[(h * T + t) * S + s];
          if (!Number.isNaN(value))
            parts.push(square(s, t, value, data.length > 4096 ? '' : `${ys[t]} \u2190 ${xs[s]}: ${+value.toPrecision(3)}`));
        }
      }
      parts.push('</g>');
    }
    const bottom = high - size * 1.3;
    parts.push(
      text('0', left - size * 0.4, bottom, 'end'),
      `<g transform="translate(${left} ${n(bottom - size / 2)})scale(4 ${n(size)})">`,
    );
    for (let i = 0; i <= 32; ++i) parts.push(square(i, 0, (i / 32) * max));
    parts.push('</g>', text(`${max}`, left + 33 * 4 + size * 0.4, bottom, 'start'), '</svg>');
    return parts.join('');
  });
}
