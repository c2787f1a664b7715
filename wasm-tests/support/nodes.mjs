// Newer versions of Node, from npm, in the folder of the user's cache where the toolchain is too.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'wasmformer');

/** The executable of a major version. The package `node` installs one of these; taken directly it needs no install script. */
export function nodeOf(major) {
  const platform = process.platform === 'win32' ? 'win' : process.platform;
  const name = `node-${platform}-${process.arch}`;
  const folder = join(cache, `node-${major}`);
  const executable = join(folder, 'node_modules', name, 'bin', process.platform === 'win32' ? 'node.exe' : 'node');
  if (!existsSync(executable)) {
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'package.json'), '{ "private": true }\n');
    const npm = process.platform === 'win32' ? 'npm.cmd' : 'npm';
    execFileSync(npm, ['install', '--prefix', folder, '--no-audit', '--no-fund', '--loglevel=error', `${name}@${major}`], {
      stdio: 'pipe',
    });
  }
  return executable;
}
