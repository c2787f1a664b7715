// Builds, then measures. Options after `--` go to bench/bench.mjs: --models shipped,gpt2-124m --runs 5 --prompt 256 --tokens 64.
import { build } from './build.mjs';
import { main, run } from './run.mjs';

main(import.meta.url, async (args) => {
  await build();
  await run(process.execPath, ['bench/bench.mjs', ...args]);
});
