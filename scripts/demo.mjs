// From a bare clone to text in the terminal.
import { spawnSync } from 'node:child_process';
import { join, relative } from 'node:path';
import { build } from './build.mjs';
import { main, Refusal, root, shippedModel } from './run.mjs';

main(import.meta.url, async (args) => {
  const dist = await build();
  const model = shippedModel();
  const options = args.length ? args : ['It was a dark night, and', '--max-new-tokens', '400', '--temperature', '0.8', '--seed', '1'];
  console.log(`== ${relative(root, model)}: ${options.join(' ')}`);
  const { status, signal } = spawnSync(process.execPath, [join(dist, 'cli.js'), ...options, '--model', model], {
    cwd: root,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  if (status !== 0) throw new Refusal(`The command-line program ended with ${signal ?? `exit code ${status}`}`);
});
