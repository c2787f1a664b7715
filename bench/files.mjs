// Makes the files that a contender loads, once: under build/bench/models.
import { existsSync, mkdirSync, renameSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from '../scripts/run.mjs';
import { writeGguf } from './gguf.mjs';
import { makeOnce, openModel, shapes, writeRandomModel } from './models.mjs';

const ggufFormats = { f32: 'F32', q8: 'Q8_0', q4: 'Q4_0' };

/**
 * Makes what `contender` (library, dtype) loads of a model, unless it is there. Resolves to nothing, or to the reason why it
 * cannot be made. `python` has what onnx_models.py imports.
 */
export async function prepareModel(models, name, { library, dtype }, python) {
  mkdirSync(models, { recursive: true });
  if (library === 'kernels') return undefined;
  const products = name === 'products';
  const folder = products ? join(models, name) : writeRandomModel(models, name);
  if (library === 'wllama') makeGguf(join(folder, `${ggufFormats[dtype]}.gguf`), folder, name, ggufFormats[dtype]);
  if (library === 'onnxruntime-web' || library === 'transformers.js') {
    if (existsSync(join(folder, 'onnx'))) return undefined;
    if (!python) return 'its ONNX files need Python with bench/requirements.txt';
    console.log(`   making ONNX files of ${name}`);
    const formats = shapes[name]?.config.model_type === 'llama' ? ['f32', 'q8', 'q4'] : ['f32', 'q8'];
    const script = join(dirname(fileURLToPath(import.meta.url)), 'onnx_models.py');
    mkdirSync(folder, { recursive: true });
    await makeOnce(join(folder, 'onnx'), (partial) =>
      run(python, [script, products ? name : folder, partial, ...(products ? [] : formats)], { quiet: true }),
    );
  }
  return undefined;
}

function makeGguf(file, folder, name, format) {
  if (existsSync(file)) return;
  console.log(`   making ${name} as GGUF, ${format}`);
  const model = openModel(folder, name);
  writeGguf(`${file}.partial`, shapes[name], model.read, format);
  model.close();
  renameSync(`${file}.partial`, file);
}
