// The demo page, on Vite's development server.
import { build } from './build.mjs';
import { main, run } from './run.mjs';

main(import.meta.url, async (args) => {
  await build();
  await run('node_modules/.bin/vite', ['examples/demo', ...args]);
});
