import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja';
import { WasmformerError } from '../errors.ts';

/** A message of a conversation; templates may read further fields (`tool_calls`, `name` ...). */
export interface ChatMessage {
  role: string;
  content?: unknown;
  [field: string]: unknown;
}

export interface ChatTemplateOptions {
  /** Ends the text where the model's answer begins. */
  addGenerationPrompt?: boolean;
  /** The name of one of several templates, or a template. */
  template?: string;
  tools?: unknown[];
  documents?: unknown[];
  /** Further variables of the template, such as `enable_thinking`. */
  [variable: string]: unknown;
}

class Raised extends Error {}

/** Nodes of a template that are evaluated before it counts as endless; a long conversation takes some hundred thousand. */
const kMostSteps = 2_000_000;

class BoundedInterpreter extends Interpreter {
  #steps = 0;

  override evaluate(...args: Parameters<Interpreter['evaluate']>): ReturnType<Interpreter['evaluate']> {
    if (++this.#steps > kMostSteps) throw new Raised(`expected at most ${kMostSteps} steps, got more: does it loop?`);
    return super.evaluate(...args);
  }
}

const kMonths = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August', 'September', 'October', 'November', 'December'];
const kDays = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];

/** Python's `strftime` in its C locale; a directive that is not here stays as it is. */
export function strftime(date: Date, format: string): string {
  const two = (n: number): string => String(n).padStart(2, '0');
  const month = kMonths[date.getMonth()] as string;
  const day = kDays[date.getDay()] as string;
  const start = new Date(date.getFullYear(), 0, 1);
  const directives: Record<string, () => string> = {
    '%': () => '%',
    A: () => day,
    a: () => day.slice(0, 3),
    B: () => month,
    b: () => month.slice(0, 3),
    d: () => two(date.getDate()),
    H: () => two(date.getHours()),
    I: () => two(date.getHours() % 12 || 12),
    j: () =>
      String(
        Math.round((new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime() - start.getTime()) / 86_400_000) + 1,
      ).padStart(3, '0'),
    M: () => two(date.getMinutes()),
    m: () => two(date.getMonth() + 1),
    p: () => (date.getHours() < 12 ? 'AM' : 'PM'),
    S: () => two(date.getSeconds()),
    Y: () => String(date.getFullYear()),
    y: () => two(date.getFullYear() % 100),
  };
  return format.replace(/%([A-Za-z%])/g, (whole, letter: string) =>
    Object.hasOwn(directives, letter) ? (directives[letter] as () => string)() : whole,
  );
}

function range(first: number, second?: number, step = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (step === 0 || length > 1_000_000) throw new Raised(`range(${start}, ${stop}, ${step})`);
  return Array.from({ length }, (_, i) => start + i * step);
}

/** A compiled template. */
export class ChatTemplate {
  readonly #program: ReturnType<typeof parse>;

  /** @throws WasmformerError `invalid-file` where it is no template */
  constructor(source: string, where: string) {
    try {
      this.#program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));
    } catch (cause) {
      throw new WasmformerError('invalid-file', `[${where}] chat template: ${(cause as Error).message}`, { cause });
    }
  }

  /** @throws WasmformerError `invalid-argument` where the template refuses the messages */
  render(variables: Record<string, unknown>, now = new Date()): string {
    const environment = new Environment();
    const constants: Record<string, unknown> = {
      true: true,
      True: true,
      false: false,
      False: false,
      none: null,
      None: null,
      range,
      strftime_now: (format: string) => strftime(now, format),
      raise_exception: (message: unknown) => {
        throw new Raised(String(message));
      },
    };
    try {
      for (const [name, value] of Object.entries(constants)) environment.set(name, value);
      for (const [name, value] of Object.entries(variables)) {
        if (!Object.hasOwn(constants, name)) environment.set(name, value);
      }
      return (new BoundedInterpreter(environment).run(this.#program) as { value: string }).value;
    } catch (cause) {
      throw new WasmformerError('invalid-argument', `[chat] template: ${(cause as Error).message}`, { cause });
    }
  }
}
