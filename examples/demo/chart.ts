// The loss over the steps of a training: a line for what it learns from, one with dots for what is held out.
import { whole } from './words.ts';

/** Points of the training line at most, neighbours of what would be more becoming their mean; of the other, half as many. */
const most = 300;
const height = 240;
const margin = { left: 38, right: 14, top: 10, bottom: 38 };

interface Point {
  step: number;
  loss: number;
}

/** A number that reads well, of about a fifth of `range`. */
function tickOf(range: number): number {
  const power = 10 ** Math.floor(Math.log10(range / 5));
  return power * ([1, 2, 5].find((factor) => factor * power * 5 >= range) ?? 10);
}

const ticks = (from: number, to: number, tick: number) =>
  Array.from({ length: Math.floor((to - from) / tick + 1e-9) + 1 }, (_, i) => +(from + i * tick).toFixed(6));

export class LossChart {
  readonly #frame: HTMLElement;
  #train: Point[] = [];
  /** Steps that a point of the training line stands for, and those gathered for the next. */
  #group = 1;
  #gathered: number[] = [];
  #held: Point[] = [];
  #due = 0;

  constructor(frame: HTMLElement) {
    this.#frame = frame;
    new ResizeObserver(() => this.#later()).observe(frame);
  }

  clear(): void {
    this.#train = [];
    this.#held = [];
    this.#gathered = [];
    this.#group = 1;
    this.#later();
  }

  learned(step: number, loss: number): void {
    this.#gathered.push(loss);
    if (this.#gathered.length < this.#group) return;
    this.#train.push({ step, loss: this.#gathered.reduce((sum, one) => sum + one) / this.#gathered.length });
    this.#gathered = [];
    if (this.#train.length > most) {
      this.#group *= 2;
      const pairs: Point[] = [];
      for (let i = 1; i < this.#train.length; i += 2) {
        pairs.push({ step: this.#train[i].step, loss: (this.#train[i - 1].loss + this.#train[i].loss) / 2 });
      }
      this.#train = pairs;
    }
    this.#later();
  }

  held(step: number, loss: number): void {
    this.#held.push({ step, loss });
    if (this.#held.length > most / 2) this.#held = this.#held.filter((_, i) => i % 2 === 0);
    this.#later();
  }

  /** Draws soon, a few times a second at most. */
  #later(): void {
    this.#due ||= window.setTimeout(() => {
      this.#due = 0;
      requestAnimationFrame(() => this.#draw());
    }, 200);
  }

  #draw(): void {
    const width = this.#frame.clientWidth;
    const all = [...this.#train, ...this.#held];
    if (width === 0) return;
    if (all.length === 0) {
      this.#frame.replaceChildren();
      return;
    }
    const losses = all.map(({ loss }) => loss).filter(Number.isFinite);
    const tick = tickOf(Math.max(0.5, Math.max(...losses) - Math.min(...losses)));
    const [low, high] = [Math.floor(Math.min(...losses) / tick) * tick, Math.ceil(Math.max(...losses) / tick) * tick];
    const first = Math.min(...all.map(({ step }) => step));
    const stepTick = Math.max(1, tickOf(Math.max(5, Math.max(...all.map(({ step }) => step)) - first)));
    const from = Math.floor(first / stepTick) * stepTick;
    const to = Math.max(from + stepTick, ...all.map(({ step }) => step));
    const x = (step: number) => +(margin.left + ((step - from) / (to - from)) * (width - margin.left - margin.right)).toFixed(1);
    const y = (loss: number) => +(margin.top + ((high - loss) / (high - low)) * (height - margin.top - margin.bottom)).toFixed(1);
    const path = (points: Point[]) => points.map(({ step, loss }, i) => `${i === 0 ? 'M' : 'L'}${x(step)} ${y(loss)}`).join('');
    const base = height - margin.bottom;
    const shown = ticks(from, to, stepTick);
    const every = Math.ceil((shown.length * 52) / (width - margin.left));
    const last = (points: Point[]) => points.at(-1)?.loss.toFixed(2) ?? 'not known';
    const words = `Loss by step, to step ${whole(to)}: ${last(this.#train)} learning, ${last(this.#held)} held out`;
    this.#frame.innerHTML = [
      `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${words}">`,
      ...ticks(low, high, tick).map(
        (loss) =>
          `<path class="rule" d="M${margin.left} ${y(loss)}H${width - margin.right}"/>` +
          `<text x="${margin.left - 6}" y="${y(loss)}" dy=".35em" text-anchor="end">${+loss.toFixed(2)}</text>`,
      ),
      ...shown
        .filter((_, i) => i % every === 0)
        .map((step) => `<text x="${x(step)}" y="${base + 16}" text-anchor="middle">${whole(step)}</text>`),
      `<text x="${width - margin.right}" y="${height - 4}" text-anchor="end">steps</text>`,
      `<path class="learning" d="${path(this.#train)}"/><path class="held-out" d="${path(this.#held)}"/>`,
      ...this.#held.map(({ step, loss }) => `<circle class="held-out" cx="${x(step)}" cy="${y(loss)}" r="2.5"/>`),
      '</svg>',
    ].join('');
  }
}
