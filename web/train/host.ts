import type { Call, Methods } from '../engine/host.ts';
import type { Native, NativeParameter, NativeSession } from '../engine/native.ts';
import type { Queue } from '../engine/queue.ts';
import { WasmformerError } from '../errors.ts';
import {
  bytesFile,
  type Destination,
  type FileOptions,
  jsonFile,
  type Kept,
  type Output,
  openTraining,
  type Source,
  safetensorsFile,
  type Tokenizer,
  writeFiles,
} from '../files/index.ts';
import { decodeText } from '../files/json.ts';
import type { CheckedPrompt, GenerateRequest } from '../options.ts';
import type { FilePlatform } from '../platform/files.ts';
import type { GenerateResult, ModelInfo, SavedFile, TrainStep } from '../types.ts';
import { Adapter } from './adapter.ts';
import { fail, type Item } from './examples.ts';
import type { TextFiles, TrainRequest } from './options.ts';
import { type Resumable, type TrainerState, Training } from './training.ts';

/** What a model that can be trained was made from. */
export interface Origin {
  /** The files of its tokenizer. */
  kept: Kept;
  /** Where a saved training lies, if one does. */
  training?: { source: Source; options: FileOptions };
}

/** A model, as trainings see it. */
export interface Trainee {
  native: Native;
  session: NativeSession;
  tokenizer: Tokenizer | null;
  needTokenizer(): Tokenizer;
  info: ModelInfo;
  config: Readonly<Record<string, unknown>>;
  generationConfig: Readonly<Record<string, unknown>>;
  /** null: it cannot be trained. */
  origin: Origin | null;
}

/** What trainings need of the engine. */
export interface TrainingsHost {
  files: FilePlatform;
  queue: Queue;
  turn(): Promise<void>;
  trainee(): Trainee;
  /** Generates out of turn, from within one. */
  generate(prompt: CheckedPrompt, request: GenerateRequest, signal: AbortSignal): Promise<GenerateResult>;
}

const moments = ['exp_avg', 'exp_avg_sq'] as const;
const trainingFiles = ['optimizer.safetensors', 'trainer_state.json'] as const;

/** The engine's methods for training a model and saving it. The last training is kept, for one that goes on with it. */
export class Trainings {
  readonly #host: TrainingsHost;
  #training: Training | null = null;
  /** The one that has taken the optimiser's memory; until it has learned something, the last is another. */
  #begun: Training | null = null;
  /** The training that runs, under the number that the caller gave it. */
  #active: { id: number; training?: Training } | null = null;
  readonly #adapter: Adapter;

  constructor(host: TrainingsHost) {
    this.#host = host;
    const exclusively = <T>(work: () => Promise<T>, signal: AbortSignal) =>
      host.queue.run(async () => {
        if (this.#active) throw new WasmformerError('busy', '[adapter] model: a training runs: leave its loop or abort it first');
        this.#begun?.suspend();
        const before = this.#adapter.parameters;
        const result = await work();
        // What they were about to go on with is of other weights.
        if (this.#adapter.parameters !== before) this.#training = this.#begun = null;
        return result;
      }, signal);
    this.#adapter = new Adapter({
      files: host.files,
      exclusively,
      queued: (work, signal) => host.queue.run(work, signal),
      write: (where, files, to, optimizer) => this.#write(where, files, to, optimizer),
      model: host.trainee,
    });
  }

  /** Where what is trained comes from. */
  #origin(): Pick<Origin, 'training'> | null {
    return this.#adapter.parameters ? this.#adapter : this.#host.trainee().origin;
  }

  /** What is trained: the adapter, where there is one, and otherwise the weights. */
  #trained(): readonly NativeParameter[] {
    const { native, session } = this.#host.trainee();
    return this.#adapter.parameters ?? native.call(() => session.parameters());
  }

  #running(id: number): Training | undefined {
    return this.#active?.id === id ? this.#active.training : undefined;
  }

  methods(): Methods {
    return {
      ...this.#adapter.methods(),
      startTraining: (id: number, request: TrainRequest, call: Call) => this.#start(id, request, call),
      feedTraining: (id: number, items: Item[], held: boolean, ended: boolean, call: Call) =>
        this.#running(id)?.feed(items, held, ended, call),
      trainStep: (id: number, call: Call): Promise<TrainStep | null> | undefined => this.#running(id)?.step(call),
      endTraining: (id: number) => {
        if (this.#active?.id === id) this.#active = null;
      },
      save: (to: Destination, optimizer: boolean, call: Call) => this.#host.queue.run(() => this.#save(to, optimizer), call.signal),
    };
  }

  async #start(id: number, request: TrainRequest, call: Call): Promise<void> {
    const { signal } = call;
    const { queue, turn } = this.#host;
    const trainee = this.#host.trainee();
    if (!trainee.origin && !this.#adapter.parameters) {
      fail('model', 'one made by create, or loaded with trainable: true, or with an adapter', 'a frozen one');
    }
    if (this.#active) throw new WasmformerError('busy', '[train] model: another training runs: leave its loop or abort it first');
    const active: { id: number; training?: Training } = { id };
    this.#active = active;
    try {
      const training = await queue.run(async () => {
        const resumed = request.resume ? await this.#resumable(call) : null;
        const training: Training = new Training(
          {
            ...trainee,
            // What was saved beside other weights is of no use to these.
            learned: () => {
              this.#training = training;
              delete this.#origin()?.training;
            },
            begin: (start) => {
              // There is never room taken for two; where this one does not come to learn, the last can still be gone on with.
              this.#begun?.suspend();
              start();
              this.#begun = training;
            },
            trained: () => this.#trained(),
            turn,
            queued: (work, signal) => queue.run(work, signal),
            sample: (ids, signal) => this.#sample(request, ids, signal),
          },
          request,
          resumed,
        );
        return training;
      }, signal);
      active.training = training;
      for (const [files, held] of [
        [request.evalFiles, true],
        [request.files, false],
      ] as const) {
        if (files) await training.feed(await this.#read(files, trainee.info.encoderDecoder, signal), held, true, { signal });
      }
      signal.throwIfAborted();
    } catch (reason) {
      if (this.#active === active) this.#active = null;
      throw reason;
    }
  }

  /** The last training here, the one that the model was saved with, or one that has learned nothing yet. */
  async #resumable({ signal, emit }: Call): Promise<Resumable> {
    this.#begun?.suspend();
    const last = this.#training?.resumable;
    if (last) return last;
    const at = this.#origin()?.training;
    const saved = at && (await openTraining(at.source, { ...at.options, signal }, this.#host.files));
    if (!saved) {
      const begun = this.#begun?.resumable;
      return begun ?? fail('resume', 'a model that has been trained, or was saved with optimizer: true', 'one without a training');
    }
    const { state, moments: found } = saved;
    // The caller's side knows all options, and ends the call where the state is none.
    emit(state);
    if (state.weights !== (await this.#checksum())) {
      throw new WasmformerError('invalid-file', '[trainer_state.json] weights: expected those that it was saved with, got others');
    }
    return {
      state: state as unknown as TrainerState,
      moments: (name) =>
        moments.map((moment, squares) => {
          const what = `[optimizer.safetensors] ${moment}.${name}`;
          const data = found.get(`${moment}.${name}`);
          if (!data) throw new WasmformerError('missing-tensor', `${what}: no such tensor`);
          const wrong = data.find((value) => !(Math.abs(value) < Infinity && (!squares || value >= 0)));
          if (wrong === undefined) return data;
          throw new WasmformerError('invalid-file', `${what}: expected finite numbers${squares ? ' >= 0' : ''}, got ${wrong}`);
        }) as [Float32Array, Float32Array],
    };
  }

  /** A number that tells what is trained from others. */
  async #checksum(): Promise<number> {
    const { native, session } = this.#host.trainee();
    const read = this.#adapter.parameters ? 'adapterParameter' : 'parameter';
    let sum = 0;
    for (const i of this.#trained().keys()) {
      const { buffer, byteOffset, length } = native.call(() => session[read](i)).data;
      for (const bits of new Uint32Array(buffer, byteOffset, length)) sum = (Math.imul(sum, 31) + bits) | 0;
      await this.#host.turn();
    }
    return sum;
  }

  /** Entries of text files. */
  async #read({ files, lines }: TextFiles, pairs: boolean, signal: AbortSignal): Promise<Item[]> {
    const { local } = this.#host.files;
    const items: Item[] = [];
    for (const file of files) {
      let bytes: Uint8Array;
      if (typeof file !== 'string') bytes = new Uint8Array(await file.arrayBuffer());
      else if (!local) throw new WasmformerError('unsupported', '[train] file: a page has no paths: pass a Blob');
      else if ((await local.kind(file)) !== 'file') throw new WasmformerError('not-found', `[train] file: no such file: ${file}`);
      else {
        const { folder, file: name } = local.split(file);
        const source = await local.open(folder, name);
        bytes = await source.read(0, source.size, signal);
      }
      const text = decodeText(bytes, typeof file === 'string' ? file : 'file');
      if (!(lines ?? pairs)) items.push({ text });
      else {
        for (const line of text.split(/\r?\n/)) {
          const [source, target, ...more] = line.split('\t');
          if (pairs && target !== undefined && more.length === 0) items.push({ source, target });
          else if (line !== '') items.push({ text: line });
        }
      }
    }
    return items;
  }

  async #sample({ sample }: TrainRequest, ids: Int32Array, signal: AbortSignal): Promise<string> {
    const { info, tokenizer } = this.#host.trainee();
    const prompt = sample.prompt ?? { ids };
    const { text, tokenIds } = await this.#host.generate(prompt, sample.request, signal);
    if (!tokenizer) return tokenIds.join(' ');
    if (info.encoderDecoder) return text;
    return ('text' in prompt ? prompt.text : tokenizer.decode(Array.from(prompt.ids), { skipSpecialTokens: true })) + text;
  }

  async #save(to: Destination, optimizer: boolean): Promise<SavedFile[] | undefined> {
    const { native, session, config, generationConfig, origin } = this.#host.trainee();
    if (!origin) throw new WasmformerError('unsupported', '[save] model: expected one made by create, or loaded with trainable: true');
    if (this.#adapter.parameters) {
      throw new WasmformerError('unsupported', '[save] model: one with an adapter: mergeAdapter first, or saveAdapter');
    }
    const parameters = native.call(() => session.parameters());
    const files: Output[] = Array.from(origin.kept, ([name, make]) => bytesFile(name, make()));
    files.push(
      jsonFile('config.json', { ...config, ...('dtype' in config ? { dtype: 'float32' } : {}), torch_dtype: 'float32' }),
      jsonFile('generation_config.json', generationConfig),
      safetensorsFile(
        'model.safetensors',
        parameters.map(({ name, shape }, i) => ({ name, shape, data: () => native.call(() => session.parameter(i)).data })),
      ),
    );
    return this.#write('save', files, to, optimizer);
  }

  /** Writes files, and with `optimizer` what it takes to go on with the last training. */
  async #write(where: string, files: Output[], to: Destination, optimizer: boolean): Promise<SavedFile[] | undefined> {
    if (optimizer) {
      const resumable = (this.#training ?? this.#begun)?.resumable;
      if (!resumable) {
        const message = `[${where}] optimizer: expected a model that has been trained, got one that has not`;
        throw new WasmformerError('invalid-argument', message);
      }
      files.push(
        safetensorsFile(
          trainingFiles[0],
          this.#trained().flatMap(({ name, shape }) =>
            moments.map((moment, which) => ({ name: `${moment}.${name}`, shape, data: () => resumable.moments(name)[which] })),
          ),
        ),
        // The last to get its name: what stands beside others than it was saved with is refused.
        jsonFile(trainingFiles[1], { ...resumable.state, weights: await this.#checksum() }),
      );
    }
    return writeFiles(files, to, this.#host.files, this.#host.turn, optimizer ? [] : trainingFiles);
  }
}
