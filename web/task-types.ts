import type { FinishReason, GenerateOptions, GenerateResult, Looks } from './types.ts';

/** UTF-16 begin and end in a text: `text.slice(...offsets)`. */
export type Offsets = [begin: number, end: number];

/** Pieces of a long text that are read one after another: of at most `size` tokens, special ones included, `overlap` of them shared by neighbours. */
export interface WindowOptions {
  /** Default: as many as the model takes. */
  size?: number;
  /** Default 0. */
  overlap?: number;
}

/**
 * What to do with a text that has more tokens than the model was made for. Without either option it is an error that says how
 * many there are.
 */
export interface LengthOptions {
  /** Leave out what is too much at its end. */
  truncation?: boolean;
  /** Read it in pieces. */
  window?: boolean | WindowOptions;
}

/** What rewrites a text is generation: beside the task's own options all of `generate`'s that make sense for it. */
type Rewriting = Omit<GenerateOptions, 'cache' | 'numReturnSequences' | 'addSpecialTokens' | 'truncation' | 'decoderInputIds'>;

export interface TranslateOptions extends Rewriting {
  /** The text's language as the model names it (`'en_XX'`, `'eng_Latn'`, `'en'`); sentences are found by its rules too. */
  sourceLanguage?: string;
  /** The language to translate into, as the model names it; a model for one pair needs none. */
  targetLanguage?: string;
  /**
   * `true` (default) translates sentence by sentence, and cuts further what is still too long; `'lines'` line by line; `false`
   * the whole text at once, line ends included.
   */
  split?: boolean | 'lines';
  /** Leave out what is too much at the end of a sentence (with `split: true`, of what cannot be split). */
  truncation?: boolean;
  /** Which source word each target word comes from (`Translation.alignment`). */
  alignment?: boolean | { layer?: number; head?: number };
  /** Called after each sentence; if it throws, the translation rejects with that. */
  onSentence?: (sentence: TranslatedSentence) => void;
}

/** A sentence that is done. */
export interface TranslatedSentence {
  /** Which of the texts. */
  index: number;
  /** Where in the text it stood. */
  source: Offsets;
  text: string;
  score: number;
  /** Sentences of all texts that are done, this one included, and how many there are. */
  done: number;
  total: number;
}

/** A word of the source and the word of the translation that looks at it most. */
export interface AlignmentLink {
  source: Offsets;
  target: Offsets;
  /** The share of the target word's attention that goes to the source word, 0 to 1: the mean over its tokens. */
  score: number;
}

/** A stretch of text and what it became. Attention and hidden states, on request, as `generate` gives them. */
export interface Segment extends Looks, Pick<GenerateResult, 'logprobs'> {
  /** Where in the text it stood. */
  source: Offsets;
  /** Where in the whole result it stands. */
  target: Offsets;
  text: string;
  /** What the generated tokens stand for; `tokenIds` has the end-of-sequence token where one was generated. */
  tokens: string[];
  tokenIds: number[];
  /** What the encoder read. */
  sourceTokens: string[];
  /** As of `generate`: with beams Hugging Face's `sequences_scores`. */
  score: number;
  finishReason: FinishReason;
  alignment?: AlignmentLink[];
}

/** A text made anew. Of several segments, the lists are those of the segments one after another, and `score` is their sum. */
export interface Rewritten extends Omit<Segment, 'source' | 'target'> {
  /** The parts in order. Attention and hidden states stand in each of them, and here too where it is the only one. */
  segments: Segment[];
  /** `length` where any part ended that way. */
  finishReason: FinishReason;
  /** What a caller should know: something was left out, or cut in an unusual place. */
  notes?: string[];
}

export interface Translation extends Rewritten {}
export interface Summary extends Rewritten {}

export interface SummarizeOptions extends Rewriting, LengthOptions {}

/** How token states become one vector (Reimers, Gurevych 2019), under the names of sentence-transformers; `last` is short for `lasttoken`. */
export type Pooling = 'mean' | 'cls' | 'last' | 'lasttoken' | 'max' | 'mean_sqrt_len_tokens' | 'weightedmean';

export interface EmbedOptions {
  /** Scale to length 1. Default: whether the model's modules.json has a `Normalize` module. */
  normalize?: boolean;
  /** Default: what the model's pooling module says, else `mean`. Several are joined end to end. */
  pooling?: Pooling | readonly Pooling[];
  /** Leave out what is too long; without it such a text is an error. */
  truncation?: boolean;
  /** Set before each text. */
  prompt?: string;
  /** One of the prompts that the model's config_sentence_transformers.json names. */
  promptName?: string;
  signal?: AbortSignal;
}

/** How a model's files say that texts are embedded. */
export interface EmbeddingInfo {
  pooling: Pooling[];
  normalize: boolean;
  /** Tokens of a text. */
  maxLength: number | null;
  prompts: Record<string, string>;
  /** The prompt that is used where a call names none. */
  promptName: string | null;
  /** Where that was read: `modules.json`, a GGUF file, or `default` where neither says anything. */
  from: 'modules.json' | 'GGUF' | 'default';
}

export interface FillMaskOptions {
  /** How many tokens for each mask. Default 5. */
  topK?: number;
  /** Score only these tokens. */
  targets?: string | readonly string[];
  truncation?: boolean;
  signal?: AbortSignal;
}

/** A token in place of a mask. */
export interface FilledMask {
  tokenId: number;
  /** As in the vocabulary. */
  token: string;
  /** What it stands for. */
  text: string;
  /** Its probability among all tokens. */
  score: number;
  /** The text with it, without special tokens; with several masks, the tokens' text with them, the other masks left as they are. */
  sequence: string;
}

/** A text, or two of which the second is judged in the light of the first. */
export type ClassifyInput = string | { text: string; pair: string };

export interface ClassifyOptions extends LengthOptions {
  /** Of models that label texts: the best labels only. Default: all. */
  topK?: number;
  /**
   * Of models that label texts: what makes scores of logits. Default as in Hugging Face: `none` for regression, `sigmoid` for one
   * label or `multi_label_classification`, else `softmax`.
   */
  function?: 'softmax' | 'sigmoid' | 'none';
  /** Of models that label tokens: how they are joined, as in Hugging Face. Default `none`. */
  aggregation?: 'none' | 'simple' | 'first' | 'average' | 'max';
  /** Of models that label tokens: labels to leave out. Default `['O']`. */
  ignoreLabels?: readonly string[];
  signal?: AbortSignal;
}

export interface Label {
  label: string;
  score: number;
  /** Of models that label tokens: what is labelled, and where it stands. */
  text?: string;
  offsets?: Offsets;
  /** With `aggregation: 'none'`: which token of the text, special ones counted. */
  index?: number;
}

export interface AnswerOptions {
  /** How many answers; more than one come as an array. Default 1. */
  topK?: number;
  /** Tokens of an answer. Default 15. */
  maxAnswerLength?: number;
  /** Tokens of question and context together, special ones included; a longer context is read in windows. Default 384, or what the model takes. */
  maxLength?: number;
  /** Tokens of the context that neighbouring windows share. Default 128, or half of `maxLength`. */
  docStride?: number;
  /** Allow the answer '' where the model thinks that there is none. Default `false`. */
  impossible?: boolean;
  signal?: AbortSignal;
}

export interface Answer {
  text: string;
  score: number;
  /** In the context; [0, 0] where there is no answer. */
  offsets: Offsets;
}
