/** Letters, marks, digits and connectors, inside a class: what Oniguruma and Rust's regex call a word's characters. */
export const kWord = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}';

const kInClass: Readonly<Record<string, string>> = {
  w: kWord,
  d: '\\p{Nd}',
  D: '\\P{Nd}',
  s: '\\p{White_Space}',
  S: '\\P{White_Space}',
  h: '0-9a-fA-F',
  a: '\\x07',
  e: '\\x1b',
};
/** Outside of a class these are of a word too. */
const kWords = `[${kWord}\\xb2\\xb3\\xb9\\xbc-\\xbe]`;
const kOutside: Readonly<Record<string, string>> = {
  A: '(?<![^])',
  z: '(?![^])',
  Z: '(?=\\n?(?![^]))',
  w: kWords,
  W: kWords.replace('[', '[^'),
  H: '[^0-9a-fA-F]',
  b: `(?:(?<!${kWords})(?=${kWords})|(?<=${kWords})(?!${kWords}))`,
  B: `(?:(?<!${kWords})(?!${kWords})|(?<=${kWords})(?=${kWords}))`,
};
const kPosix: Readonly<Record<string, string>> = {
  alpha: '\\p{Alphabetic}',
  alnum: '\\p{Alphabetic}\\p{Nd}',
  digit: '\\p{Nd}',
  lower: '\\p{Lowercase}',
  upper: '\\p{Uppercase}',
  space: '\\p{White_Space}',
  punct: '\\p{P}\\p{S}',
  cntrl: '\\p{Cc}',
  word: kWord,
};

/** A character as it stands in a pattern; in a class the hyphen is escaped too. */
const literal = (char: string): string => char.replace(/[\^$\\.*+?()[\]{}|/]/, '\\$&');
const member = (char: string): string => (char === '-' ? '\\-' : literal(char));

export const escapeRegex = (text: string): string => [...text].map(literal).join('');

/** A letter's forms under simple case folding. */
const folded = (char: string): string =>
  [...new Set([char, char.toLowerCase(), char.toUpperCase(), { s: '\u017f', k: '\u212a' }[char.toLowerCase()] ?? char])]
    .filter((form) => [...form].length === 1)
    .map(member)
    .join('');

/** A property by a name of Oniguruma's: scripts stand without `Script=` there. */
function property(name: string, negated: boolean): string {
  const inverse = name.startsWith('^') !== negated;
  const bare = { Alpha: 'Alphabetic', Digit: 'Nd', Space: 'White_Space', Punct: 'P' }[name.replace('^', '')] ?? name.replace('^', '');
  let full = bare;
  try {
    new RegExp(`\\p{${bare}}`, 'u');
  } catch {
    full = `Script=${bare}`;
  }
  return `\\${inverse ? 'P' : 'p'}{${full}}`;
}

/**
 * The JavaScript pattern (for the flags `v` or `u`) of a regular expression of Oniguruma, which tokenizer.json files are
 * written in. Nested classes and intersections need `v`.
 * @throws Error for what it does not know
 */
export function fromOniguruma(pattern: string): string {
  let at = 0;
  let atomics = 0;
  const unknown = (what: string): never => {
    throw new Error(`the pattern ${JSON.stringify(pattern)} has ${what}, which is not supported`);
  };
  /** A character code at `at`, after the letter of `\x`, `\u` or `\c`. */
  const code = (kind: string): string => {
    const match = (kind === 'x' ? /^(?:\{([\dA-Fa-f]{1,8})\}|([\dA-Fa-f]{1,2}))/ : /^()([\dA-Fa-f]{4})/).exec(pattern.slice(at));
    if (match === null) return unknown(`\\${kind}`);
    at += match[0].length;
    return String.fromCodePoint(Number.parseInt((match[1] || match[2]) as string, 16));
  };
  const next = (): string => {
    const char = String.fromCodePoint(pattern.codePointAt(at) ?? unknown('an end'));
    at += char.length;
    return char;
  };
  /** What follows a backslash and means the same in a class and outside: text to emit, or a character. */
  const escaped = (letter: string): { set?: string; char?: string } => {
    if (letter === 'p' || letter === 'P') {
      const match = /^\{(\^?[\w =-]+)\}/.exec(pattern.slice(at));
      if (match === null) return unknown(`\\${letter}`);
      at += match[0].length;
      return { set: property(match[1] as string, letter === 'P') };
    }
    if (letter === 'x' || letter === 'u') return { char: code(letter) };
    if (/[nrtfv]/.test(letter)) return { set: `\\${letter}` };
    if (letter === '0') return { char: '\0' };
    return /[A-Za-z1-9]/.test(letter) ? unknown(`\\${letter}`) : { char: letter };
  };

  const parseClass = (fold: boolean): string => {
    let out = '[';
    if (pattern[at] === '^') {
      ++at;
      out += '^';
    }
    for (let first = true; ; first = false) {
      const posix = /^\[:(\^?)(\w+):\]/.exec(pattern.slice(at));
      if (posix !== null) {
        const set = kPosix[posix[2] as string] ?? unknown(posix[0]);
        out += posix[1] ? `[^${set}]` : set;
        at += posix[0].length;
        continue;
      }
      if (pattern.startsWith('&&', at)) {
        // Operands of several parts are classes of their own.
        at += 2;
        const negation = out.startsWith('[^') ? '^' : '';
        return `[${negation}[${out.slice(1 + negation.length)}]&&${parseClass(fold)}]`;
      }
      const char = next();
      if (char === ']' && !first) return `${out}]`;
      if (char === '[') {
        out += parseClass(fold);
        continue;
      }
      let one: string | undefined = char;
      if (char === '\\') {
        const letter = next();
        const set = kInClass[letter] ?? (letter === 'W' ? `[^${kWord}]` : letter === 'H' ? kOutside.H : undefined);
        const known = set !== undefined ? { set } : letter === 'b' ? { char: '\b' } : escaped(letter);
        if (known.set !== undefined) out += known.set;
        one = known.char;
      }
      if (one === undefined) continue;
      if (pattern[at] === '-' && pattern[at + 1] !== ']' && pattern[at + 1] !== undefined) {
        ++at;
        let end = next();
        if (end === '\\') end = escaped(next()).char ?? unknown('a range to a set');
        out += `${member(one)}-${member(end)}`;
        if (fold && /[A-Za-z]/.test(one) && /[A-Za-z]/.test(end))
          out += `${one.toLowerCase()}-${end.toLowerCase()}${one.toUpperCase()}-${end.toUpperCase()}`;
      } else if (fold) out += folded(one);
      // Twice the same sign has a meaning of its own in a class of JavaScript's.
      else if (!out.endsWith(one)) out += member(one);
    }
  };

  const parseGroup = (outerFold: boolean): string => {
    let fold = outerFold;
    let out = '';
    while (at < pattern.length) {
      const char = next();
      if (char === ')') {
        --at;
        return out;
      }
      let atom: string;
      if (char === '|') {
        out += '|';
        continue;
      }
      if (char === '(') {
        const head = /^\?(?:<?[=!]|:|#[^)]*|>|<\w+>|([imx]*)(?:-([imx]+))?(:|\)))/.exec(pattern.slice(at));
        if (head === null && pattern[at] === '?') unknown('a kind of group');
        at += head?.[0].length ?? 0;
        let open = head?.[0] ?? '?:';
        let inner = fold;
        if (head?.[3] !== undefined) {
          if (/[mx]/.test(head[1] as string)) unknown(head[0]);
          inner = (head[1] as string).includes('i') || (fold && !head[2]?.includes('i'));
          if (head[3] === ')') {
            fold = inner;
            continue;
          }
          open = '?:';
        }
        if (open.startsWith('?<') && !/^\?<[=!]/.test(open)) open = '?:';
        const comment = open.startsWith('?#');
        const body = comment ? '' : parseGroup(inner);
        if (next() !== ')') unknown('an open group');
        if (comment) continue;
        atom = open === '?>' ? `(?:(?=(?<a${++atomics}>${body}))\\k<a${atomics}>)` : `(${open}${body})`;
      } else if (char === '[') atom = parseClass(fold);
      else if (char === '.') atom = '[^\\n]';
      else if (char === '^') atom = '(?<![^\\n])';
      else if (char === '$') atom = '(?![^\\n])';
      else if (char === '\\') {
        const letter = next();
        const set = kOutside[letter] ?? (Object.hasOwn(kInClass, letter) ? `[${kInClass[letter]}]` : undefined);
        const known = set !== undefined ? { set } : escaped(letter);
        atom = known.set ?? (fold ? `[${folded(known.char as string)}]` : literal(known.char as string));
      } else atom = fold && /\p{L}/u.test(char) ? `[${folded(char)}]` : literal(char);
      const quantifier = /^(?:[*+?]|\{\d+(?:,\d*)?\}|\{,\d+\})/.exec(pattern.slice(at))?.[0];
      if (quantifier !== undefined) {
        at += quantifier.length;
        const count = quantifier.replace('{,', '{0,');
        if (pattern[at] === '?') {
          ++at;
          atom += `${count}?`;
        } else if (pattern[at] === '+' && !quantifier.startsWith('{')) {
          ++at;
          atom = `(?:(?=(?<a${++atomics}>${atom}${count}))\\k<a${atomics}>)`;
        } else atom += count;
      }
      out += atom;
    }
    return out;
  };
  const out = parseGroup(false);
  if (at < pattern.length) unknown('a group that is closed twice');
  return out;
}

/** A pattern of JavaScript's, with sets in classes where the engine knows them. */
export function compileRegex(source: string): RegExp {
  try {
    return new RegExp(source, 'gv');
  } catch {
    return new RegExp(source, 'gu');
  }
}
