// A server laid out like the Hub, and the browser and page that the tests here use.
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { launchChromium } from '../../scripts/chromium.mjs';

const flags = [
  '--no-sandbox',
  '--disable-dev-shm-usage',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Headless Chromium with an empty profile. */
export function launch(options = {}) {
  return launchChromium({ args: flags, ...options });
}

/** Problems that a page reported, less those that are none: a response that is left once the bytes wanted are there. */
export function real(problems) {
  return problems.filter((problem) => !/^request failed: .*(safetensors|json) net::ERR_ABORTED$/.test(problem));
}

/** A folder's files by name, read into memory. */
export function readFolder(folder) {
  return Object.fromEntries(
    readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map(({ name }) => [name, readFileSync(join(folder, name))]),
  );
}

/**
 * Serves repositories as the Hub does, to pages of any origin.
 * @param repos `{ 'org/name': { files: { [name]: Uint8Array | { size, write(begin, end, response) } }, token? } }`
 * @returns `{ url, requests, close }`: `requests` lists `{ method, path, range }`
 */
export async function serveHub(repos) {
  const requests = [];
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, 'http://localhost');
    if (request.method !== 'OPTIONS') requests.push({ method: request.method, path: pathname, range: request.headers.range });
    response.setHeader('access-control-allow-origin', '*');
    response.setHeader('access-control-allow-headers', 'authorization, range');
    response.setHeader('access-control-expose-headers', 'X-Repo-Commit, ETag, X-Linked-Etag, X-Linked-Size, Accept-Ranges, Content-Range');
    if (request.method === 'OPTIONS') return response.writeHead(204).end();
    const refuse = (status, message) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify({ error: message }));

    const api = /^\/api\/models\/([\w.-]+\/[\w.-]+)\/revision\/([^/]+)$/.exec(pathname);
    const file = /^\/([\w.-]+\/[\w.-]+)\/resolve\/([^/]+)\/(.+)$/.exec(pathname);
    const [, id, revision, name] = api ?? file ?? [];
    const repo = repos[id];
    // The Hub does not say whether a private repository exists.
    if (!repo) return refuse(401, 'Invalid username or password.');
    if (repo.token && request.headers.authorization !== `Bearer ${repo.token}`) return refuse(401, 'Access is restricted.');
    const commit = createHash('sha1').update(id).digest('hex');
    if (revision !== 'main' && revision !== commit) return refuse(404, 'Revision not found');
    response.setHeader('x-repo-commit', commit);
    if (api) {
      const siblings = Object.keys(repo.files).map((rfilename) => ({ rfilename }));
      return response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ id, sha: commit, siblings }));
    }
    const content = Object.hasOwn(repo.files, name) ? repo.files[name] : undefined;
    if (!content) return refuse(404, 'Entry not found');
    const size = content.size ?? content.length;
    let [begin, end] = [0, size];
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    if (range) {
      begin = Number(range[1]);
      if (range[2] !== '') end = Math.min(size, Number(range[2]) + 1);
      response.setHeader('content-range', `bytes ${begin}-${end - 1}/${size}`);
    }
    response.writeHead(range ? 206 : 200, {
      etag: `"${createHash('sha1').update(`${id}/${name}`).digest('hex')}"`,
      'accept-ranges': 'bytes',
      'content-type': 'application/octet-stream',
      'content-length': end - begin,
    });
    if (request.method === 'HEAD') return response.end();
    if (content.size !== undefined) return content.write(begin, end, response);
    response.end(content.subarray(begin, end));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () =>
    new Promise((resolve) => {
      server.closeAllConnections();
      server.close(resolve);
    });
  return { url: `http://127.0.0.1:${server.address().port}`, requests, close };
}

/** The shapes of GPT-2's tensors. */
function gpt2Tensors({ n_layer: layers, n_embd: D, vocab_size: V, n_positions: P }) {
  const tensors = [
    ['wte.weight', [V, D]],
    ['wpe.weight', [P, D]],
  ];
  for (let l = 0; l < layers; ++l) {
    for (const [name, ...shape] of [
      ['ln_1.weight', D],
      ['ln_1.bias', D],
      ['attn.c_attn.weight', D, 3 * D],
      ['attn.c_attn.bias', 3 * D],
      ['attn.c_proj.weight', D, D],
      ['attn.c_proj.bias', D],
      ['ln_2.weight', D],
      ['ln_2.bias', D],
      ['mlp.c_fc.weight', D, 4 * D],
      ['mlp.c_fc.bias', 4 * D],
      ['mlp.c_proj.weight', 4 * D, D],
      ['mlp.c_proj.bias', D],
    ]) {
      tensors.push([`h.${l}.${name}`, shape]);
    }
  }
  return [...tensors, ['ln_f.weight', [D]], ['ln_f.bias', [D]]];
}

/**
 * GPT-2's 124 million weights in float32, 498 MB, made while they are sent. The weights are small random numbers; the
 * test is about where the bytes go.
 */
export function largeGpt2() {
  const config = {
    model_type: 'gpt2',
    architectures: ['GPT2LMHeadModel'],
    activation_function: 'gelu_new',
    n_layer: 12,
    n_head: 12,
    n_embd: 768,
    n_positions: 1024,
    n_ctx: 1024,
    vocab_size: 50257,
    layer_norm_epsilon: 1e-5,
  };
  const header = {};
  let end = 0;
  for (const [name, shape] of gpt2Tensors(config)) {
    const begin = end;
    end += 4 * shape.reduce((product, length) => product * length, 1);
    header[name] = { dtype: 'F32', shape, data_offsets: [begin, end] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const head = Buffer.concat([Buffer.alloc(8), text, Buffer.alloc((8 - (text.length % 8)) % 8, ' ')]);
  head.writeBigUInt64LE(BigInt(head.length - 8));
  const block = Buffer.alloc(1 << 20);
  let state = 1;
  for (let i = 0; i < block.length; i += 4) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    block.writeFloatLE((state / 2 ** 32 - 0.5) * 0.04, i);
  }
  const size = head.length + end;
  const write = async (from, to, response) => {
    for (let at = from; at < to && !response.destroyed; ) {
      const inHead = at < head.length;
      const source = inHead ? head : block;
      const offset = inHead ? at : (at - head.length) % block.length;
      const chunk = source.subarray(offset, Math.min(source.length, offset + to - at));
      at += chunk.length;
      if (!response.write(chunk)) {
        const waiting = new AbortController();
        const { signal } = waiting;
        await Promise.race([once(response, 'drain', { signal }), once(response, 'close', { signal })]).catch(() => {});
        waiting.abort();
      }
    }
    response.end();
  };
  return { 'config.json': Buffer.from(JSON.stringify(config)), 'model.safetensors': { size, write } };
}
