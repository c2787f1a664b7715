import { cpSync, existsSync, readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const models = path('../models/');
/** `folder/file` of all that the models which the repository ships need at run time. */
const modelFiles = readdirSync(models)
  .filter((folder) => existsSync(`${models}${folder}/config.json`))
  .flatMap((folder) => readdirSync(models + folder).map((name) => `${folder}/${name}`))
  .filter((name) => /\.(json|safetensors)$|\/LICEN[CS]E/.test(name));

/** Puts those models at ./models/, in development and beside the built page. */
const shippedModels = {
  name: 'shipped-models',
  configureServer(server) {
    server.middlewares.use((request, response, next) => {
      const name = /^\/models\/([\w.-]+\/[\w.-]+)$/.exec(request.url.split('?')[0])?.[1];
      if (!modelFiles.includes(name)) return next();
      const bytes = readFileSync(models + name);
      response.setHeader('content-type', name.endsWith('.json') ? 'application/json' : 'application/octet-stream');
      response.setHeader('content-length', bytes.length);
      response.end(bytes);
    });
  },
  writeBundle({ dir }) {
    for (const name of modelFiles) cpSync(models + name, `${dir}/models/${name}`);
  },
};

export default defineConfig({
  root: path('.'),
  base: './',
  resolve: { alias: { wasmformer: path('../../dist/index.js') } },
  // The policy in index.html allows no data: addresses, and Vite's polyfill is for browsers without WebAssembly SIMD.
  build: { target: 'es2022', assetsInlineLimit: 0, modulePreload: { polyfill: false }, emptyOutDir: true },
  worker: { format: 'es' },
  plugins: [shippedModels],
});
