// Loads a model in a process of its own: node load-child.mjs SOURCE OPTIONS. Prints a hash of the weights.
import { createHash } from 'node:crypto';
import { files } from './bundle.mjs';

const { loadTensors, matchTensors, nodeFiles, openCheckpoint } = await files();
const [source, options] = process.argv.slice(2);
const checkpoint = await openCheckpoint(source, JSON.parse(options), nodeFiles);
const parameters = [...checkpoint.tensors.values()].map(({ name, shape }) => ({ name, shape }));
const { matches } = matchTensors(parameters, checkpoint.tensors, ['F32', 'F16', 'U8']);
const hash = createHash('sha256');
for await (const { index, rowBegin, bytes } of loadTensors(checkpoint, matches)) hash.update(`${index} ${rowBegin} `).update(bytes);
await checkpoint.close();
console.log(JSON.stringify({ hash: hash.digest('hex'), warnings: checkpoint.warnings.map(({ code }) => code) }));
