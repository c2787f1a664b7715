// The examples that learn a task from nothing, as long as they take.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

/** The share of what was held out that came out right, in percent, and the seconds of training. */
function run(t, name) {
  const file = fileURLToPath(new URL(`../../examples/train/${name}.mjs`, import.meta.url));
  const last = execFileSync(process.execPath, [file], { encoding: 'utf8' }).trim().split('\n').at(-1);
  t.diagnostic(last);
  const [, share, seconds] = /^([\d.]+) % of 1000 .* after (\d+) s of training$/.exec(last);
  return { share: Number(share), seconds: Number(seconds) };
}

test('dates: 99 % of those held out, within ten minutes on two cores', (t) => {
  const { share, seconds } = run(t, 'dates');
  assert.ok(share >= 99 && seconds < 600, `${share} % in ${seconds} s`);
});

test('sorting: all of those held out', (t) => assert.equal(run(t, 'sort').share, 100));
