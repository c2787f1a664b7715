// The report as a picture: how many times faster than each peer, and time by length. Readable on light and dark pages.
import { digits } from './stats.mjs';

const escaped = (text) => text.replace(/[&<>]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[c]);
const style = `
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .small { font-size: 11px; fill: #57606a; }
  .title { font-weight: 600; font-size: 13px; }
  .grid { stroke: #d0d7de; }
  .one { stroke: #57606a; }
  .met { fill: #1f77b4; } .missed { fill: #d1672c; }
  .floor { stroke: #24292f; stroke-width: 2; }
  .attention { stroke: #1f77b4; fill: none; stroke-width: 2; } .feed { stroke: #d1672c; fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .grid { stroke: #3d444d; } .one { stroke: #9198a1; } .floor { stroke: #e6edf3; }
    .met { fill: #58a6ff; } .missed { fill: #f0883e; } .attention { stroke: #58a6ff; } .feed { stroke: #f0883e; }
  }`;

/** Powers of ten, and their double and fivefold, within a range. */
export function ticks(low, high) {
  const list = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power)
    for (const step of [1, 2, 5])
      if (step * 10 ** power >= low * 0.999 && step * 10 ** power <= high * 1.001) list.push(step * 10 ** power);
  return list.map((tick) => Number(tick.toPrecision(3)));
}

const scale = (low, high, from, to) => (value) => from + ((to - from) * Math.log(value / low)) / Math.log(high / low);

/** Bars from 1 to each ratio, on a logarithmic axis, with its floor as a mark. */
function ratios(judged, width) {
  const shown = judged.filter(({ value, least, theirs }) => value !== undefined && least && /^(wasm|onnx|trans|wllama)/.test(theirs));
  const [left, top, line] = [460, 34, 20];
  const values = shown.flatMap(({ value, floor }) => [value, floor]);
  const [low, high] = [Math.min(0.5, ...values) * 0.95, Math.max(2, ...values) * 1.3];
  const x = scale(low, high, left, width - 20);
  const height = top + shown.length * line + 26;
  const parts = [`<text class="title" x="0" y="14">Times faster than the peer in the same run; the mark is the floor</text>`];
  for (const tick of ticks(low, high)) {
    parts.push(`<line class="${tick === 1 ? 'one' : 'grid'}" x1="${x(tick)}" x2="${x(tick)}" y1="${top - 8}" y2="${height - 18}"/>`);
    parts.push(`<text class="small" text-anchor="middle" x="${x(tick)}" y="${height - 4}">${tick}</text>`);
  }
  shown.forEach(({ title, what, ours, theirs, value, floor, met }, i) => {
    const y = top + i * line;
    const label = `${ours.replace(/^(wasmformer|kernels) /, '')}, ${what} : ${theirs}`;
    const [from, to] = [x(1), x(value)].sort((a, b) => a - b);
    parts.push(`<g><title>${escaped(`${title}, ${label}: ${digits(value)} (floor ${floor})`)}</title>`);
    parts.push(
      `<text x="${left - 8}" y="${y + 11}" text-anchor="end">${escaped(title)} <tspan class="small">${escaped(label)}</tspan></text>`,
    );
    parts.push(`<rect class="${met ? 'met' : 'missed'}" x="${from}" y="${y + 2}" width="${Math.max(1, to - from)}" height="11" rx="1"/>`);
    parts.push(`<line class="floor" x1="${x(floor)}" x2="${x(floor)}" y1="${y}" y2="${y + 15}"/>`);
    parts.push(`<text class="small" x="${Math.max(to, x(floor)) + 5}" y="${y + 11}">${digits(value)}</text></g>`);
  });
  return { height, parts };
}

/** Two curves over the number of tokens, both axes logarithmic. */
function scaling(curves, width) {
  const { lengths, attention, feedForward, crossing } = curves;
  const [left, top, height] = [60, 34, 260];
  const values = [...attention, ...feedForward];
  const x = scale(lengths[0], lengths.at(-1), left, width - 130);
  const [low, high] = [Math.min(...values) / 1.5, Math.max(...values) * 1.5];
  const y = scale(low, high, height - 30, top);
  const parts = [
    '<text class="title" x="0" y="14">Milliseconds by number of tokens, d = 512: attention n² d beside feed-forward n d²</text>',
  ];
  for (const tick of ticks(low, high).filter((tick) => /^0?\.?0*1/.test(String(tick)))) {
    parts.push(`<line class="grid" x1="${left}" x2="${width - 130}" y1="${y(tick)}" y2="${y(tick)}"/>`);
    parts.push(`<text class="small" text-anchor="end" x="${left - 6}" y="${y(tick) + 4}">${tick}</text>`);
  }
  for (const n of lengths) parts.push(`<text class="small" text-anchor="middle" x="${x(n)}" y="${height - 12}">${n}</text>`);
  for (const [name, list, label] of [
    ['attention', attention, 'attention'],
    ['feed', feedForward, 'feed-forward'],
  ]) {
    parts.push(
      `<polyline class="${name}" points="${list.map((value, i) => `${x(lengths[i]).toFixed(1)},${y(value).toFixed(1)}`).join(' ')}"/>`,
    );
    parts.push(`<text x="${width - 122}" y="${y(list.at(-1)) + 4}">${label}</text>`);
  }
  if (crossing) {
    parts.push(`<line class="one" stroke-dasharray="3 3" x1="${x(crossing)}" x2="${x(crossing)}" y1="${top}" y2="${height - 30}"/>`);
    parts.push(`<text class="small" x="${x(crossing) + 5}" y="${top + 10}">they cross at ${Math.round(crossing)}</text>`);
  }
  return { height, parts };
}

/** The text of an SVG file. `judged` as report.mjs has it; `curves` of the scaling row, or none. */
export function plot({ judged, curves }) {
  const width = 980;
  const panels = [ratios(judged, width), ...(curves ? [scaling(curves, width)] : [])];
  let y = 10;
  const groups = panels.map(({ height, parts }) => {
    const group = `<g transform="translate(10 ${y})">${parts.join('\n')}</g>`;
    y += height + 24;
    return group;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width + 20} ${y}" width="${width + 20}" height="${y}" role="img" aria-label="Speed beside the peers"><style>${style}</style>\n${groups.join('\n')}\n</svg>\n`;
}
