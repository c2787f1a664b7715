// Builds, then measures: `npm run bench` the package on models, `npm run bench -- kernels` the kernels alone.
// Options after `--` go to bench/bench.mjs: --models shipped,gpt2-124m --runs 5 --prompt 256 --tokens 64.
import { join } from 'node:path';
import { build, cmakeBuild } from './build.mjs';
import { main, run } from './run.mjs';

main(import.meta.url, async (args) => {
  if (args[0] === 'kernels') {
    const folder = await cmakeBuild('wasm', ['bench_kernels']);
    return run(process.execPath, [join(folder, 'bench_kernels.js'), ...args.slice(1)]);
  }
  await build();
  await run(process.execPath, ['bench/bench.mjs', ...args]);
});
