// A server laid out like the Hub, which can be told to misbehave.
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { gzipSync } from 'node:zlib';

/**
 * `repos`: { 'org/name': { commit, files: { path: bytes } } }. `hub.rules[path]` changes how one file is answered:
 *   status            that status instead of the file
 *   html              a page instead of the file
 *   ignoreRange       always the whole file
 *   dropAfter         the connection is cut after so many bytes of a body, `drops` times (1 unless told)
 *   lie               Content-Length is off by so many bytes
 *   stallAfter        nothing more comes after so many bytes, `stalls` times
 *   noLength          chunked
 *   gzip              compressed where the client allows it
 *   redirect          to another path of this server (/cdn/...), which asks for no token
 *   noEtag, etag      no ETag, or this one
 *   slow              milliseconds between pieces of 64 KB
 * `hub.missing`: what is answered for a file that is not there, 404 or 403, or 'html' for a page. `hub.noHead`: HEAD is 405.
 * `hub.api` false: no list of files. `hub.commits` false: no X-Repo-Commit. `hub.token`: what Authorization must be.
 * Pages of any origin may ask, but there is no answer to a preflight: a header that needs one fails.
 * `hub.log`: { method, path, range, status, sent } of every request.
 */
export async function startHub(repos) {
  const hub = { repos, rules: {}, api: true, commits: true, token: null, log: [], url: '', down: false };
  const server = createServer((request, response) => {
    answer(hub, request, response).catch(() => response.destroy());
  });
  const sockets = new Set();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    if (hub.down) socket.destroy();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  hub.url = `http://127.0.0.1:${server.address().port}`;
  hub.close = async () => {
    for (const socket of sockets) socket.destroy();
    server.close();
    await once(server, 'close');
  };
  hub.disconnect = () => {
    for (const socket of sockets) socket.destroy();
  };
  hub.requests = (path) => hub.log.filter((entry) => path === undefined || entry.path === path);
  return hub;
}

function find(hub, path) {
  for (const [id, repo] of Object.entries(hub.repos)) {
    const match = path.startsWith(`/${id}/resolve/`) ? path.slice(`/${id}/resolve/`.length) : null;
    if (match === null) continue;
    const revision = decodeURIComponent(match.slice(0, match.indexOf('/')));
    const file = decodeURIComponent(match.slice(match.indexOf('/') + 1));
    const known = revision === repo.commit || revision === (repo.branch ?? 'main');
    return { repo, file, bytes: known ? repo.files[file] : undefined };
  }
  return null;
}

async function answer(hub, request, response) {
  const path = new URL(request.url, hub.url).pathname;
  const entry = { method: request.method, path, range: request.headers.range, ifRange: request.headers['if-range'], status: 0, sent: 0 };
  hub.log.push(entry);
  response.setHeader('access-control-allow-origin', '*');
  response.setHeader('access-control-expose-headers', 'X-Repo-Commit, ETag, X-Linked-ETag, X-Linked-Size, Accept-Ranges, Content-Range');
  const end = (status, headers, body = '') => {
    entry.status = status;
    response.writeHead(status, headers);
    response.end(request.method === 'HEAD' ? undefined : body);
  };
  if (request.method === 'OPTIONS' || (request.method === 'HEAD' && hub.noHead)) return end(405, {});
  const api = /^\/api\/models\/(.+)\/revision\/([^/]+)$/.exec(path);
  if (api) {
    const repo = hub.repos[api[1]];
    if (!hub.api || !repo || ![repo.commit, repo.branch ?? 'main'].includes(decodeURIComponent(api[2]))) return end(404, {}, 'no');
    const siblings = Object.keys(repo.files).map((rfilename) => ({ rfilename }));
    return end(200, { 'content-type': 'application/json' }, JSON.stringify({ sha: repo.commit, siblings }));
  }
  const cdn = path.startsWith('/cdn');
  const found = find(hub, cdn ? path.slice(4) : path);
  if (!found) return end(404, {}, 'no such repository');
  const { repo, file } = found;
  const rule = hub.rules[file] ?? {};
  if (!cdn && hub.token !== null && request.headers.authorization !== `Bearer ${hub.token}`) return end(401, {}, 'no');
  const commit = hub.commits ? { 'x-repo-commit': repo.commit } : {};
  if (rule.status) return end(rule.status, commit, 'no');
  if (rule.html) return end(200, { 'content-type': 'text/html; charset=utf-8' }, '<!doctype html><title>Log in</title>');
  if (found.bytes === undefined) {
    if (hub.missing === 'html') return end(200, { 'content-type': 'text/html' }, '<!doctype html><title>App</title>');
    return end(hub.missing ?? 404, commit, 'Entry not found');
  }
  const bytes = Buffer.from(found.bytes);
  const hash = createHash('sha256').update(bytes).digest('hex');
  if (rule.redirect && !cdn) {
    return end(302, { ...commit, location: `/cdn${path}`, 'x-linked-etag': `"${hash}"`, 'x-linked-size': bytes.length }, '');
  }
  const etag = rule.noEtag ? {} : { etag: rule.etag ?? `"${hash}"` };
  const headers = { ...(cdn ? {} : commit), ...etag, 'content-type': 'application/octet-stream' };
  let begin = 0;
  let stop = bytes.length;
  let status = 200;
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
  const ifRange = request.headers['if-range'];
  if (range && !rule.ignoreRange && (ifRange === undefined || ifRange === headers.etag)) {
    begin = Number(range[1]);
    stop = range[2] === '' ? bytes.length : Math.min(bytes.length, Number(range[2]) + 1);
    if (begin >= bytes.length) return end(416, { ...headers, 'content-range': `bytes */${bytes.length}` });
    status = 206;
    headers['content-range'] = `bytes ${begin}-${stop - 1}/${bytes.length + (rule.lie ?? 0)}`;
  }
  let body = bytes.subarray(begin, stop);
  if (rule.gzip && status === 200 && /gzip/.test(request.headers['accept-encoding'] ?? '')) {
    body = gzipSync(body);
    headers['content-encoding'] = 'gzip';
  }
  if (!rule.noLength) headers['content-length'] = body.length + (rule.lie ?? 0);
  entry.status = status;
  response.writeHead(status, headers);
  if (request.method === 'HEAD') return response.end();
  const dropping = rule.dropAfter !== undefined && (rule.drops ?? 1) > 0;
  const stalling = rule.stallAfter !== undefined && (rule.stalls ?? 1) > 0;
  const most = dropping ? rule.dropAfter : stalling ? rule.stallAfter : body.length;
  const send = Math.min(most, body.length);
  for (let at = 0; at < send; at += 65_536) {
    const piece = body.subarray(at, Math.min(send, at + 65_536));
    if (!response.write(piece)) await drained(response);
    entry.sent += piece.length;
    if (response.destroyed) return;
    if (rule.slow) await new Promise((resolve) => setTimeout(resolve, rule.slow));
  }
  if (dropping && body.length > rule.dropAfter) {
    rule.drops = (rule.drops ?? 1) - 1;
    await new Promise((resolve) => setTimeout(resolve, 20));
    return response.destroy();
  }
  if (stalling && body.length > rule.stallAfter) {
    rule.stalls = (rule.stalls ?? 1) - 1;
    return;
  }
  response.end();
}

/** Room in the buffer again, or nobody there to read it. */
function drained(response) {
  return new Promise((resolve) => {
    const done = () => {
      response.off('drain', done);
      response.off('close', done);
      resolve();
    };
    response.on('drain', done);
    response.on('close', done);
  });
}

/** A safetensors file of the given tensors: { name: { dtype, shape, data: Uint8Array } }. */
export function safetensors(tensors, metadata) {
  const header = metadata ? { __metadata__: metadata } : {};
  let at = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype, shape, data_offsets: [at, at + data.length] };
    at += data.length;
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, ...Object.values(tensors).map(({ data }) => data)]);
}

/** Bytes that are easy to check and never repeat in step with any block size: a counter-based mix. */
export function noise(length, seed = 1) {
  const bytes = Buffer.alloc(length);
  let state = seed >>> 0 || 1;
  for (let i = 0; i < length; ++i) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    bytes[i] = state & 255;
  }
  return bytes;
}
