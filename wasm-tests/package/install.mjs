// The packed tarball, installed in an empty folder as a user would: shared by the tests here.
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { output, root, run, shippedModel } from '../../scripts/run.mjs';

export { root, run, shippedModel };

/** `{ folder, tarball, bytes, files, remove }`: a folder that has nothing but the package in node_modules. */
export async function installPackage() {
  const folder = mkdtempSync(join(tmpdir(), 'wasmformer-package-'));
  const packed = JSON.parse(output('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', folder], { cwd: root }));
  const [{ filename, files }] = Array.isArray(packed) ? packed : Object.values(packed);
  const tarball = join(folder, filename);
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'user', private: true, type: 'module' }));
  await run('npm', ['install', '--offline', '--no-audit', '--no-fund', '--loglevel=error', tarball], { cwd: folder, quiet: true });
  return {
    folder,
    tarball,
    bytes: statSync(tarball).size,
    files: files.map(({ path }) => path),
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}

/** A copy of an app of this folder beside the installed package, with the model that is shipped under public/model. */
export function copyApp(folder, name) {
  const app = join(folder, name);
  mkdirSync(app, { recursive: true });
  cpSync(join(root, 'wasm-tests/package', name), app, { recursive: true });
  cpSync(shippedModel(), join(app, 'public/model'), { recursive: true });
  return app;
}

/** What the installed package's manifest says. */
export function manifest(folder) {
  return JSON.parse(readFileSync(join(folder, 'node_modules/wasmformer/package.json'), 'utf8'));
}

export { existsSync };
