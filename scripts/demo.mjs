// From a bare clone to text in the terminal: one model writes, the other reads Chinese aloud.
import { spawnSync } from 'node:child_process';
import { join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { build } from './build.mjs';
import { main, Refusal, root, shippedModel } from './run.mjs';

const help = `Usage: npm run demo                        the two models of this repository: one writes, one reads Chinese aloud
       npm run demo -- PROMPT [options]   continue a text with the first of them

Installs what is missing and builds first. After that node dist/cli.js --help lists the options.`;

/** Runs the command-line program. */
function wasmformer(...args) {
  const { status, signal } = spawnSync(process.execPath, [join(root, 'dist/cli.js'), ...args], {
    cwd: root,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  if (status !== 0) throw new Refusal(`The command-line program ended with ${signal ?? `exit code ${status}`}`);
}

/** What a text takes in a line of the terminal: Chinese characters and their punctuation are two columns wide. */
const columns = (text) => text.length + (text.match(/[\u3000-\u303f\u4e00-\u9fff\uff00-\uff60]/g)?.length ?? 0);

/** The characters of a Chinese text, and under each the syllable that its cross-attention found. */
async function readAloud(text) {
  const folder = join(root, 'examples/models/pinyin');
  console.log(`\n== ${relative(root, folder)}: ${text}`);
  const { load } = await import(pathToFileURL(join(root, 'dist/node.js')));
  const mt = await load(folder);
  const { text: pinyin, alignment } = await mt.translate(text, { numBeams: 4, alignment: true });
  await mt.dispose();
  const pairs = alignment.map(({ source, target, score }) => [
    text.slice(...source),
    pinyin.slice(...target),
    `${Math.round(100 * score)}%`,
  ]);
  for (const row of [0, 1, 2]) {
    const cells = pairs.map((pair) => pair[row] + ' '.repeat(2 + Math.max(...pair.map(columns)) - columns(pair[row])));
    console.log(`   ${cells.join('').trimEnd()}`);
  }
  console.log('Third row: how much of the attention with which a syllable was written went to its character.');
}

main(import.meta.url, async (args) => {
  if (args.includes('--help') || args.includes('-h')) {
    console.log(help);
    return;
  }
  await build();
  const model = shippedModel();
  const options = args.length ? args : ['It was a dark night, and', '--max-new-tokens', '400', '--temperature', '0.8', '--seed', '1'];
  console.log(`== ${relative(root, model)}: ${options.join(' ')}`);
  wasmformer(...options, '--model', model);
  if (args.length === 0) await readAloud('银行行长也说，孩子们都长大了。');
});
