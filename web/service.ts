import { type CallOptions, Client } from './engine/client.ts';
import { start } from './load.ts';
import type { Platform } from './platform/platform.ts';

/** An engine without a model, started when first asked for, for what needs none. Idle, it keeps no script alive. */
export class Service {
  #platform: Platform;
  #client: Client | null = null;
  #started: Promise<unknown> | null = null;

  constructor(platform: Platform) {
    this.#platform = platform;
  }

  /** Calls a method that needs files only. */
  call<T>(method: string, args: unknown[], options?: CallOptions): Promise<T> {
    return this.#live().call(method, args, options);
  }

  /** Calls a method that computes. */
  async compute<T>(method: string, args: unknown[]): Promise<T> {
    const client = this.#live();
    this.#started ??= start(this.#platform, { threads: 1 }).then((args) => client.call('start', args));
    try {
      await this.#started;
    } catch (reason) {
      this.#started = null;
      throw reason;
    }
    return client.call(method, args);
  }

  #live(): Client {
    if (!this.#client || this.#client.end) {
      this.#client = new Client(this.#platform.spawn(undefined));
      this.#started = null;
    }
    return this.#client;
  }
}
