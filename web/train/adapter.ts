import type { Call, Methods } from '../engine/host.ts';
import type { Native, NativeParameter, NativeSession } from '../engine/native.ts';
import { WasmformerError } from '../errors.ts';
import { type Destination, type FileOptions, jsonFile, type Output, openAdapter, type Source, safetensorsFile } from '../files/index.ts';
import type { FilePlatform } from '../platform/files.ts';
import type { ModelInfo, SavedFile } from '../types.ts';
import { modulesOf } from './adapter-modules.ts';
import type { AdapterSettings } from './adapter-options.ts';

/** What PEFT's files call the model around the names of its modules. */
const prefix = 'base_model.model.';
/** Keys of adapter_config.json that are read, or say nothing about what the adapter computes. */
const known = new Set(
  (
    'peft_type bias r lora_alpha target_modules exclude_modules layers_to_transform layers_pattern use_rslora init_lora_weights ' +
    'lora_dropout fan_in_fan_out task_type base_model_name_or_path revision inference_mode peft_version auto_mapping megatron_core ' +
    'qalora_group_size ensure_weight_tying'
  ).split(' '),
);

const isNames = (value: unknown) => typeof value === 'string' || (Array.isArray(value) && value.every((name) => typeof name === 'string'));
const isNumbers = (value: unknown) => [value].flat().every(Number.isInteger);

/** What an adapter_config.json says, or that it says something that is not built. */
function settingsOf(config: Record<string, unknown>): AdapterSettings {
  const wrong = (key: string, expected: string, code: 'unsupported' | 'invalid-file' = 'invalid-file'): never => {
    throw new WasmformerError(code, `[adapter_config.json] ${key}: expected ${expected}, got ${JSON.stringify(config[key])}`);
  };
  if (config.peft_type !== 'LORA') wrong('peft_type', '"LORA"', 'unsupported');
  if ((config.bias ?? 'none') !== 'none') wrong('bias', '"none"', 'unsupported');
  // Others begin by changing the weights that they are put beside.
  if (![true, false, 'gaussian'].includes((config.init_lora_weights ?? true) as boolean)) wrong('init_lora_weights', 'true', 'unsupported');
  for (const [key, value] of Object.entries(config)) {
    if (!known.has(key) && !/^(null|false|{})$/.test(JSON.stringify(value))) wrong(key, 'null', 'unsupported');
  }
  const { r = 8, lora_alpha = 8, use_rslora = false, target_modules, exclude_modules, layers_to_transform, layers_pattern } = config;
  if (!(Number.isInteger(r) && (r as number) >= 1)) wrong('r', 'an integer from 1');
  if (typeof lora_alpha !== 'number') wrong('lora_alpha', 'a number');
  if (!isNames(target_modules) || (target_modules as string).length === 0) wrong('target_modules', 'names of linear layers');
  if (!isNames(exclude_modules ?? [])) wrong('exclude_modules', 'names');
  if (!isNumbers(layers_to_transform ?? [])) wrong('layers_to_transform', 'numbers of layers');
  if (!isNames(layers_pattern ?? [])) wrong('layers_pattern', 'names');
  if (typeof use_rslora !== 'boolean') wrong('use_rslora', 'true or false');
  return { r, lora_alpha, use_rslora, ...config } as unknown as AdapterSettings;
}

/** What adapters need of the engine. */
export interface AdapterHost {
  files: FilePlatform;
  /** Runs work as one turn in the queue of the model's calls, refused while a training runs. */
  exclusively<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>;
  /** Runs work as one turn in the queue. */
  queued<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T>;
  /** Writes files, and with `optimizer` what it takes to go on with the last training. */
  write(where: string, files: Output[], to: Destination, optimizer: boolean): Promise<SavedFile[] | undefined>;
  model(): { native: Native; session: NativeSession; config: Readonly<Record<string, unknown>>; info: ModelInfo };
}

/** The low-rank changes of a model's weights, one set at a time, in the files of the PEFT library. */
export class Adapter {
  readonly #host: AdapterHost;
  #settings: AdapterSettings | null = null;
  /** What it consists of; null: there is none. */
  parameters: NativeParameter[] | null = null;
  /** Where a saved training of it lies, if one does. */
  training?: { source: Source; options: FileOptions } | undefined;

  constructor(host: AdapterHost) {
    this.#host = host;
  }

  methods(): Methods {
    const { exclusively, queued } = this.#host;
    return {
      addAdapter: (settings: AdapterSettings, seed: number, { signal }: Call) => exclusively(async () => this.#add(settings, seed), signal),
      loadAdapter: (source: Source, options: FileOptions, { signal }: Call) =>
        exclusively(() => this.#load(source, { ...options, signal }), signal),
      saveAdapter: (to: Destination, optimizer: boolean, { signal }: Call) => queued(() => this.#save(to, optimizer), signal),
      mergeAdapter: ({ signal }: Call) => exclusively(async () => this.#end('mergeAdapter'), signal),
      removeAdapter: ({ signal }: Call) => exclusively(async () => this.#end('removeAdapter'), signal),
    };
  }

  /** Without a seed it is one that there is. */
  #add(settings: AdapterSettings, seed?: number): void {
    const { native, session, info } = this.#host.model();
    const { r, lora_alpha, use_rslora } = settings;
    const own = { r, lora_alpha, use_rslora };
    const target_modules = modulesOf(
      settings,
      native.call(() => session.parameters()),
      info.head,
      seed === undefined,
    );
    this.parameters = native.call(() => session.addAdapter({ ...own, target_modules, seed: seed ?? 0 }));
    this.#settings = { ...own, target_modules };
    this.training = undefined;
  }

  #end(call: 'mergeAdapter' | 'removeAdapter'): void {
    const { native, session } = this.#host.model();
    native.call(() => session[call]());
    this.parameters = this.#settings = null;
    this.training = undefined;
  }

  async #load(source: Source, options: FileOptions): Promise<void> {
    const { native, session } = this.#host.model();
    const { config, tensors } = await openAdapter(source, options, this.#host.files);
    this.#add(settingsOf(config));
    try {
      for (const [index, { name, shape }] of this.parameters!.entries()) {
        const tensor = tensors.get(prefix + name);
        const what = `[adapter_model.safetensors] ${prefix}${name}: `;
        if (!tensor) throw new WasmformerError('missing-tensor', `${what}no such tensor`);
        if (`${tensor.shape}` !== `${shape}`) {
          throw new WasmformerError('shape-mismatch', `${what}expected shape [${shape}], got [${tensor.shape}]`);
        }
        native.call(() => session.writeAdapter(index, tensor.dtype, tensor.bytes));
        tensors.delete(prefix + name);
      }
      const [more] = tensors.keys();
      if (more) throw new WasmformerError('unsupported', `[adapter_model.safetensors] ${more}: of no module that is adapted`);
      this.training = { source, options };
    } catch (reason) {
      this.#end('removeAdapter');
      throw reason;
    }
  }

  async #save(to: Destination, optimizer: boolean): Promise<SavedFile[] | undefined> {
    const { native, session, config, info } = this.#host.model();
    const { parameters } = this;
    if (!parameters) throw new WasmformerError('invalid-argument', '[saveAdapter] model: expected one with an adapter, got one without');
    const settings = {
      peft_type: 'LORA',
      task_type: config.is_encoder_decoder ? 'SEQ_2_SEQ_LM' : info.encoderOnly ? null : 'CAUSAL_LM',
      base_model_name_or_path: config._name_or_path ?? null,
      inference_mode: true,
      bias: 'none',
      // GPT-2's matrices are stored (in, out).
      fan_in_fan_out: config.model_type === 'gpt2',
      lora_dropout: 0,
      init_lora_weights: true,
      ...this.#settings,
    };
    const data = (index: number) => () => native.call(() => session.adapterParameter(index)).data;
    const stored = parameters.map(({ name, shape }, index) => ({ name: prefix + name, shape, data: data(index) }));
    const files = [jsonFile('adapter_config.json', settings), safetensorsFile('adapter_model.safetensors', stored)];
    return this.#host.write('saveAdapter', files, to, optimizer);
  }
}
