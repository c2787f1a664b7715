import { cpSync, readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const model = path('../models/moby-dick-char/');
const modelFiles = readdirSync(model).filter((name) => /\.(json|safetensors)$|^LICEN[CS]E/.test(name));

/** Puts the model that the repository ships at ./model/, in development and beside the built page. */
const shippedModel = {
  name: 'shipped-model',
  configureServer(server) {
    server.middlewares.use((request, response, next) => {
      const name = /^\/model\/([\w.]+)$/.exec(request.url.split('?')[0])?.[1];
      if (!modelFiles.includes(name)) return next();
      const bytes = readFileSync(model + name);
      response.setHeader('content-type', name.endsWith('.json') ? 'application/json' : 'application/octet-stream');
      response.setHeader('content-length', bytes.length);
      response.end(bytes);
    });
  },
  writeBundle({ dir }) {
    for (const name of modelFiles) cpSync(model + name, `${dir}/model/${name}`);
  },
};

export default defineConfig({
  root: path('.'),
  base: './',
  resolve: { alias: { wasmformer: path('../../dist/index.js') } },
  // The policy in index.html allows no data: addresses, and Vite's polyfill is for browsers without WebAssembly SIMD.
  build: { target: 'es2022', assetsInlineLimit: 0, modulePreload: { polyfill: false }, emptyOutDir: true },
  worker: { format: 'es' },
  plugins: [shippedModel],
});
