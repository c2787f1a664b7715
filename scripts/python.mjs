// Python with the packages that a file names, in a virtual environment in the user's cache.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { aptInstall, isDebian } from './apt.mjs';
import { output, Refusal, retry, run, step } from './run.mjs';
import { folder } from './toolchain.mjs';

/** The path of a Python that has what `requirements`, a file, lists. The environment's `variable` may name one, taken as it is. */
export async function ensurePython(requirements, variable) {
  if (process.env[variable]) return process.env[variable];
  const key = createHash('sha256').update(readFileSync(requirements)).digest('hex').slice(0, 12);
  const place = join(dirname(folder), `python-${key}`);
  const python = join(place, 'bin/python');
  const stamp = join(place, 'ready');
  if (existsSync(stamp)) return python;
  const versions = ['python3.13', 'python3.12', 'python3.11', 'python3'];
  const base = versions.find((name) => output(name, ['-c', 'import sys; assert sys.version_info >= (3, 11)']) !== undefined);
  if (!base) throw new Refusal('Python 3.11 or newer is needed');
  if (isDebian() && output(base, ['-c', 'import ensurepip']) === undefined) await aptInstall(['python3-venv']);
  await step('Python packages', async () => {
    await run(base, ['-m', 'venv', '--clear', place]);
    await retry(3, () => run(python, ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '-r', requirements]));
  });
  writeFileSync(stamp, '');
  return python;
}
