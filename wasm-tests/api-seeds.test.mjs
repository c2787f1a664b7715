// With `deterministic: true` the same seed gives the same tokens in every version of Node.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { load } from '../dist/node.js';
import { nodeOf } from './support/nodes.mjs';
import { drawTokens } from './support/seeds.mjs';

const script = `
  import { load } from ${JSON.stringify(new URL('../dist/node.js', import.meta.url).href)};
  import { drawTokens } from ${JSON.stringify(new URL('./support/seeds.mjs', import.meta.url).href)};
  console.log(JSON.stringify({ version: process.version, drawn: await drawTokens(load, { deterministic: true }) }));`;

const here = await drawTokens(load, { deterministic: true });

test('seeds matter, and repeat', async () => {
  assert.ok(new Set(here.map(({ tokenIds }) => String(tokenIds))).size === here.length);
  assert.deepEqual(await drawTokens(load, { worker: false, deterministic: true }), here);
});

for (const major of [20, 22, 24]) {
  test(`Node ${major}`, () => {
    const executable = process.version.startsWith(`v${major}.`) ? process.execPath : nodeOf(major);
    const { version, drawn } = JSON.parse(execFileSync(executable, ['--input-type=module', '-e', script], { encoding: 'utf8' }));
    assert.match(version, new RegExp(`^v${major}\\.`));
    assert.deepEqual(drawn, here);
  });
}
