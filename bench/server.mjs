// Serves the repository's built files, the peers and the models to pages of the bench.
import { createReadStream, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { root } from '../scripts/run.mjs';

const types = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.mjs': 'text/javascript',
  '.json': 'application/json',
  '.wasm': 'application/wasm',
};

/**
 * `/models/` is `models`, `/dist/` this library as built in `dist`, everything else the repository; `/` is an empty page. With `isolated` pages get the headers that
 * shared memory needs. `files` collects the paths of what was sent, apart from models.
 */
export async function serve({ models, dist, isolated }) {
  const folders = { '/models/': models, '/dist/': dist };
  const files = new Set();
  const server = createServer((request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, 'http://localhost').pathname));
    if (isolated) {
      response.setHeader('cross-origin-opener-policy', 'same-origin');
      response.setHeader('cross-origin-embedder-policy', 'require-corp');
    }
    response.setHeader('cross-origin-resource-policy', 'cross-origin');
    response.setHeader('cache-control', 'no-store');
    if (path === '/') return response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>bench</title>');
    const folder = Object.keys(folders).find((name) => path.startsWith(name));
    const file = folder ? join(folders[folder], path.slice(folder.length)) : join(root, path);
    const size = statSync(file, { throwIfNoEntry: false })?.isFile() ? statSync(file).size : undefined;
    if (size === undefined) return response.writeHead(404).end();
    if (folder !== '/models/' && !path.startsWith('/bench/peers/')) files.add(file);
    response.setHeader('content-type', types[extname(file)] ?? 'application/octet-stream');
    response.setHeader('accept-ranges', 'bytes');
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const begin = range ? Number(range[1]) : 0;
    const end = range?.[2] ? Math.min(Number(range[2]), size - 1) : size - 1;
    if (range) response.setHeader('content-range', `bytes ${begin}-${end}/${size}`);
    response.writeHead(range ? 206 : 200, { 'content-length': Math.max(0, end - begin + 1) });
    if (request.method === 'HEAD' || size === 0) return response.end();
    createReadStream(file, { start: begin, end }).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    files,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}
