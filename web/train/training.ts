import type { Flat } from '../engine/flat.ts';
import type { Native, NativeParameter, NativeSession, NativeTraining } from '../engine/native.ts';
import { untilAborted } from '../engine/queue.ts';
import { WasmformerError } from '../errors.ts';
import type { Tokenizer } from '../files/index.ts';
import type { ModelInfo, TrainStep } from '../types.ts';
import { inOrder, poolUpdates, tokensOf, type Update, updatesOf } from './batches.ts';
import { type Example, examplesOf, fail, type Item, type Masks, masked, type Objective, type Reading } from './examples.ts';
import type { TrainRequest, TrainSettings } from './options.ts';
import { randomOf, shuffle } from './random.ts';

/** The name of `trainer_state.json`'s layout. */
export const format = 'wasmformer-trainer-1';

/** Where a training is in its data. */
export interface Position {
  /** Passes over the data that are done. */
  epoch: number;
  /** Entries of a stream, or examples of an array in this epoch's order, before the present pool. */
  read: number;
  /** The present pool's number in the epoch, and how many of its updates are done. */
  pool: number;
  used: number;
}

/** What a training is gone on with; `trainer_state.json`. */
export interface TrainerState {
  format: string;
  step: number;
  position: Position;
  /** Of an array how many, to tell whether it is the same; of a stream null. */
  examples: number | null;
  /** Whether data to evaluate on were given beside them. */
  evalData: boolean;
  settings: TrainSettings;
  /** In a file: tells the weights that it goes with. */
  weights?: number;
}

export interface Resumable {
  state: TrainerState;
  /** First and second moments of a weight. */
  moments(name: string): [first: Float32Array, second: Float32Array];
}

/** What a training needs of the engine. */
export interface TrainHost {
  native: Native;
  session: NativeSession;
  /** What is trained: the weights, or an adapter's. */
  trained(): readonly NativeParameter[];
  info: ModelInfo;
  generationConfig: Readonly<Record<string, unknown>>;
  tokenizer: Tokenizer | null;
  needTokenizer(): Tokenizer;
  /** Lets other tasks of the thread run. */
  turn(): Promise<void>;
  /** The weights have changed. */
  learned(): void;
  /** Makes way for this training, has it take its memory, and is gone on with from then on. */
  begin(start: () => void): void;
  /** Runs work as one turn in the queue of the model's calls. */
  queued<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>;
  /** The text that the model writes now; `ids` go before where the caller gave no prompt. */
  sample(ids: Int32Array, signal: AbortSignal): Promise<string>;
}

/** Asks the caller's side for more of a stream; with `skip` from its beginning again, without the first so many entries. */
export interface Want {
  skip?: number;
}

/** Some entries of a stream, each as its examples. */
interface Piece {
  entries: Example[][];
  ended: boolean;
}

export interface TrainCall {
  signal: AbortSignal;
  emit(want: Want): void;
}

/** An update, where it leads, and whether it is known to be the last. */
interface Next {
  update: Update;
  after: Position;
  last: boolean;
}

/** The keys of random numbers beside the seed, so that no two uses share theirs. */
const use = { order: 1, pool: 2, split: 3, mask: 4, held: 5 };
/** Milliseconds without other tasks of the thread having their turn. */
const longestTask = 12;

/** One call of `train`: its data as ids, where it is in them, and the optimiser. */
export class Training {
  readonly #host: TrainHost;
  readonly #request: TrainRequest;
  #resumed: Resumable | null;
  readonly #settings: TrainSettings;
  readonly #reading: Reading;
  readonly #masks: Masks | null;
  readonly #batchTokens: number;
  readonly #microBatchTokens: number;
  readonly #seed: number;
  #examples: Example[] = [];
  #held: Example[] = [];
  /** Entries of data and held-out data seen so far. */
  readonly #seen = { data: 0, held: 0 };
  #steps = Infinity;
  #step = 0;
  #position: Position = { epoch: 0, read: 0, pool: 0, used: 0 };
  #updates: AsyncGenerator<Next, undefined> | null = null;
  #native: NativeTraining | null = null;
  /** The call that is being answered, and who waits for entries. */
  #call: TrainCall | null = null;
  #hand: ((got: Piece) => void) | null = null;
  #first: Example | null = null;

  constructor(host: TrainHost, request: TrainRequest, resumed: Resumable | null) {
    this.#host = host;
    this.#request = request;
    this.#resumed = resumed;
    const before = resumed?.state.settings;
    const settings = { ...before, ...request.settings, native: { ...before?.native, ...request.settings.native } };
    const { batchTokens = 4096, microBatchTokens = batchTokens, seed = 0, maskProbability = 0.15 } = settings;
    // Adam's moments are of no use to Muon's matrices, nor the other way round.
    const [had, has] = [before ?? settings, settings].map(({ native }) => native.optimizer ?? 'adamw');
    if (had !== has && /muon/.test(`${had}${has}`)) fail('optimizer', `${had}, as before`, has);
    this.#settings = settings;
    this.#batchTokens = batchTokens;
    this.#microBatchTokens = Math.min(microBatchTokens, batchTokens);
    this.#seed = seed;
    const reading = readingOf(host, settings, this.#microBatchTokens);
    const { tokenizer, vocabSize, objective } = reading;
    if (objective === 'masked' && (settings.sampleEvery || request.sample.asked)) fail('sample', 'none of an encoder', 'one');
    const mask = tokenizer?.specials.mask ?? null;
    this.#reading = reading;
    this.#masks =
      tokenizer && mask !== null ? { mask, special: new Set(tokenizer.specials.all), vocabSize, probability: maskProbability } : null;
    if (resumed) ({ position: this.#position, step: this.#step } = resumed.state);
  }

  /** Takes entries of the data or, `held`, of what is never trained on. */
  async feed(items: Item[], held: boolean, ended: boolean, { signal }: { signal: AbortSignal }): Promise<void> {
    const found: Example[][] = [];
    const kind = held ? 'held' : 'data';
    let count = held ? this.#held.length : this.#examples.length;
    let turned = performance.now();
    for (const item of items) {
      const what = `${held ? 'evalData, ' : ''}example ${this.#seen[kind]++}`;
      const steps = examplesOf(item, what, this.#reading);
      for (;;) {
        const { value, done } = steps.next();
        if (done) found.push(value.map((example) => ({ ...example, index: count++ })));
        if (performance.now() - turned >= longestTask) {
          await this.#host.turn();
          signal.throwIfAborted();
          turned = performance.now();
        }
        if (done) break;
      }
    }
    if (this.#hand && !held) this.#hand({ entries: found, ended });
    else for (const example of found.flat()) (held ? this.#held : this.#examples).push(example);
  }

  /** Takes a step and, where it is time, looks at what is held out and at what the model writes; null when the training is over. */
  async step(call: TrainCall): Promise<TrainStep | null> {
    const { signal } = call;
    this.#call = call;
    if (!this.#updates) {
      await this.#host.queued(() => this.#check(), signal);
      const { steps, epochs = 1, native } = this.#settings;
      if (steps) this.#steps = steps;
      // Others need not know where they end.
      else if (native.schedule === 'linear' || native.schedule === 'cosine') this.#steps = await this.#countSteps(epochs, signal);
      this.#updates = this.#run();
    }
    const began = performance.now();
    const next = this.#step < this.#steps && (await this.#updates.next()).value;
    if (!this.#native) await this.#host.queued(async () => this.#begin(), signal);
    return next ? this.#host.queued(() => this.#take(next, began, signal), signal) : null;
  }

  /** Everything is known of an array by now, nothing of a stream: what can be refused is refused here. */
  async #check(): Promise<void> {
    const { streams, hasEval } = this.#request;
    const { evalFraction, evalEvery, steps, native } = this.#settings;
    const count = this.#examples.length;
    if (!streams && count === 0) fail('dataset', 'at least one example', 'none');
    if (hasEval && this.#held.length === 0) fail('evalData', 'at least one example', 'none');
    if (this.#resumed) {
      const { examples, evalData } = this.#resumed.state;
      if (evalData && !hasEval) fail('evalData', 'those of before', 'none');
      if (examples !== (streams ? null : count)) {
        fail(
          'dataset',
          examples === null ? 'an iterable, as before' : `the ${examples} examples of before`,
          streams ? 'an iterable' : count,
        );
      }
    }
    // Refuses a prompt that will not do, and generates nothing.
    if (this.#request.sample.prompt) await this.#host.sample(new Int32Array(0), AbortSignal.abort());
    if (!hasEval && (evalFraction || evalEvery)) this.#holdOut(evalFraction ?? 0.1);
    if (streams && !steps && (native.schedule === 'linear' || native.schedule === 'cosine')) {
      fail('steps', `their number, for the schedule '${native.schedule}' over an iterable`, 'none');
    }
  }

  /** Takes the optimiser's memory. */
  #begin(): void {
    const { native, session } = this.#host;
    const { streams } = this.#request;
    const all = [...this.#examples, ...this.#held];
    const longer = (example: Example) => Math.max(example.inputIds.length, example.decoderInputIds?.length ?? 0);
    // Of the tokens of a micro-batch, those on the side that has more of them.
    const share = streams ? 1 : all.reduce((most, example) => Math.max(most, longer(example) / example.tokens), 0);
    const total = streams ? Infinity : Math.max(tokensOf(this.#examples), tokensOf(this.#held));
    const options: Flat = {
      ...this.#settings.native,
      seed: this.#seed,
      ...(this.#steps < Infinity ? { steps: this.#steps } : {}),
      tokens: Math.ceil(share * Math.min(this.#microBatchTokens, total)),
      longest: streams ? this.#reading.maxLength : all.reduce((most, example) => Math.max(most, longer(example)), 0),
    };
    this.#host.begin(() => {
      const training = native.call(() => session.startTraining(options));
      try {
        for (const [index, { name }] of this.#resumed ? this.#host.trained().entries() : []) {
          const [first, second] = (this.#resumed as Resumable).moments(name);
          native.call(() => training.setMoments(index, first, second));
        }
        native.call(() => training.setStep(this.#step));
      } catch (reason) {
        if (!native.death) training.delete();
        throw reason;
      }
      this.#native = training;
    });
    this.#resumed = null;
  }

  /** Sets some of the examples apart. */
  #holdOut(fraction: number): void {
    if (this.#request.streams) fail('evalData', 'some, with an iterable', 'none');
    const count = this.#examples.length;
    const some = Math.max(1, Math.round(fraction * count));
    if (some >= count) fail('dataset', `more than the ${some} examples that are held out`, count);
    const order = shuffle([...this.#examples.keys()], randomOf(this.#seed, use.split));
    const out = new Set(order.slice(0, some));
    this.#held = this.#examples.filter((_, i) => out.has(i));
    this.#examples = this.#examples.filter((_, i) => !out.has(i));
  }

  async #countSteps(epochs: number, signal: AbortSignal): Promise<number> {
    let count = 0;
    let turned = performance.now();
    for (let epoch = 0; epoch < epochs; ++epoch) {
      let pool = 0;
      for (const { examples } of this.#arrayPools(epoch, 0)) {
        count += this.#updatesOf(examples, epoch, pool++).length;
        if (performance.now() - turned < longestTask) continue;
        await this.#host.turn();
        signal.throwIfAborted();
        turned = performance.now();
      }
    }
    return count;
  }

  #updatesOf(examples: Example[], epoch: number, pool: number): Update[] {
    const sizes = { batchTokens: this.#batchTokens, microBatchTokens: this.#microBatchTokens };
    return updatesOf(examples, sizes, this.#settings.shuffle === false ? null : [this.#seed, use.pool, epoch, pool]);
  }

  *#arrayPools(epoch: number, read: number): Generator<{ examples: Example[]; size: number }> {
    const order = [...this.#examples];
    if (this.#settings.shuffle !== false) shuffle(order, randomOf(this.#seed, use.order, epoch));
    while (read < order.length) {
      let end = read;
      for (let tokens = 0; end < order.length; ++end) {
        tokens += order[end].tokens;
        if (tokens > poolUpdates * this.#batchTokens && end > read) break;
      }
      yield { examples: order.slice(read, end), size: end - read };
      read = end;
    }
  }

  async *#streamPools(epoch: number, read: number): AsyncGenerator<{ examples: Example[]; size: number }> {
    const waiting: Example[][] = [];
    let want: Want = { skip: read };
    let none = read === 0;
    for (let ended = false; !ended || waiting.length > 0; ) {
      const examples: Example[] = [];
      let size = 0;
      for (let tokens = 0; tokens < poolUpdates * this.#batchTokens; ++size) {
        if (waiting.length === 0 && !ended) {
          const got = await this.#pull(want);
          want = {};
          ended = got.ended;
          for (const entry of got.entries) waiting.push(entry);
        }
        const entry = waiting.shift();
        if (!entry) break;
        tokens += tokensOf(entry);
        for (const example of entry) examples.push(example);
      }
      none &&= examples.length === 0;
      // Numbers tell where in the data an example is, whatever pieces it came in.
      for (const [i, example] of examples.entries()) example.index = i;
      yield { examples, size };
    }
    if (!none) return;
    if (epoch === 0) fail('dataset', 'at least one example', 'none');
    fail('dataset', `an iterable that can be read again, for epoch ${epoch + 1}`, `its end after ${this.#step} steps`);
  }

  #pull(want: Want): Promise<Piece> {
    const { emit, signal } = this.#call as TrainCall;
    const got = new Promise<Piece>((resolve) => {
      this.#hand = resolve;
    });
    emit(want);
    return untilAborted(got, signal);
  }

  /** All updates from the present position on, each with the position after it. */
  async *#run(): AsyncGenerator<Next, undefined> {
    let { epoch, read, pool, used } = this.#position;
    const { steps, epochs = steps === undefined ? 1 : Infinity } = this.#settings;
    for (; epoch < epochs; ++epoch, read = pool = used = 0) {
      const pools = this.#request.streams ? this.#streamPools(epoch, read) : this.#arrayPools(epoch, read);
      for await (const { examples, size } of pools) {
        this.#first ??= examples[0] ?? null;
        const updates = this.#updatesOf(examples, epoch, pool);
        const ends = !this.#request.streams && epoch + 1 === epochs && read + size === this.#examples.length;
        while (used < updates.length) {
          const update = updates[used++];
          yield { update, after: { epoch, read, pool, used }, last: ends && used === updates.length };
        }
        read += size;
        pool += 1;
        used = 0;
      }
    }
  }

  async #take({ update, after, last }: Next, began: number, signal: AbortSignal): Promise<TrainStep> {
    const { native, turn } = this.#host;
    const training = this.#native as NativeTraining;
    let tokens = 0;
    for (const examples of update) {
      signal.throwIfAborted();
      const { epoch, pool } = after;
      native.call(() => training.accumulate(this.#batch(examples, use.mask, epoch, pool)));
      tokens += tokensOf(examples);
      await turn();
    }
    signal.throwIfAborted();
    const { step, loss, gradientNorm, learningRate } = native.call(() => training.update());
    this.#host.learned();
    const tokensPerSecond = (tokens / (performance.now() - began)) * 1000;
    this.#step = step;
    this.#position = after;
    const result: TrainStep = { step, epoch: after.epoch + 1, loss, learningRate, gradientNorm, tokens, tokensPerSecond };
    const { evalEvery = 100, sampleEvery = this.#request.sample.asked ? 100 : 0 } = this.#settings;
    const due = (every: number) => step % every === 0 || step === this.#steps || last;
    if (this.#held.length > 0 && due(evalEvery)) result.evalLoss = await this.#evaluate(signal);
    if (sampleEvery > 0 && due(sampleEvery)) result.sample = await this.#host.sample(this.#prompt(), signal);
    return result;
  }

  async #evaluate(signal: AbortSignal): Promise<number> {
    const { native, turn } = this.#host;
    const training = this.#native as NativeTraining;
    let sum = 0;
    let count = 0;
    for (const examples of inOrder(this.#held, this.#microBatchTokens)) {
      const { loss, labels } = native.call(() => training.evaluate(this.#batch(examples, use.held)));
      sum += loss * labels;
      count += labels;
      await turn();
      signal.throwIfAborted();
    }
    return sum / count;
  }

  #batch(examples: Example[], ...keys: number[]): Record<string, Int32Array[]> {
    const masks = this.#masks;
    const all = examples.map((example) => (example.labels === null && masks ? masked(example, masks, this.#seed, ...keys) : example));
    const decoderInputIds = all.flatMap((example) => example.decoderInputIds ?? []);
    return {
      inputIds: all.map(({ inputIds }) => inputIds),
      labels: all.map(({ labels }) => labels as Int32Array),
      ...(decoderInputIds.length > 0 ? { decoderInputIds } : {}),
    };
  }

  /** What a sample begins with where nothing else is said: a source, or the beginning of a text. */
  #prompt(): Int32Array {
    const { inputIds } = (this.#held[0] ?? this.#first) as Example;
    return this.#reading.objective === 'seq2seq' ? inputIds : inputIds.subarray(0, Math.min(8, Math.ceil(inputIds.length / 2)));
  }

  /** What it takes to go on with it; null where it has not begun. */
  get resumable(): Resumable | null {
    const { native } = this.#host;
    const training = this.#native;
    if (!training) return this.#resumed;
    const count = this.#examples.length + (this.#request.hasEval ? 0 : this.#held.length);
    const names = this.#host.trained().map(({ name }) => name);
    return {
      state: {
        format,
        step: this.#step,
        position: this.#position,
        examples: this.#request.streams ? null : count,
        evalData: this.#request.hasEval,
        settings: this.#settings,
      },
      moments: (name) => {
        const { first, second } = native.call(() => training.moments(names.indexOf(name)));
        return [first.data, second.data];
      },
    };
  }

  /** Gives the optimiser's memory back; what it takes to go on is copied. */
  suspend(): void {
    const { resumable } = this;
    if (!this.#native || !resumable) return;
    const held = new Map(this.#host.trained().map(({ name }) => [name, resumable.moments(name)]));
    this.#resumed = { ...resumable, moments: (name) => held.get(name) as [Float32Array, Float32Array] };
    this.#native.delete();
    this.#native = null;
  }
}

/** How a model reads data. */
function readingOf({ info, generationConfig, tokenizer, needTokenizer }: TrainHost, settings: TrainSettings, maxTokens: number): Reading {
  const { contextLength, contextIsWall, encoderDecoder, encoderOnly, head, architecture, vocabSize, sourceVocabSize } = info;
  const objective: Objective = encoderDecoder ? 'seq2seq' : encoderOnly ? 'masked' : 'causal';
  if (head !== 'language' && head !== 'masked-language') {
    throw new WasmformerError(
      'unsupported',
      `[train] model: expected one that predicts tokens, got ${architecture} with the head '${head}'`,
    );
  }
  if ((settings.objective ?? objective) !== objective) {
    throw new WasmformerError('unsupported', `[train] objective: expected '${objective}' for ${architecture}, got '${settings.objective}'`);
  }
  const context = contextLength || Infinity;
  const { maxLength = Math.min(context, maxTokens), truncate = false } = settings;
  if (maxLength < 2) fail('maxLength', 'at least 2', maxLength);
  if (contextIsWall && maxLength > context) fail('maxLength', `at most ${context}`, maxLength);
  const id = (name: string) => ([generationConfig[name]].flat()[0] as number | undefined) ?? null;
  const own = tokenizer?.target ?? tokenizer;
  return {
    objective,
    tokenizer,
    needTokenizer,
    maxLength,
    maxTokens,
    truncate,
    vocabSize,
    sourceVocabSize: sourceVocabSize ?? vocabSize,
    eos: id('eos_token_id') ?? own?.specials.eos ?? null,
    start: id('decoder_start_token_id') ?? id('bos_token_id'),
    pad: id('pad_token_id') ?? own?.specials.pad ?? null,
  };
}
