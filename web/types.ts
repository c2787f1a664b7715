/// <reference lib="esnext.disposable" preserve="true" />
import type { ErrorCode } from './errors.ts';
import type { Progress } from './files/context.ts';
import type { Source } from './files/folder.ts';
import type { EmbeddingInfo } from './task-types.ts';
import type { TrainedTokenizer } from './train/tokenizer.ts';

export type { Progress, Source };

/** A copy the caller owns: `data` is row-major float32, `shape` its dimensions. */
export interface Tensor {
  data: Float32Array;
  shape: number[];
}

/**
 * How weights are kept in memory. `q8` and `q4`: blocks of 32 with a scale each, in eight and four bits (token embeddings and heads keep
 * eight), multiplied by activations that are rounded to seven and eight bits on the way; the others compute in float32.
 */
export type Dtype = 'f32' | 'f16' | 'bf16' | 'q8' | 'q4';

/** What `load` takes beside the source. An option that is not here throws `invalid-argument`. */
export interface LoadOptions {
  /**
   * How weights are kept in memory; by default as in the file (a float64 file as `f32`; of GGUF's formats Q4_0, Q4_1 and Q4_K as
   * `q4`, all others of few bits as `q8`). With `trainable`, `f32` alone.
   */
  dtype?: Dtype;
  /**
   * How keys and values of past tokens are kept. `f16` halves the cache's memory and rounds to eleven bits; a number beyond 65504, which
   * f16 does not have, ends the call with an error. Default `f32`.
   */
  cacheDtype?: 'f32' | 'f16';
  /** A branch, tag or commit of a Hub repository. Default `main`. */
  revision?: string;
  /** A Hub access token. It is sent to `endpoint` only, never to where that redirects. */
  token?: string;
  /** Where the Hub is. Default the public one; a mirror or a test server otherwise. */
  endpoint?: string;
  /** Where downloads are kept: a folder in Node, a name in the browser's private file system; `false` keeps nothing. */
  cacheDir?: string | false;
  /** Use only what has been downloaded before; anything missing is an `offline` error. */
  offline?: boolean;
  /** Called as bytes arrive, at most once a file every 50 ms, and at each file's end. If it throws, `load` rejects with that. */
  onProgress?: (progress: Progress) => void;
  /** Abandons the load: the promise rejects with the signal's reason, and what was taken is given back. */
  signal?: AbortSignal;
  /**
   * Threads to compute with, from 1 to 64. Default: as many as the machine has cores, at most 8. The results are the same bits for
   * any number. In a page that is not cross-origin isolated, or with `worker: false` in a page, there is one; `info().threads` says so.
   */
  threads?: number;
  /** The same seed gives the same tokens in every engine: chooses the SIMD level whose results are defined to the last bit. Default `false`. */
  deterministic?: boolean;
  /** `false` computes in the calling thread, which blocks it for one token or prefill chunk at a time. Default `true`. */
  worker?: boolean;
  /** Keep the weights so that `train`, `gradients` and `save` work: in float32, with room for as many gradients. */
  trainable?: boolean;
  /** The `.wasm` file to use, of either SIMD level, in place of the one chosen of the two beside the package's own JavaScript. */
  wasmUrl?: string | URL;
  /** Where the worker's script (`worker.js`, in Node `node-worker.js`) is, if not beside the package's own JavaScript. */
  workerUrl?: string | URL;
  /** How downloads behave: `retries` (times), `retryDelay`, `stallTimeout`, `cacheWait` (milliseconds). */
  network?: { retries?: number; retryDelay?: number; stallTimeout?: number; cacheWait?: number };
}

/** A prompt: text, or the ids of its tokens, which are used as they are. */
export type Prompt = string | { inputIds: ArrayLike<number> };

/** One message of a conversation; templates may use more fields than these. */
export interface ChatMessage {
  role: string;
  content: unknown;
  [field: string]: unknown;
}

/**
 * How to generate. The first part has Hugging Face's names in camelCase with the same meaning, order of processing and
 * defaults; the model's own `generation_config.json` comes before those defaults. `null` switches the model's own value
 * off. A sampling option (`temperature`, `topK`, `topP`, `minP`, `topH`, `typicalP`, `epsilonCutoff`, `etaCutoff`) turns
 * sampling on unless `doSample: false` is given with it, which throws.
 */
export interface GenerateOptions {
  /** Most tokens to generate, >= 1. Without any length, from the caller or the model, 256. */
  maxNewTokens?: number | null;
  /** Most tokens of prompt and continuation together; `maxNewTokens` wins where both are given, the model's own too. */
  maxLength?: number | null;
  /** No end-of-sequence token before this many new tokens. */
  minNewTokens?: number | null;
  /** No end-of-sequence token before prompt and continuation have this many tokens. */
  minLength?: number | null;
  /** Seconds; ends with `finishReason: 'time'` after the token during which it passes. */
  maxTime?: number | null;
  /** Text that ends generation (`finishReason: 'stop'`) and is cut from the result. */
  stopStrings?: string | readonly string[] | null;
  /** Draw from the distribution instead of taking its maximum. */
  doSample?: boolean | null;
  /** Divides the logits; > 0. Default 1. */
  temperature?: number | null;
  /** Keep the k likeliest tokens; 0 keeps all. Default 50, as in Hugging Face. */
  topK?: number | null;
  /** Keep the fewest likeliest tokens whose probabilities reach this sum, 0 to 1 (Holtzman et al. 2019). */
  topP?: number | null;
  /** Keep tokens at least this fraction as likely as the likeliest, 0 to 1 (Nguyen et al. 2024). */
  minP?: number | null;
  /** Keep tokens while the entropy stays under this share of the distribution's, 0 to 1 (Baghaei Potraghloo et al. 2025). */
  topH?: number | null;
  /** Locally typical sampling: probability mass to keep, 0 to 1 (Meister et al. 2022). */
  typicalP?: number | null;
  /** Drop tokens less likely than this, 0 to 1 (Hewitt et al. 2022). */
  epsilonCutoff?: number | null;
  /** Eta sampling's cut-off, 0 to 1 (Hewitt et al. 2022). */
  etaCutoff?: number | null;
  /** Divides positive and multiplies negative logits of tokens seen so far, prompt included; > 0 (Keskar et al. 2019). */
  repetitionPenalty?: number | null;
  /** No n-gram of this size twice; 0 is off. */
  noRepeatNgramSize?: number | null;
  /** No n-gram of this size that the source has (without an encoder: the prompt); 0 is off. */
  encoderNoRepeatNgramSize?: number | null;
  /** Makes tokens of the source (without an encoder: of the prompt) likelier above 1, less likely below; > 0. */
  encoderRepetitionPenalty?: number | null;
  /** Token sequences that may not occur. */
  badWordsIds?: readonly (readonly number[])[] | null;
  /** Added to the logit of a sequence's last token after its first ones: `[[ids, bias], ...]`. */
  sequenceBias?: readonly (readonly [readonly number[], number])[] | null;
  /** Tokens that are never generated. */
  suppressTokens?: readonly number[] | null;
  /** Tokens that may not be the first generated. */
  beginSuppressTokens?: readonly number[] | null;
  /** The token forced at `maxLength`. */
  forcedEosTokenId?: number | readonly number[] | null;
  /** The token forced first where the sequence so far is one token. */
  forcedBosTokenId?: number | null;
  /** `[start, factor]`: after `start` new tokens the end-of-sequence logits grow exponentially. */
  exponentialDecayLengthPenalty?: readonly [number, number] | null;
  /** Normalise the processed logits again. */
  renormalizeLogits?: boolean | null;
  /** Replace NaN by 0 and infinities by the largest numbers. */
  removeInvalidValues?: boolean | null;
  /** The tokens that end a sequence. */
  eosTokenId?: number | readonly number[] | null;
  /** Starts the sequence where the prompt has no token at all. */
  bosTokenId?: number | null;
  /** Starts the decoder of an encoder-decoder model; one for all prompts, or one for each. */
  decoderStartTokenId?: number | readonly number[] | null;
  /** Accepted because published configurations have it; nothing is padded here. */
  padTokenId?: number | null;
  /** How many continuations of each prompt, at most 65536; more than 1 needs sampling, or as many beams. */
  numReturnSequences?: number | null;
  /**
   * Beam search (with sampling: beam sampling) with so many beams where it is more than 1, at most 65536. Pieces come when
   * a prompt's search is over, its best sequence first. Not with `stopStrings` or `cache`.
   */
  numBeams?: number | null;
  /** A finished beam's score is its log-probability over its number of generated tokens to this power. Default 1. */
  lengthPenalty?: number | null;
  /**
   * When beam search is over: `true` as soon as `numBeams` sequences are finished, `false` (the default) where no beam at its
   * present length would beat the worst of those, `'never'` where no beam can any more.
   */
  earlyStopping?: boolean | 'never' | null;

  /**
   * What the tokens of an encoder-decoder model's decoder begin with, one list for all prompts or one for each; the start
   * token goes before where it is missing. They are not generated: not in the result, and none of them ends it.
   */
  decoderInputIds?: ArrayLike<number> | readonly ArrayLike<number>[];
  /** Where the random numbers start: an integer from 0 to 2^53 - 1. Chosen at random, and reported, where it is absent. */
  seed?: number;
  /** Report the chosen token's log-probability and those of the n likeliest, in the processed distribution. */
  logprobs?: number;
  /** Subtracts this times a token's number of occurrences among the generated (OpenAI's formula). */
  frequencyPenalty?: number;
  /** Subtracts this from the logit of every token generated so far (OpenAI's formula). */
  presencePenalty?: number;
  /** Added to the logits of single tokens: `{ [id]: bias }`. */
  logitBias?: Readonly<Record<number, number>> | ReadonlyMap<number, number>;
  /** Add what the tokenizer puts around a text (a start token, say). Default `true`, for `chat` `false`. */
  addSpecialTokens?: boolean;
  /** Leave special tokens out of the text. Default `true`. */
  skipSpecialTokens?: boolean;
  /**
   * What to do with a prompt longer than the model's context: by default a learned position table refuses it and other
   * models go on. `'left'` (the same as `true`) drops its beginning, `'right'` its end, so that room for `maxNewTokens`,
   * but at least half of the context, is left to the prompt; a start token added by the tokenizer stays.
   */
  truncation?: boolean | 'left' | 'right';
  /** Keys and values of an earlier call; what the prompt shares with them from its beginning is not computed again. */
  cache?: Cache;
  /**
   * Look at one forward pass over each sequence that was generated, prompt and continuation, of an encoder-decoder model the
   * prompt and what its decoder read and wrote. Not of a sequence that was aborted.
   */
  attentions?: AttentionRequest;
  hiddenStates?: boolean;
  trace?: AttentionRequest;
  /** Ends generation with `finishReason: 'aborted'` within one token or prefill chunk. */
  signal?: AbortSignal;
}

/** What `chat` takes beside `generate`'s options. */
export interface ChatOptions extends GenerateOptions {
  /** A Jinja template to use in place of the model's own. */
  chatTemplate?: string;
  /** End the prompt where the assistant's turn begins. Default `true`. */
  addGenerationPrompt?: boolean;
  /** Tool descriptions, for templates that take them. */
  tools?: readonly unknown[];
  /** Documents, for templates that take them. */
  documents?: readonly unknown[];
  /** Further variables of the template, such as `{ enable_thinking: false }`. */
  templateVariables?: Readonly<Record<string, unknown>>;
}

/** One token as it is generated. */
export interface Piece {
  /** What this token adds to the text; empty while UTF-8 is incomplete or a stop string may be beginning. */
  text: string;
  tokenId: number;
  /** Natural logarithm of the token's probability in the processed distribution; with beams, its processed score. */
  logprob: number;
  /** Which prompt, or which return sequence: prompt * numReturnSequences + n. */
  sequence: number;
  /** Position among the generated tokens. */
  index: number;
  /** With `logprobs: n`: the n likeliest tokens, best first. */
  top?: TokenLogprob[];
}

export interface TokenLogprob {
  tokenId: number;
  logprob: number;
}

/**
 * Why a sequence ended: `stop` an end-of-sequence token or a stop string, `length` `maxNewTokens`, `maxLength` or a
 * learned position table's end, `time` `maxTime`, `aborted` the signal, or the loop over the pieces was left.
 */
export type FinishReason = 'stop' | 'length' | 'time' | 'aborted';

/** One generated sequence, and what was looked at in it. */
export interface GenerateResult extends Looks {
  /** The continuation, without the prompt: the pieces' texts joined. */
  text: string;
  /** The generated tokens, with the final end-of-sequence token where one was generated. */
  tokenIds: number[];
  finishReason: FinishReason;
  /**
   * Sum of the generated tokens' log-probabilities in the processed distribution; of beam search Hugging Face's
   * `sequences_scores`: divided by their number to the power `lengthPenalty`.
   */
  score: number;
  /** Tokens of the prompt, after truncation. */
  promptTokens: number;
  /** The seed in use; the same one gives the same tokens. */
  seed: number;
  /** With `logprobs: n`, one entry a generated token. */
  logprobs?: (TokenLogprob & { top: TokenLogprob[] })[];
  /** What a caller should know: the context length was passed, say. */
  notes?: string[];
}

/** What `forward` computes on. Each array has one entry a sequence; sequences may differ in length. */
export interface ForwardInput {
  /** (T) token ids each; one flat list is one sequence. */
  inputIds: readonly ArrayLike<number>[] | ArrayLike<number>;
  /** (T) each: 1 for tokens, 0 for padding. */
  attentionMask?: readonly ArrayLike<number | boolean>[] | ArrayLike<number | boolean>;
  /** (T) positions each; by default as Python derives them. */
  positionIds?: readonly ArrayLike<number>[] | ArrayLike<number>;
  /** (T) each: which segment a token belongs to, for models that know segments (BERT); by default all to the first, 0. */
  tokenTypeIds?: readonly ArrayLike<number>[] | ArrayLike<number>;
  /** The decoder's tokens, for encoder-decoder models. */
  decoderInputIds?: readonly ArrayLike<number>[] | ArrayLike<number>;
  /** As `attentionMask`, of the decoder's tokens. */
  decoderAttentionMask?: readonly ArrayLike<number | boolean>[] | ArrayLike<number | boolean>;
}

/** What to look at: all, or only some layers and heads. */
export type AttentionRequest = boolean | { layers?: readonly number[]; heads?: readonly number[] };

/** What may be looked at on the way; asking never changes what is computed. */
export interface LookOptions {
  /** Return attention weights. */
  attentions?: AttentionRequest;
  /** Return the hidden states of the embedding and of each layer. */
  hiddenStates?: boolean;
  /** Return what happens inside each block (`Looks.trace`). */
  trace?: AttentionRequest;
}

export interface ForwardOptions extends LookOptions {
  /** Return what the head says of each hidden state: all logits, or with `topK` the likeliest tokens only. */
  logitLens?: boolean | { topK: number };
  /** Abandons the computation: the promise rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** What was looked at. T counts all tokens of a sequence, padding (rows of zeros) included; S is the keys' count. */
export interface Looks {
  /** (T, D) each: the embedding first, then one a layer, the last after the final norm where the model has one. */
  hiddenStates?: Tensor[];
  /** (H, T, S), one a requested layer, in the order requested. */
  attentions?: Tensor[];
  encoderHiddenStates?: Tensor[];
  decoderHiddenStates?: Tensor[];
  encoderAttentions?: Tensor[];
  decoderAttentions?: Tensor[];
  crossAttentions?: Tensor[];
  /**
   * By name, the stack (`layers`; of an encoder-decoder model `encoder` and `decoder`), the layer and the block:
   * `layers.0.attention.query`, `decoder.3.crossAttention.scores`, `encoder.1.feedForward.inner`. Of attention: `query` (H, T, Dk),
   * as it meets the keys (normed and rotated where the model does so), `key` (Hk, S, Dk), `value` (Hk, S, Dv), `scores` (H, T, S),
   * what the weights are the softmax of (-Infinity where hidden), and `heads` (H, T, Dv), what each head gives before the output
   * projection. Of the feed-forward network `inner` (T, F), its activations. With `heads` chosen, keys and values are those that
   * the chosen heads read, each once.
   */
  trace?: Record<string, Tensor>;
  /** What the tokens of the sequence stand for (`tokenStrings`), the axes of its attention; where the model has a tokenizer. */
  tokens?: string[];
  /** The same of an encoder-decoder model, which has two texts. */
  sourceTokens?: string[];
  targetTokens?: string[];
}

/** One sequence's forward pass. T counts all its tokens, padding included, whose rows are zeros. */
export interface ForwardResult extends Looks {
  /**
   * (T, V) of a model that predicts tokens, (T, labels) or (labels) of one that labels tokens or texts. Other models have none:
   * those that answer questions give `startLogits` and `endLogits`, those without a head `lastHiddenState`.
   */
  logits?: Tensor;
  /** (T): where an answer starts and ends, of a model for questions. */
  startLogits?: Tensor;
  endLogits?: Tensor;
  /** (T, D), of a model without a head. */
  lastHiddenState?: Tensor;
  /** (D): what such a model's pooler makes of the text, where it has one. */
  pooled?: Tensor;
  /**
   * What the model would predict if it ended after each layer: its head applied to each hidden state, normed as the model would
   * (nostalgebraist 2020). One a hidden state, the embedding first; the last is `logits`. Of an encoder-decoder model the decoder's.
   */
  logitLens?: Tensor[] | LensTop[];
}

/** The k likeliest tokens after each position, from one hidden state; a row of padding has none. */
export interface LensTop {
  /** (T, k), the likeliest first. */
  ids: number[][];
  /** (T, k) natural logarithms of their probabilities. */
  logprobs: number[][];
  /** (T, k), where the model has a tokenizer. */
  tokens?: string[][];
}

/** A weight of a model. */
export interface ParameterInfo {
  /** Its published name. */
  name: string;
  /** As published. */
  shape: number[];
  /** How it is kept in memory. */
  dtype: Dtype;
}

/** What `create` takes beside the configuration. */
export interface CreateOptions
  extends Pick<
    LoadOptions,
    'dtype' | 'cacheDtype' | 'signal' | 'threads' | 'deterministic' | 'worker' | 'trainable' | 'wasmUrl' | 'workerUrl'
  > {
  /** Where the random numbers start: an integer from 0 to 2^53 - 1. Default 0. The same seed gives the same weights in every engine. */
  seed?: number;
  /**
   * A tokenizer of `trainTokenizer`, or where its files are, as for `load`; weights there are not looked at. Without it the model works
   * with ids.
   */
  tokenizer?: Source | TrainedTokenizer;
}

/** What a model says about its states: next tokens, masked tokens, labels of texts or tokens, answers' ends, or nothing. */
export type HeadKind = 'language' | 'masked-language' | 'sequence' | 'token' | 'question' | 'none';

/** How likely a text is. */
export interface Score {
  tokenIds: number[];
  /** Log-probability of each token given those before it; NaN for the first. */
  logprobs: number[];
  /** exp of minus the mean of `logprobs`, the first left out; NaN for fewer than two tokens. */
  perplexity: number;
}

/** Keys and values of a sequence that the caller holds. It belongs to the model that made it. */
export interface Cache {
  /** Tokens held. */
  length(): Promise<number>;
  /** A second cache with the same content; the memory is shared until either changes. */
  clone(): Promise<Cache>;
  /** Keeps the first `length` tokens; none where a sliding window no longer holds what the next would need. */
  truncate(length: number): Promise<void>;
  /** Gives the memory back. Harmless when repeated. */
  dispose(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Bytes of wasm memory. */
export interface Memory {
  /** Packed weights. */
  weights: number;
  /** Activations and scratch. */
  arena: number;
  /** Keys and values. */
  cache: number;
  /** The whole wasm memory. */
  total: number;
}

/** A tokenizer's properties. */
export interface TokenizerInfo {
  /** Largest id + 1. */
  vocabSize: number;
  specials: {
    bos: number | null;
    eos: number | null;
    pad: number | null;
    unk: number | null;
    sep: number | null;
    cls: number | null;
    mask: number | null;
    all: number[];
  };
  hasChatTemplate: boolean;
  /** What stands for a word that `fillMask` is to guess; null where there is none. */
  maskToken: string | null;
  /** The codes of languages that texts are marked with, for `translate`. */
  languages: string[];
  /** Tokens a text should have at most, special ones included; null where the files do not say. */
  maxLength: number | null;
}

/** What was loaded and how it runs. */
export interface ModelInfo {
  /** The source as given: a Hub id, an address, a folder, `files`, or `create` of a model made by that. */
  source: string;
  /** The Hub's commit, where there is one. */
  commit?: string;
  format: string;
  architecture: string;
  /** Number of weights. */
  parameters: number;
  /** How weights are kept in memory, with the number of weights in each. */
  dtypes: Partial<Record<Dtype, number>>;
  /** The dtype of most weights. */
  dtype: Dtype;
  /** How keys and values of past tokens are kept. */
  cacheDtype: 'f32' | 'f16';
  layers: number;
  heads: number;
  kvHeads: number;
  hiddenSize: number;
  vocabSize: number;
  /** Tokens the model was configured for; 0 where the configuration does not say. */
  contextLength: number;
  positions: string;
  /** Whether `contextLength` is a wall (a learned table) or generation may go on past it. */
  contextIsWall: boolean;
  /** Then `layers`, `heads` and `vocabSize` are the decoder's, and the next three the encoder's. */
  encoderDecoder: boolean;
  encoderLayers?: number;
  encoderHeads?: number;
  sourceVocabSize?: number;
  /** Every token sees the whole text: nothing is generated. */
  encoderOnly: boolean;
  head: HeadKind;
  /**
   * What it is made for, by the names of methods: `generate`, `translate`, `summarize`, `embed`, `fillMask`, `classify`, `answer`. All
   * but `generate` need a tokenizer.
   */
  tasks: string[];
  /** Of models that embed: how. */
  embedding?: EmbeddingInfo;
  /** Bytes: the weights, the working memory, and the cache of one token. */
  memory: { weights: number; workspace: number; cachePerToken: number };
  /** `'relaxed'` or `'simd128'`, and why. */
  simd: { level: string; reason: string };
  /** How many threads compute, and why. */
  threads: { count: number; reason: string };
  /** Tensors of the file that no part of the model uses. */
  unusedTensors: string[];
  /** What went wrong without stopping the load: a full cache (`quota`), say. */
  warnings: { code: ErrorCode; message: string }[];
}

/** What `gradients` computes on; each array has one entry a sequence. */
export interface GradientBatch {
  /** (T) token ids each: of an encoder-decoder model the sources. */
  inputIds: readonly ArrayLike<number>[];
  /** One label a token, below 0 for none. A decoder-only model compares position t with label t + 1, as Python does. */
  labels: readonly ArrayLike<number>[];
  /** The decoder's inputs, for encoder-decoder models, whose position t is compared with label t. */
  decoderInputIds?: readonly ArrayLike<number>[];
}

/** The result of `gradients`: the mean cross-entropy of the batch, and its gradient in every weight by name. */
export interface Gradients {
  loss: number;
  gradients: Record<string, Tensor>;
}

/** One entry of a dataset: a text; a source and its target, for encoder-decoder models; or ids. */
export type TrainEntry =
  | string
  | { text: string }
  | { source: string; target: string }
  | readonly [source: string, target: string]
  | {
      /** (T) ids: of an encoder-decoder model the source. */
      inputIds: ArrayLike<number>;
      /** Default: `inputIds`, of an encoder some of them, masked. Below 0: does not count. Of an encoder-decoder model the target. */
      labels?: ArrayLike<number>;
      /** What the decoder reads, by default the labels shifted: the start token first. */
      decoderInputIds?: ArrayLike<number>;
    };

/**
 * What to learn from: one text, an array of entries, an iterable of them (read again for every epoch), or text files: paths (Node) or
 * Blobs, each one text, or with `lines` (the default where the model takes pairs) an entry a line, source and target apart by a tab.
 */
export type TrainData =
  | string
  | readonly TrainEntry[]
  | Iterable<TrainEntry>
  | AsyncIterable<TrainEntry>
  | { file: string | Blob; lines?: boolean }
  | { files: readonly (string | Blob)[]; lines?: boolean };

/** How to train. An option that is not here throws `invalid-argument`. */
export interface TrainOptions {
  /** Steps of the optimiser, at which the schedules `linear` and `cosine` end. Default: those of one epoch, or of `epochs`. */
  steps?: number;
  /** Passes over the data at most. */
  epochs?: number;
  /** Tokens that a step learns from, at most: those the model reads, of source and target together. Default 4096. */
  batchTokens?: number;
  /** Tokens of one forward and backward pass, whose gradients add up to a step's: less takes less memory. Default `batchTokens`. */
  microBatchTokens?: number;
  /**
   * Adam with decoupled weight decay (Loshchilov, Hutter 2019), or without (Kingma, Ba 2015); or Muon (Jordan et al. 2024) for the
   * matrices but those of the vocabulary, with a momentum of 0.95 and steps as long as AdamW's (Liu et al. 2025, section 2.2), and AdamW
   * for all else. Default `'adamw'`.
   */
  optimizer?: 'adamw' | 'adam' | 'muon';
  /** The schedule's peak. Default 3e-4; none with `'paper'`. */
  learningRate?: number;
  /**
   * After `warmup` steps, in which the rate rises from 0: as transformers' schedulers of those names; `'paper'` is
   * D^-0.5 min(n^-0.5, n warmup^-1.5) (Vaswani et al. 2017, eq. 3). Default `'constant'`.
   */
  schedule?: 'constant' | 'linear' | 'cosine' | 'inverse_sqrt' | 'paper';
  /** Steps. Default 0. */
  warmup?: number;
  /** Default 0.9. */
  beta1?: number;
  /** Default 0.999. */
  beta2?: number;
  /** Default 1e-8. */
  epsilon?: number;
  /** Not of norms and biases. Default 0.01, of `'adam'` 0. */
  weightDecay?: number;
  /** The length that the gradient of all weights together is cut to; 0 for none. Default 1. */
  maxGradNorm?: number;
  /** Share of the probability that goes to all tokens alike (Szegedy et al. 2016), >= 0 and < 1. Default 0. */
  labelSmoothing?: number;
  /** Of embeddings, sub-layers and attention weights, >= 0 and < 1; never in evaluation. Default 0.1. */
  dropout?: number;
  /** Of the order of the data, masks and dropout: an integer from 0 to 2^53 - 1. Default 0. */
  seed?: number;
  /** Keep only the inputs of blocks and compute the rest again in the backward pass: less memory, about a third more time. Default `false`. */
  checkpointing?: boolean;
  /**
   * Draw the order anew each epoch and put sequences of like length into one step; of an iterable among some thousand tokens
   * (16 times `batchTokens`). Default `true`; `false` keeps the order.
   */
  shuffle?: boolean;
  /** Tokens of a sequence, of source and target each; at least 2. Default: the model's context, at most `microBatchTokens`. */
  maxLength?: number;
  /** Cut what is longer. By default texts become several sequences, and a longer pair or list of ids is an error. */
  truncate?: boolean;
  /** By the model: to continue a text, to write a source's target, or to guess masked tokens. Another than the model's is `unsupported`. */
  objective?: 'causal' | 'seq2seq' | 'masked';
  /** The share of tokens that an encoder is to guess (Devlin et al. 2018). Default 0.15. */
  maskProbability?: number;
  /** Data that are never trained on. */
  evalData?: TrainData;
  /** In place of `evalData`: the share of an array's examples that is held out, drawn by `seed`. With `evalEvery` alone 0.1. */
  evalFraction?: number;
  /** Steps between evaluations, the last step being one. Default 100 where something is held out. */
  evalEvery?: number;
  /** Steps between samples, the last step having one. Default 100 with `sample`. */
  sampleEvery?: number;
  /** What samples are made of: a prompt and options of `generate`. Default: the beginning of an example, 64 new tokens. */
  sample?: Prompt | (GenerateOptions & { prompt?: Prompt });
  /**
   * Go on where the model's last training, or the one it was saved with (`save(folder, { optimizer: true })`), stopped. Options that are
   * not given are as they were; data, `evalData` (where there were some) and `sample` have to be given again.
   */
  resume?: boolean;
  /** Ends the training after the micro-batch it is at; the iteration rejects with its reason, and the model stays usable. */
  signal?: AbortSignal;
}

/** One step of a training. */
export interface TrainStep {
  /** From 1. */
  step: number;
  /** The pass over the data, from 1. */
  epoch: number;
  /** Mean cross-entropy, in nats, of all labels of the step, before it changed the weights; with `labelSmoothing` the smoothed one. */
  loss: number;
  learningRate: number;
  /** Of all weights together, before it is clipped. */
  gradientNorm: number;
  /** Read by the model in this step. */
  tokens: number;
  tokensPerSecond: number;
  /** Mean cross-entropy of what is held out, without dropout and smoothing, at the steps `evalEvery` asks for. */
  evalLoss?: number;
  /** What the model writes, at the steps `sampleEvery` asks for; of a model without a tokenizer the ids, with spaces between. */
  sample?: string;
}

/** How to save. */
export interface SaveOptions {
  /**
   * Save the optimiser's state and the position in the data too: twice the size of what is trained. Default `false`, which removes an
   * older state from the folder.
   */
  optimizer?: boolean;
  /** Abandons a save that waits for its turn. */
  signal?: AbortSignal;
}

/** Low-rank changes of a model's linear layers (Hu et al. 2021, "LoRA"), by PEFT's names in camelCase. */
export interface AdapterOptions {
  /** The rank, >= 1. Default 8. */
  r?: number;
  /** The changes are scaled by `loraAlpha / r`. Default 8. */
  loraAlpha?: number;
  /**
   * Linear layers, by the end of their names (`['q_proj', 'v_proj']`), by a regular expression of Python's that whole names match
   * (`'.*[.](q|v)_proj'`), or `'all-linear'`: every one but the output layer.
   */
  targetModules: string | readonly string[];
  /** Modules that stay as they are, in the same ways. */
  excludeModules?: string | readonly string[];
  /** With a list as `targetModules`: only those in these layers, from 0. */
  layersToTransform?: number | readonly number[];
  /** What the layers' numbers come after, where it is not the first number in a name (`'h'`). */
  layersPattern?: string | readonly string[];
  /** Scale by `loraAlpha / sqrt(r)` instead (Kalajdzievski 2023). Default `false`. */
  useRslora?: boolean;
  /** Of what the changes begin with. Default 0. */
  seed?: number;
  signal?: AbortSignal;
}

/** A file of a saved model. */
export interface SavedFile {
  name: string;
  bytes: Uint8Array<ArrayBuffer>;
}

/** What a model is, from its configuration and the headers of its weights. `D`: the dtypes it can be loaded in. */
export interface Inspection<D extends Dtype = Dtype> extends Omit<ModelInfo, 'memory' | 'warnings' | 'simd' | 'threads'> {
  /** Bytes of its weights' files. */
  fileBytes: number;
  /** Bytes by the `dtype` that `load` is given, `file` without one, and whether they fit. With `trainable: true` gradients are in `weights`. */
  memory: Record<D | 'file', { weights: number; workspace: number; cachePerToken: number; fits: boolean }>;
}

/** What `load` would load with these options, and the memory it would take in each dtype; no weights are downloaded or read. */
export interface Inspect {
  (source: Source | ArrayLike<File>, options: LoadOptions & { trainable: true }): Promise<Inspection<'f32'>>;
  (source: Source | ArrayLike<File>, options?: LoadOptions): Promise<Inspection>;
}

/** One kept file. */
export interface CachedFile {
  /** The Hub id or address it came from. */
  id: string;
  revision?: string;
  commit?: string;
  file: string;
  /** Bytes. */
  size: number;
  location: string;
}

/** The options of `generate` that change logits, and how many of the given ids are the prompt's. */
export interface ProcessLogitsOptions
  extends Pick<
    GenerateOptions,
    | 'maxLength'
    | 'maxNewTokens'
    | 'minLength'
    | 'minNewTokens'
    | 'eosTokenId'
    | 'doSample'
    | 'temperature'
    | 'topK'
    | 'topP'
    | 'minP'
    | 'topH'
    | 'typicalP'
    | 'epsilonCutoff'
    | 'etaCutoff'
    | 'repetitionPenalty'
    | 'noRepeatNgramSize'
    | 'badWordsIds'
    | 'sequenceBias'
    | 'suppressTokens'
    | 'beginSuppressTokens'
    | 'forcedBosTokenId'
    | 'forcedEosTokenId'
    | 'exponentialDecayLengthPenalty'
    | 'renormalizeLogits'
    | 'removeInvalidValues'
    | 'frequencyPenalty'
    | 'presencePenalty'
    | 'logitBias'
  > {
  promptLength?: number;
}

/** A tensor as an argument: one, or numbers in arrays of any depth, `[[1, 0], [0, 1]]` being (2, 2). Its numbers become float32. */
export type TensorLike = { data: ArrayLike<number>; shape: readonly number[] } | NestedNumbers;
export type NestedNumbers = ArrayLike<number | boolean> | readonly NestedNumbers[];

/** A linear layer: y = x W^T + b, `weight` (outputs, inputs) and `bias` (outputs), or the weight alone. */
export type LinearWeights = TensorLike | { weight: TensorLike; bias?: TensorLike };

/** What queries see, and how scores are made of them. T counts queries, S keys, H heads. */
export interface AttentionOptions {
  /** 1 (or true) where a key is visible, 0 where it is hidden: (T, S), (H, T, S), or what broadcasts to that, such as (S). */
  mask?: TensorLike;
  /** Added to the scaled scores; shapes as of `mask`. */
  bias?: TensorLike;
  /**
   * Hide what comes later. Query t stands at position S - T + t, so that the last query sees every key: the lower-right
   * alignment of PyTorch's `torch.nn.attention.bias.causal_lower_right` and FlashAttention 2.1, and what a key/value cache needs
   * (`is_causal` of PyTorch's `scaled_dot_product_attention` aligns to the upper left; for T = S they are the same).
   * A query before position 0 sees nothing.
   */
  causal?: boolean;
  /** Factor of q k, before the bias. Default 1 / sqrt(Dk), which keeps the variance of the scores at 1. */
  scale?: number;
  /** Return the scores too. Default `false`. */
  scores?: boolean;
}

/** A query that sees no key has zeros for its output and weights. */
export interface AttentionResult {
  /** (T, Dv) or (H, T, Dv); of `multiHeadAttention` (T, D). */
  output: Tensor;
  /** (T, S) or (H, T, S): each row sums to 1. */
  weights: Tensor;
  /** On request, what the weights are the softmax of: scaled, biased, -Infinity where hidden. */
  scores?: Tensor;
}

export interface MultiHeadOptions extends AttentionOptions {
  /** H. Default 1. */
  heads?: number;
  /** Heads of keys and values, a divisor of `heads` (Ainslie et al. 2023). Default `heads`. */
  kvHeads?: number;
  /** (S, M): where keys and values come from. Default `x` itself. */
  memory?: TensorLike;
}

/** Rows are outputs, as in checkpoints: `query` (H Dk, D), `key` (Hk Dk, M), `value` (Hk Dv, M), `output` (D, H Dv). */
export interface MultiHeadWeights {
  query: LinearWeights;
  key: LinearWeights;
  value: LinearWeights;
  output: LinearWeights;
}

/**
 * A layer's tensors under the names that the `transformer` architecture has behind `encoder.layers.N.` or `decoder.layers.N.`:
 * `self_attn.{q,k,v,out}_proj`, `self_attn_layer_norm`, of a decoder `encoder_attn.{q,k,v,out}_proj` and
 * `encoder_attn_layer_norm`, then `fc1`, `fc2`, `final_layer_norm`, each `.weight` and, if it has one, `.bias`. Nested objects
 * (`{ fc1: { weight, bias } }`) are the same.
 */
export interface LayerWeights {
  [name: string]: TensorLike | LayerWeights;
}

export interface LayerOptions {
  /** Attention heads. Default 1. */
  heads?: number;
  /** `'post'`: norm(x + f(x)), as in the paper; `'pre'`: x + f(norm(x)). Default `'post'`. */
  norm?: 'post' | 'pre';
  /** Of the feed-forward network, under Hugging Face's name: `'relu'` (default), `'gelu'`, `'silu'`, ... */
  activation?: string;
  /** Of self-attention, as for `attention`. */
  mask?: TensorLike;
  bias?: TensorLike;
  /** Default `true` for a decoder's self-attention, `false` for an encoder's. */
  causal?: boolean;
  /** Factor of all q k. Default 1 / sqrt(Dk). */
  scale?: number;
  /** Of the layer norms. Default 1e-5. */
  eps?: number;
  /** `false` leaves the residual connections out, to see what they are good for. */
  residual?: boolean;
}

/**
 * The bare operations, without a model: the kernels and blocks that models are made of, in 32 bits. Tensors may be given as
 * nested arrays. Letters: T tokens (queries), S keys, D width, H heads, Hk key/value heads, Dk and Dv head sizes, F the
 * feed-forward network's width. A shape that does not fit is `shape-mismatch`, another bad or unknown argument
 * `invalid-argument`, both naming it; what cannot fit in memory is `out-of-memory` with the bytes, before any work.
 */
export interface Ops {
  /**
   * Applies the logits processors and warpers that the options name, in Hugging Face's order, and nothing else: no
   * default is filled in.
   * @param scores (V) logits of the next token
   * @param inputIds the sequence so far, the prompt's tokens first
   * @param options generation options, and `promptLength`: how many of `inputIds` are the prompt's (default all)
   * @returns (V) processed scores; tokens ruled out are -Infinity
   */
  processLogits(scores: ArrayLike<number>, inputIds: ArrayLike<number>, options?: ProcessLogitsOptions): Promise<Float32Array>;

  /**
   * softmax(scale q k^T + bias) v over the visible keys (Vaswani et al. 2017, eq. 1).
   * @param q (T, Dk) or (H, T, Dk)
   * @param k (S, Dk) or (Hk, S, Dk), Hk dividing H: query head h reads key/value head h / (H / Hk), rounded down
   * @param v (S, Dv) or (Hk, S, Dv)
   */
  attention(q: TensorLike, k: TensorLike, v: TensorLike, options?: AttentionOptions): Promise<AttentionResult>;

  /**
   * Projects `x` (T, D) to queries and the memory, or x, to keys and values, attends in every head, joins the heads and projects
   * the result (Vaswani et al. 2017, section 3.2.2). `weights` of the result are (H, T, S).
   */
  multiHeadAttention(x: TensorLike, weights: MultiHeadWeights, options?: MultiHeadOptions): Promise<AttentionResult>;

  /**
   * Each row of `x` (..., D) less its mean, over sqrt(variance + eps), times `weight` (D), plus `bias` (D) (Ba et al. 2016).
   * `eps` is 1e-5 by default.
   */
  layerNorm(x: TensorLike, options?: { weight?: TensorLike; bias?: TensorLike; eps?: number }): Promise<Tensor>;

  /** Each row of `x` (..., D) over sqrt(mean square + eps), times `weight` (D) (Zhang, Sennrich 2019). `eps` is 1e-6 by default. */
  rmsNorm(x: TensorLike, options?: { weight?: TensorLike; eps?: number }): Promise<Tensor>;

  /** e^x over its sum, along the last dimension. A row of -Infinity gives zeros. */
  softmax(x: TensorLike): Promise<Tensor>;

  /**
   * down(activation(up(x))) (Vaswani et al. 2017, eq. 2), with `gate` down(activation(gate(x)) * up(x)) (Shazeer 2020). `x` (..., D),
   * `up` and `gate` (F, D), `down` (D, F). `activation` as for `encoderLayer`.
   */
  feedForward(
    x: TensorLike,
    options: { up: LinearWeights; down: LinearWeights; gate?: LinearWeights; activation?: string },
  ): Promise<Tensor>;

  /**
   * The codes of positions `first` (default 0) to first + length - 1, (length, size): sines and cosines of position / 10000^(2i / size)
   * (Vaswani et al. 2017, section 3.5). `layout` `'interleaved'` (default) has the sine of frequency i at 2i and its cosine at
   * 2i + 1, as in the paper; `'halves'` all sines, then all cosines, as Marian has it.
   */
  sinusoidalPositions(length: number, size: number, options?: { first?: number; layout?: 'interleaved' | 'halves' }): Promise<Tensor>;

  /**
   * Turns pairs of features by angles position / theta^(2i / rotary) (Su et al. 2021). `x` (T, Dk) or (H, T, Dk); `positions` (T),
   * 0 to T - 1 by default; `theta` 10000 by default; the first `rotary` features of a head turn, all by default. Pairs are
   * (i, i + rotary / 2), or (2i, 2i + 1) with `interleaved`.
   */
  rope(x: TensorLike, options?: { positions?: TensorLike; theta?: number; interleaved?: boolean; rotary?: number }): Promise<Tensor>;

  /** Self-attention and a feed-forward network, each with its residual connection and layer norm. `x` (T, D), `weights` of the result (H, T, T). */
  encoderLayer(x: TensorLike, weights: LayerWeights, options?: LayerOptions): Promise<{ output: Tensor; weights: Tensor }>;

  /**
   * Self-attention, attention over the encoder's output `memory` (S, D), and a feed-forward network. `weights` of the result are
   * those of self-attention, (H, T, T), `crossWeights` (H, T, S). `memoryMask` (S), or as for `attention`: which of the memory is visible.
   */
  decoderLayer(
    x: TensorLike,
    memory: TensorLike,
    weights: LayerWeights,
    options?: LayerOptions & { memoryMask?: TensorLike },
  ): Promise<{ output: Tensor; weights: Tensor; crossWeights: Tensor }>;
}

/** How `plotAttention` draws. */
export interface PlotOptions {
  /** Above the picture, and what a screen reader says. */
  title?: string;
  /** Above each head. Default `head 0`, `head 1`, ... */
  titles?: readonly string[];
  /** Side of a cell, in pixels. Default 24. */
  cell?: number;
  /** The weight that has the brightest colour. Default 1. */
  max?: number;
  /** Heads in a row. Default: as near to a square as can be. */
  columns?: number;
}

/** What has been downloaded and kept. */
export interface Files {
  /** Every kept file. */
  list(options?: { cacheDir?: string }): Promise<CachedFile[]>;
  /** Removes the files of one model (its Hub id or address), or all of them. Returns the bytes freed. */
  clear(id?: string, options?: { cacheDir?: string }): Promise<number>;
}
