import { toPlainError } from '../errors.ts';
import { buffersIn, type EnginePort, type Port, type Request, type Response } from './protocol.ts';

/** What a method of the engine is given beside its arguments. */
export interface Call {
  signal: AbortSignal;
  emit(event: unknown): void;
}

/** Any object whose methods take their arguments and a `Call` last. */
export type Methods = Record<string, (...args: any[]) => unknown>;

/** Answers requests by calling the engine's methods. Returns a function that aborts all that is running. */
export function serve(methods: Methods, port: Port<Response, Request>): () => void {
  const running = new Map<number, AbortController>();

  const answer = async (id: number, method: string, args: unknown[], cancelled = false) => {
    const controller = new AbortController();
    if (cancelled) controller.abort();
    running.set(id, controller);
    const call: Call = { signal: controller.signal, emit: (event) => port.post({ id, event }) };
    try {
      const value = await methods[method](...args, call);
      port.post({ id, value }, buffersIn(value));
    } catch (reason) {
      port.post({ id, error: toPlainError(reason) });
    } finally {
      running.delete(id);
    }
  };

  port.listen((request) => {
    if ('cancel' in request) running.get(request.id)?.abort();
    else answer(request.id, request.method, request.args, request.cancelled);
  });
  return () => {
    for (const controller of running.values()) controller.abort();
  };
}

/** A port to an engine in this very thread; messages arrive as they are, in order, never synchronously. */
export function enginePortHere(engine: { methods(): Methods; close(): void }): EnginePort {
  let toEngine: (request: Request) => void = () => {};
  let toClient: (response: Response) => void = () => {};
  let open = true;
  const deliver = (run: () => void) => queueMicrotask(() => open && run());
  const stop = serve(engine.methods(), {
    post: (response) => deliver(() => toClient(response)),
    listen: (receive) => {
      toEngine = receive;
    },
  });
  return {
    post: (request) => deliver(() => toEngine(request)),
    listen: (receive) => {
      toClient = receive;
    },
    onDeath: () => {},
    setBusy: () => {},
    terminate: () => {
      open = false;
      stop();
      engine.close();
    },
  };
}
