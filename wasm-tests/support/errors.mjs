import assert from 'node:assert/strict';
import { WasmformerError } from '../../dist/node.js';

/** For `assert.rejects` and `assert.throws`: a WasmformerError of this code, whose message matches. */
export const code =
  (expected, message = /./) =>
  (error) => {
    assert.equal(error.code, expected, error.stack);
    assert.ok(error instanceof WasmformerError);
    assert.match(error.message, message);
    return true;
  };
