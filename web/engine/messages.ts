import type { CheckedPrompt } from '../options.ts';
import type { ChatMessage, ModelInfo, TokenizerInfo } from '../types.ts';

/** What `load` tells the caller's side. */
export interface LoadedModel {
  config: Record<string, unknown>;
  generationConfig: Record<string, unknown>;
  tokenizer: TokenizerInfo | null;
  info: ModelInfo;
}

/** What `generate` continues. */
export interface GenerateInput {
  prompts?: CheckedPrompt[];
  chat?: { messages: ChatMessage[]; settings: ChatSettings };
  /** 0 or absent for none. */
  cache?: number;
}

/** What a chat template is given. */
export interface ChatSettings {
  addGenerationPrompt: boolean;
  template?: string;
  [variable: string]: unknown;
}
