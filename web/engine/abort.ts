interface Listeners {
  callbacks: Set<() => void>;
  run: () => void;
}

const listening = new WeakMap<AbortSignal, Listeners>();

/**
 * Calls back once when the signal aborts; returns a function that stops listening. Each signal gets one listener, however
 * many calls share it: Node warns of a leak from the eleventh on.
 */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  let listeners = listening.get(signal);
  if (!listeners) {
    const callbacks = new Set<() => void>();
    const run = () => {
      listening.delete(signal);
      for (const each of callbacks) each();
    };
    listeners = { callbacks, run };
    listening.set(signal, listeners);
    signal.addEventListener('abort', run, { once: true });
  }
  const { callbacks, run } = listeners;
  // A function of its own, so that the same callback may be given twice.
  const own = () => callback();
  callbacks.add(own);
  return () => {
    callbacks.delete(own);
    if (callbacks.size > 0 || listening.get(signal)?.run !== run) return;
    listening.delete(signal);
    signal.removeEventListener('abort', run);
  };
}
