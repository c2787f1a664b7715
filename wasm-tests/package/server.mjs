// A static file server without any special header but the content type and, if asked for, a content security policy or isolation.
import { createReadStream, statSync } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';

const types = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.mjs': 'text/javascript',
  '.css': 'text/css',
  '.wasm': 'application/wasm',
  '.json': 'application/json',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain',
};

/** Serves `folder` under `base` on a free port: `{ url, requests, close }`; `requests` lists the paths asked for. */
export async function serve(folder, { base = '/', policy, isolated = false } = {}) {
  const requests = [];
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    requests.push(path);
    if (path === '/favicon.ico') return response.writeHead(204).end();
    const inside = path.startsWith(base) ? normalize(`/${path.slice(base.length)}`) : undefined;
    const file = inside && join(folder, inside.endsWith('/') ? `${inside}index.html` : inside);
    const found = file && statSync(file, { throwIfNoEntry: false });
    if (!found?.isFile()) return response.writeHead(404).end('not found');
    const headers = { 'content-type': types[extname(file)] ?? 'application/octet-stream', 'content-length': found.size };
    if (policy) headers['content-security-policy'] = policy;
    if (isolated) {
      headers['cross-origin-opener-policy'] = 'same-origin';
      headers['cross-origin-embedder-policy'] = 'require-corp';
    }
    response.writeHead(200, headers);
    if (request.method === 'HEAD') return response.end();
    createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () =>
    new Promise((resolve) => {
      server.closeAllConnections();
      server.close(resolve);
    });
  return { url: `http://127.0.0.1:${server.address().port}${base}`, requests, close };
}
