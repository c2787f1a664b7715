import type { Client } from '../engine/client.ts';
import { untilAborted } from '../engine/queue.ts';
import { reading } from '../options.ts';
import type { TrainStep } from '../types.ts';
import type { Item } from './examples.ts';
import { type CheckedTraining, checkItem, checkState, type Entries, iteratorOf } from './options.ts';
import type { Want } from './training.ts';

/** How much goes to the engine at once: entries, and characters or ids. */
const mostEntries = 256;
const mostCharacters = 2 ** 18;

/** The caller's data, one checked entry after the other. */
class Reader {
  readonly #entries: Entries;
  readonly #name: string;
  #iterator: Iterator<unknown> | AsyncIterator<unknown> | null = null;
  #number = 0;

  constructor(entries: Entries, name: string) {
    this.#entries = entries;
    this.#name = name;
  }

  /** Begins at entry number `skip`: by the data's own `skip` where they have one, else by reading what is before it. */
  async restart(skip: number): Promise<void> {
    this.close();
    let entries = this.#entries as Entries & { skip?(count: number): Entries | Promise<Entries> };
    this.#number = skip;
    if (skip > 0 && typeof entries.skip === 'function') {
      entries = await entries.skip(skip);
      skip = 0;
    }
    const iterator = iteratorOf('train', entries);
    this.#iterator = iterator;
    while (skip-- > 0 && !(await iterator.next()).done);
  }

  async piece(): Promise<{ items: Item[]; ended: boolean }> {
    const items: Item[] = [];
    for (let size = 0; items.length < mostEntries && size < mostCharacters; ) {
      const { value, done } = Object(await (this.#iterator as AsyncIterator<unknown>).next());
      if (done) return { items, ended: true };
      const what = `${this.#name} ${this.#number++}`;
      const item = reading('train', () => checkItem(value, what));
      items.push(item);
      for (const part of Object.values(item)) size += part.length;
    }
    return { items, ended: false };
  }

  /** Tells the data that no more is read of them, without waiting for what they may be waiting for. */
  close(): void {
    const iterator = this.#iterator;
    this.#iterator = null;
    (async () => iterator?.return?.())().catch(() => {});
  }
}

let trainings = 0;

/** Runs a training: each step when it is asked for. Whatever the data throw ends it with that. */
export async function* train(
  client: Client,
  { request, data, evalData, signal }: CheckedTraining,
): AsyncGenerator<TrainStep, void, undefined> {
  const reader = new Reader(data, 'example');
  const heldReader = new Reader(evalData, 'evalData, example');
  const id = ++trainings;
  const send = async (from: Reader, held: boolean) => {
    await untilAborted(from.restart(0), signal);
    for (let ended = false; !ended; ) {
      const piece = await untilAborted(from.piece(), signal);
      ended = piece.ended;
      await client.call('feedTraining', [id, piece.items, held, ended], { signal });
    }
  };
  const onEvent = async ({ skip }: Want) => {
    if (skip !== undefined) await reader.restart(skip);
    const { items, ended } = await reader.piece();
    await client.call('feedTraining', [id, items, false, ended], { signal });
  };
  try {
    await client.call('startTraining', [id, request], { signal, onEvent: checkState });
    if (request.hasEval && !request.evalFiles) await send(heldReader, true);
    if (!request.streams && !request.files) await send(reader, false);
    for (;;) {
      const step = await client.call<TrainStep | null>('trainStep', [id], { signal, onEvent });
      if (!step) return;
      yield step;
    }
  } finally {
    reader.close();
    heldReader.close();
    await client.call('endTraining', [id]).catch(() => {});
  }
}
