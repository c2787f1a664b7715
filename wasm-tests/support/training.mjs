// What the tests of trainings and of saved ones share.
import assert from 'node:assert/strict';

/** Everything but how fast it was. */
export async function stepsOf(training, most = Infinity) {
  const steps = [];
  for await (const { tokensPerSecond, ...step } of training) {
    assert.ok(tokensPerSecond > 0);
    steps.push(step);
    if (steps.length === most) break;
  }
  return steps;
}

/** Every weight's numbers, by name. */
export async function weightsOf(lm) {
  const all = {};
  for (const { name } of await lm.parameters()) all[name] = (await lm.parameter(name)).data;
  return all;
}
