// Installs Debian packages, with retries: mirrors are sometimes slow.
import { existsSync, readFileSync } from 'node:fs';
import { output, Refusal, retry, run, which } from './run.mjs';

/** True on Debian and its descendants. */
export function isDebian() {
  return existsSync('/etc/debian_version') && which('apt-get') !== undefined;
}

/** Debian's release number, for messages. */
export function debianVersion() {
  return readFileSync('/etc/debian_version', 'utf8').trim();
}

/** Runs a command as root: directly, or by sudo. */
export function asRoot(command, args, options) {
  if (process.getuid() === 0) return run(command, args, options);
  if (!which('sudo')) throw new Refusal(`Root or sudo is needed to run: ${command} ${args.join(' ')}`);
  return run('sudo', ['-n', '--preserve-env=DEBIAN_FRONTEND', command, ...args], options);
}

const env = { DEBIAN_FRONTEND: 'noninteractive' };
const options = ['-y', '-q', '-o', 'Acquire::Retries=5', '-o', 'DPkg::Lock::Timeout=300', '-o', 'Dpkg::Use-Pty=0'];

function missing(packages) {
  return packages.filter((name) => !output('dpkg-query', ['-W', '-f', '${Status}', name])?.endsWith(' installed'));
}

/** Installs those of the packages that are not installed. */
export async function aptInstall(packages) {
  const wanted = missing(packages);
  if (wanted.length === 0) return;
  if (!isDebian()) throw new Refusal(`Not a Debian system; please install: ${wanted.join(', ')}`);
  console.log(`   apt-get install ${wanted.join(' ')}`);
  await retry(4, async (attempt) => {
    // Stale package lists are the usual reason for a first failure, so they are renewed only then or when there are none.
    const known = output('apt-cache', ['policy', wanted[0]])?.includes('Candidate: ');
    if (attempt > 1 || !known) await asRoot('apt-get', [...options, 'update'], { env, quiet: true });
    await asRoot('apt-get', [...options, 'install', '--no-install-recommends', ...wanted], { env, quiet: true });
  });
}
