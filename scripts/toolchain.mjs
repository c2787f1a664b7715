// Finds or installs what the C++ needs: Emscripten, xsimd's headers, Catch2's sources, CMake, Ninja, a native compiler.
// Everything that is not a Debian package of this machine lies in one folder, WASMFORMER_TOOLCHAIN
// (default: wasmformer/toolchain in the user's cache), which toolchain.cmake there describes to CMake.
import {
  closeSync,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { aptInstall, asRoot, debianVersion, isDebian } from './apt.mjs';
import { main, output, Refusal, retry, run, which, withLock } from './run.mjs';

// Debian 13 is the first release whose Emscripten is new enough. Its packages are only unpacked, never installed.
const suite = 'trixie';
const recipe = 'trixie-2'; // changes whenever an installed folder must be made anew
const oldestEmscripten = [3, 1, 69];
const oldestCmake = [3, 25, 0];

/** The folder the toolchain is kept in. */
export const folder =
  process.env.WASMFORMER_TOOLCHAIN ?? join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'wasmformer', 'toolchain');

function atLeast(text, oldest) {
  const found = /(\d+)\.(\d+)(?:\.(\d+))?/.exec(text ?? '');
  if (!found) return false;
  for (let i = 0; i < 3; ++i) {
    const difference = Number(found[i + 1] ?? 0) - oldest[i];
    if (difference !== 0) return difference > 0;
  }
  return true;
}

/** The root of an Emscripten on PATH that is new enough, or undefined. */
function installedEmscripten() {
  const emcc = which('emcc');
  if (!emcc) return undefined;
  const version = output(emcc, ['--version'])?.split('\n')[0];
  if (!atLeast(version?.replace(/^.*\) /, ''), oldestEmscripten)) {
    console.log(`   ${emcc} is ${version ?? 'broken'}; ${oldestEmscripten.join('.')} or newer is needed, so it is left alone`);
    return undefined;
  }
  const found = output('em-config', ['EMSCRIPTEN_ROOT']);
  return found && existsSync(join(found, 'emcc.py')) ? found : undefined;
}

function xsimdVersion(include) {
  try {
    const text = readFileSync(join(include, 'xsimd/config/xsimd_config.hpp'), 'utf8');
    return ['MAJOR', 'MINOR', 'PATCH'].map((part) => new RegExp(`XSIMD_VERSION_${part} (\\d+)`).exec(text)[1]).join('.');
  } catch {
    return undefined;
  }
}

/** Folders in which package managers and environment variables put xsimd's headers and Catch2's two amalgamated files. */
function installedLibraries() {
  const prefixes = ['/usr', '/usr/local', '/opt/homebrew', '/opt/local'];
  const xsimd = [process.env.WASMFORMER_XSIMD, ...prefixes.map((prefix) => join(prefix, 'include'))].find(
    (include) => include && atLeast(xsimdVersion(include), [13, 0, 0]),
  );
  const catch2 = [process.env.WASMFORMER_CATCH2, join(folder, 'catch2')].find(
    (place) => place && existsSync(join(place, 'catch_amalgamated.cpp')),
  );
  return { xsimd, catch2 };
}

function isElf(file) {
  const start = Buffer.alloc(4);
  const handle = openSync(file, 'r');
  readSync(handle, start, 0, 4, 0);
  closeSync(handle);
  return start.equals(Buffer.from('\x7fELF', 'latin1'));
}

/** Unpacks Debian packages into `target`, without chroot, mounts or a change to the system's own packages. */
async function unpackDebian(target, packages) {
  const partial = `${target}.partial`;
  await retry(4, async (attempt) => {
    await asRoot('rm', ['-rf', partial]);
    // On a machine that allows no mounts at all, mmdebstrap's chrootless mode unpacks just as well.
    const mode = attempt % 2 === 0 ? ['--mode=chrootless'] : [];
    await asRoot(
      'mmdebstrap',
      [
        ...mode,
        '--quiet',
        '--variant=extract',
        `--include=${packages.join(',')}`,
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Retries "5"',
        '--aptopt=Acquire::Check-Valid-Until "false"',
        suite,
        partial,
      ],
      { quiet: true },
    );
  });
  if (process.getuid() !== 0) await asRoot('chown', ['-R', `${process.getuid()}:${process.getgid()}`, partial]);
  await run('rm', ['-rf', target]);
  renameSync(partial, target);
}

/** Lets the unpacked programs run in place with the libraries unpacked beside them. */
async function patchPrograms(target) {
  const libraries = readdirSync(join(target, 'usr/lib'))
    .filter((name) => name.endsWith('-linux-gnu'))
    .map((name) => join(target, 'usr/lib', name))[0];
  const llvm = join(
    target,
    'usr/lib',
    readdirSync(join(target, 'usr/lib')).find((name) => /^llvm-\d+$/.test(name)),
  );
  const loader = readdirSync(libraries).find((name) => /^ld-linux.*\.so/.test(name));
  const programs = readdirSync(join(llvm, 'bin'))
    .map((name) => join(llvm, 'bin', name))
    .concat(
      readdirSync(join(target, 'usr/bin'))
        .filter((name) => name.startsWith('wasm-'))
        .map((name) => join(target, 'usr/bin', name)),
    );
  const real = new Set(programs.filter((file) => existsSync(file)).map((file) => realpathSync(file)));
  const elf = [...real].filter((file) => statSync(file).isFile() && isElf(file));
  await run(
    'patchelf',
    ['--set-interpreter', join(libraries, loader), '--force-rpath', '--set-rpath', `${libraries}:${join(llvm, 'lib')}`, ...elf],
    { quiet: true },
  );
  // LLVM's libraries carry a search path of their own, which would let their dependencies be looked for in the system's folders.
  const shared = readdirSync(libraries)
    .filter((name) => /^lib(LLVM|clang)/.test(name))
    .map((name) => realpathSync(join(libraries, name)));
  await run('patchelf', ['--force-rpath', '--set-rpath', libraries, ...new Set(shared)], { quiet: true });
  const emscripten = join(target, 'usr/share/emscripten');
  const config = [
    'import shutil',
    `LLVM_ROOT = ${JSON.stringify(join(llvm, 'bin'))}`,
    `BINARYEN_ROOT = ${JSON.stringify(join(target, 'usr'))}`,
    `NODE_JS = shutil.which('node') or ${JSON.stringify(process.execPath)}`,
    'FROZEN_CACHE = True',
    '',
  ];
  if (existsSync(emscripten)) writeFileSync(join(emscripten, '.emscripten'), config.join('\n'));
  return { emscripten, clangFormat: join(llvm, 'bin/clang-format') };
}

/** Fetches Catch2's amalgamated sources from the suite's source package; `sources` is an apt source list of the suite. */
async function fetchCatch2(sources) {
  const work = join(folder, 'catch2.partial');
  rmSync(work, { recursive: true, force: true });
  for (const part of ['state/lists/partial', 'cache/archives/partial', 'etc']) mkdirSync(join(work, part), { recursive: true });
  const list = join(work, 'etc/sources.list');
  writeFileSync(
    list,
    sources
      .split('\n')
      .filter((line) => /^deb\s/.test(line))
      .map((line) => line.replace(/^deb\s/, 'deb-src '))
      .join('\n') + '\n',
  );
  const options = [
    '-q',
    '-o',
    `Dir::Etc::sourcelist=${list}`,
    '-o',
    'Dir::Etc::sourceparts=-',
    '-o',
    `Dir::State=${join(work, 'state')}`,
    '-o',
    `Dir::State::status=/var/lib/dpkg/status`,
    '-o',
    `Dir::Cache=${join(work, 'cache')}`,
    '-o',
    'APT::Sandbox::User=root',
    '-o',
    'Acquire::Retries=5',
    '-o',
    'Acquire::Check-Valid-Until=false',
    '-o',
    'Acquire::Languages=none',
  ];
  await retry(4, async () => {
    await run('apt-get', [...options, 'update'], { cwd: work, quiet: true });
    await run('apt-get', [...options, 'source', '--download-only', 'catch2'], { cwd: work, quiet: true });
  });
  const archive = readdirSync(work).find((name) => /\.orig\.tar\./.test(name));
  await run('tar', ['-xf', archive, '--strip-components=2', '--wildcards', '*/extras/catch_amalgamated.*'], { cwd: work, quiet: true });
  const target = join(folder, 'catch2');
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target);
  for (const name of ['catch_amalgamated.hpp', 'catch_amalgamated.cpp']) renameSync(join(work, name), join(target, name));
  rmSync(work, { recursive: true, force: true });
  return target;
}

function writeDescription(parts) {
  const names = {
    emscripten: 'WASMFORMER_EMSCRIPTEN',
    xsimd: 'WASMFORMER_XSIMD',
    catch2: 'WASMFORMER_CATCH2',
    clangFormat: 'WASMFORMER_CLANG_FORMAT',
  };
  const text = Object.entries(parts)
    .filter(([, value]) => value)
    .map(([key, value]) => `set(${names[key]} [[${value}]])\n`)
    .join('');
  const file = join(folder, 'toolchain.cmake');
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text);
}

/** A folder that holds nothing but a link to xsimd: /usr/include on the search path would bring glibc's headers into the wasm build. */
function privateInclude(xsimd) {
  const include = join(folder, 'include');
  mkdirSync(include, { recursive: true });
  const link = join(include, 'xsimd');
  if (lstatSync(link, { throwIfNoEntry: false })) rmSync(link);
  symlinkSync(join(xsimd, 'xsimd'), link);
  return include;
}

/** Makes sure that everything is there and returns where: `{ emscripten, xsimd, catch2, clangFormat? }`. */
export async function ensureToolchain() {
  const lacking = ['cmake', 'ninja', 'g++', 'python3'].filter((name) => !which(name) && !(name === 'g++' && which('c++')));
  if (which('cmake') && !atLeast(output('cmake', ['--version']), oldestCmake)) lacking.push(`cmake >= ${oldestCmake.join('.')}`);
  if (isDebian()) {
    const packages = { cmake: ['cmake'], ninja: ['ninja-build'], 'g++': ['g++'], python3: ['python3-minimal'] };
    if (lacking.length) await aptInstall(lacking.flatMap((name) => packages[name] ?? []));
    if (!atLeast(output('cmake', ['--version']), oldestCmake)) {
      throw new Refusal(
        `CMake ${oldestCmake.join('.')} or newer is needed (Debian 12 has it); found ${output('cmake', ['--version'])?.split('\n')[0]}`,
      );
    }
  }
  const stamp = join(folder, 'stamp.json');
  const emscripten = installedEmscripten();
  const { xsimd, catch2 } = installedLibraries();
  if (!isDebian()) {
    if (!emscripten) lacking.push(`Emscripten >= ${oldestEmscripten.join('.')} (emcc on PATH; for example by emsdk)`);
    if (!xsimd) lacking.push('xsimd >= 13 (headers; WASMFORMER_XSIMD names the folder that holds xsimd/)');
    if (!catch2)
      lacking.push('Catch2 v3 (WASMFORMER_CATCH2 names the folder that holds catch_amalgamated.hpp and .cpp, extras/ in its sources)');
    if (lacking.length)
      throw new Refusal(`Not a Debian system, so nothing is installed for you. Please install:\n  - ${lacking.join('\n  - ')}`);
    mkdirSync(folder, { recursive: true });
    const parts = { emscripten, xsimd: privateInclude(xsimd), catch2, clangFormat: which('clang-format') };
    writeDescription(parts);
    return parts;
  }
  const wanted = JSON.stringify({ recipe, emscripten: emscripten ?? 'unpacked' });
  const read = () => {
    if (!existsSync(stamp)) return undefined;
    const saved = JSON.parse(readFileSync(stamp, 'utf8'));
    return saved.wanted === wanted && Object.values(saved.parts).every((path) => existsSync(path)) ? saved.parts : undefined;
  };
  return (
    read() ??
    withLock(join(folder, 'lock'), async () => {
      const others = read();
      if (others) return others;
      console.log(
        `   Debian ${debianVersion()}: unpacking ${emscripten ? 'xsimd' : 'Emscripten'} into ${folder} (once; about a minute, ${emscripten ? '0.5' : '2.3'} GB)`,
      );
      await aptInstall(['mmdebstrap', 'patchelf', 'xz-utils', 'ca-certificates']);
      const target = join(folder, suite);
      await unpackDebian(target, ['libxsimd-dev', 'clang-format', ...(emscripten ? [] : ['emscripten'])]);
      const unpacked = await patchPrograms(target);
      console.log('   fetching the sources of Catch2');
      const parts = {
        emscripten: emscripten ?? unpacked.emscripten,
        xsimd: privateInclude(join(target, 'usr/include')),
        catch2: await fetchCatch2(readFileSync(join(target, 'etc/apt/sources.list'), 'utf8')),
        clangFormat: unpacked.clangFormat,
      };
      writeDescription(parts);
      writeFileSync(stamp, JSON.stringify({ wanted, parts }));
      return parts;
    })
  );
}

main(import.meta.url, async () => {
  const parts = await ensureToolchain();
  for (const [name, place] of Object.entries(parts)) console.log(`${name}: ${place}`);
});
