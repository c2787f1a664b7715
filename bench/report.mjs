// Tables in Markdown. Pure functions.
import { parseContender } from './contenders.mjs';
import { digits, median, unitOf } from './stats.mjs';

const table = (head, lines) =>
  [`| ${head.join(' | ')} |`, `|${'---|'.repeat(head.length)}`, ...lines.map((cells) => `| ${cells.join(' | ')} |`)].join('\n');

const seconds = (ms) => (ms === undefined ? '–' : `${digits(ms / 1000)} s`);
const megabytes = (bytes) => (bytes === undefined ? '–' : `${Math.round(bytes / 1e6)} MB`);
const figure = (values, metric) => (values?.length ? `${digits(median(values))} ${unitOf(metric)}` : '–');

/**
 * Every floor of the measured rows: `[{ title, what, ours, theirs, value, floor, met }]`; `met` is undefined where a contender is
 * missing, and `reason` says why. What has no floor, only a value, has neither `floor` nor `met`.
 * `measured`: `[{ row, results, facts }]`
 */
export function judge(measured) {
  return measured.flatMap(({ row, results, facts, errors }) =>
    row.floors.map(({ what, ours, theirs, atLeast, atMost, value }) => {
      const got = value(results, row, facts);
      const known = got !== undefined && !Number.isNaN(got);
      const failed = [ours, theirs].find((name) => errors[name]);
      return {
        row: row.id,
        title: row.title,
        what,
        ours,
        theirs,
        value: known ? got : undefined,
        floor: atLeast ?? atMost,
        least: atLeast !== undefined,
        reason: failed ? `${failed}: ${errors[failed]}` : known ? '–' : 'not measured',
        met: known && (atLeast ?? atMost) !== undefined ? (atLeast === undefined ? got <= atMost : got >= atLeast) : undefined,
      };
    }),
  );
}

/** The table of what is to be reached. */
export function floorsTable(judged) {
  return table(
    ['work', 'measured', 'this library', 'compared with', 'result', 'floor', 'met'],
    judged.map(({ title, what, ours, theirs, value, floor, least, met, reason }) => [
      title,
      what,
      ours,
      theirs,
      digits(value),
      floor === undefined ? '–' : `${least ? '≥' : '≤'} ${floor}`,
      met === undefined ? reason : met ? 'yes' : '**no**',
    ]),
  );
}

/** What a reader wants to know first: a line for each work and format, a column for each library, medians joined by '/'. */
export function summaryTable(measured, libraries) {
  const formats = ['f32', 'q8', 'q4'];
  const lines = measured.flatMap(({ row, results }) => {
    const names = Object.keys(results).map((name) => ({ name, ...parseContender(name) }));
    const alike = (name, library, format) => name.library === library && name.threads === 1 && name.dtype.replace('int8', 'q8') === format;
    return formats.map((format) => {
      const cells = libraries.map((library) => {
        const found = names.find((name) => !name.node && alike(name, library, format));
        if (!found) return '';
        const metrics = Object.keys(results[found.name]);
        return `${metrics.map((metric) => digits(median(results[found.name][metric]))).join(' / ')} ${unitOf(metrics[0])}`;
      });
      const metrics = Object.keys(Object.values(results)[0] ?? {});
      return { cells, title: `${row.title.replace(/,? (q8|q4|f32)$/, '')}, ${metrics.join(' / ')}, ${format}`, shown: row.summary };
    });
  });
  return table(
    ['', ...libraries],
    lines.filter(({ cells, shown }) => shown && cells.some(Boolean)).map(({ title, cells }) => [title, ...cells]),
  );
}

/** All that one row measured: a line a contender. Ratios and floors stand in the table above. */
export function rowTable({ row, results, facts, errors }) {
  const names = row.contenders.filter((name) => results[name]);
  const metrics = [...new Set(names.flatMap((name) => Object.keys(results[name])))];
  const extra = [
    ['load', ({ load }) => seconds(load)],
    ['first token, cold', ({ firstToken }) => seconds(firstToken)],
    ['first second', ({ firstSecond }) => (firstSecond === undefined ? '–' : `${digits(firstSecond)} tok/s`)],
    ['peak memory', ({ peakMemory }) => megabytes(peakMemory)],
    ['download, gzipped', ({ download }) => (download ? `${Math.round(download / 1000)} KB` : '–')],
    ['same output', ({ same }) => same ?? '–'],
  ].filter(([, show]) => names.some((name) => !show(facts[name] ?? {}).startsWith('–')));
  const lines = names.map((name) => [
    name,
    ...metrics.map((metric) => figure(results[name][metric], metric)),
    ...extra.map(([, show]) => show(facts[name] ?? {})),
  ]);
  const grown = names
    .filter((name) => facts[name]?.memory)
    .map((name) => {
      const { lengths, memory } = facts[name];
      const list = (part) => memory.map((at) => megabytes(at[part])).join(', ');
      return `${name} after ${lengths.join(', ')} tokens: cache ${list('cache')}; activations ${list('arena')}.`;
    });
  const failures = Object.entries(errors).map(([name, message]) => `${name}: ${message}`);
  return [table(['', ...metrics, ...extra.map(([title]) => title)], lines), ...[...grown, ...failures].map((line) => `\n${line}`)].join(
    '\n',
  );
}

/** Milliseconds and memory by number of tokens. */
export function scalingTable(curves, memory) {
  const lines = curves.lengths.map((n, i) => [
    n,
    `${digits(curves.attention[i])} ms`,
    `${digits(curves.feedForward[i])} ms`,
    memory ? megabytes(memory[i].cache) : '–',
    memory ? megabytes(memory[i].arena) : '–',
    megabytes(8 * n * n * 4),
  ]);
  return table(['tokens', 'attention', 'feed-forward', 'cache', 'activations', 'the matrices of weights, were they kept'], lines);
}

/** The whole report. */
export function report({ machine, versions, runs, measured, leftOut, curves, memory }) {
  const judged = judge(measured);
  const parts = [
    '# Benchmarks',
    `${machine}. ${versions}. Medians of ${runs} repetitions, one of each contender in turn; one thread unless said (x2: two); random weights; headless Chromium unless said.\n`,
    'Made by `npm run bench`. A floor is what this library is to reach; the machine moves, so only ratios within one run count. "Same output" compares greedy tokens, or numbers, with those of the first of its table: all have the same weights, but random ones leave near-ties, which the 16-bit cache of wllama and few bits decide otherwise.\n',
    '![Speed beside the peers](benchmarks.svg)\n',
    floorsTable(judged),
    ...measured.map((entry) => `\n## ${entry.row.title}\n\n${rowTable(entry)}`),
  ];
  if (curves) {
    const where = curves.crossing ? `They cross at ${Math.round(curves.crossing)} tokens.` : 'They do not cross here.';
    const text = `Attention takes 4 n² d operations, the feed-forward network 16 n d²: equal at n = 4 d = 2048 if both ran equally fast. ${where}`;
    parts.push(`\n${text}\n\n${scalingTable(curves, memory)}`);
  }
  if (leftOut.length) parts.push(`\n## Left out\n\n${leftOut.map((line) => `- ${line}`).join('\n')}`);
  return `${parts.join('\n')}\n`;
}

/** A text with what stands between two marks replaced; unchanged if they are not there. */
export function between(text, name, inner) {
  const [begin, end] = [`<!-- ${name} -->`, `<!-- /${name} -->`];
  const from = text.indexOf(begin);
  const to = text.indexOf(end);
  return from === -1 || to < from ? text : `${text.slice(0, from + begin.length)}\n${inner}\n${text.slice(to)}`;
}
