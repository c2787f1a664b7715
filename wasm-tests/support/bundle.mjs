// TypeScript of web/, bundled on the fly and imported, for tests of parts that the package does not export.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** The exports of an entry given as source text; its imports are relative to the repository. */
export async function bundle(source) {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: root, loader: 'ts' },
    bundle: true,
    write: false,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    sourcemap: 'inline',
    logLevel: 'error',
  });
  const folder = mkdtempSync(join(root, 'node_modules', '.bundle-'));
  try {
    const file = join(folder, 'bundle.mjs');
    writeFileSync(file, outputFiles[0].contents);
    return await import(pathToFileURL(file).href);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Everything about published files. */
export const files = () =>
  bundle(`
    export * from './web/files/index.ts';
    export { WasmformerError, errorCodes, toPlainError, fromPlainError } from './web/errors.ts';
    export { nodeFiles } from './web/platform/node-files.ts';
    export { duplicateKey, parseJson, parseObject } from './web/files/json.ts';
    export { readSafetensors, parseIndex } from './web/files/safetensors.ts';
    export { readPytorch } from './web/files/pytorch.ts';
    export { readPickle } from './web/files/pickle.ts';
    export { readZip } from './web/files/zip.ts';
    export { readLlama2c } from './web/files/llama2c.ts';
    export { readLlama2cTokenizer } from './web/files/llama2c-tokenizer.ts';
    export { BytesSource } from './web/files/source.ts';
    export { cleanUp, compileDecoder, TokenStream } from './web/files/decoder.ts';
    export { strftime } from './web/files/chat.ts';
  `);

/** SentencePiece files read as they stand, and what cuts texts by one, without any model's class around it. */
export const sentencePiece = () =>
  bundle(`
    import { Pipeline } from './web/files/pipeline.ts';
    import { sentencePieceNormalizer, sentencePieceSubwords } from './web/files/sentencepiece.ts';
    export { readSentencePiece } from './web/files/sentencepiece.ts';
    export const segmenter = (model) => new Pipeline({
      added: [],
      normalize: sentencePieceNormalizer(model),
      preTokenize: (piece) => [piece],
      subwords: sentencePieceSubwords(model),
      tokenOf: () => '',
      postProcess: (parts) => parts,
    });
  `);
