import { isObject, type JsonObject, kindOf, own } from './json.ts';
import { componentOf, type Fail, listOf } from './normalizer.ts';
import { isTrail } from './piece.ts';

/** Tokens of one text, or special ones. */
export interface Part {
  ids: number[];
  typeIds: number[];
  offsets: [number, number][];
  /** 0 and 1: tokens of the first and the second text; -1: added. */
  sequence: number;
  /** The tokens' own texts. */
  tokens: string[];
  /** What the offsets are places in. */
  text: string;
}

export type PostProcessor = (parts: Part[], addSpecialTokens: boolean) => Part[];

/** Special tokens that stand around texts. */
export const specialPart = (ids: readonly number[], typeId: number): Part => ({
  ids: [...ids],
  typeIds: ids.map(() => typeId),
  offsets: ids.map(() => [0, 0]),
  sequence: -1,
  tokens: ids.map(() => ''),
  text: '',
});

const isId = (value: unknown) => Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 24;

const typed = (part: Part, typeId: number): Part => ({ ...part, typeIds: part.ids.map(() => typeId) });

/** Takes white space off the ends of offsets, but for the space that `add_prefix_space` put there. */
function trim(part: Part, prefixed: boolean): Part {
  const offsets = part.offsets.map(([begin, end], i): [number, number] => {
    const token = part.tokens[i] as string;
    let leading = (/^[\u0120\p{White_Space}]*/u.exec(token) as RegExpExecArray)[0].length;
    let trailing = 0;
    while (trailing < token.length && /[\u0120\p{White_Space}]/u.test(token[token.length - 1 - trailing] as string)) ++trailing;
    if (leading === 1 && prefixed && (i === 0 || begin === 0)) leading = 0;
    let first = Math.min(begin + leading, end);
    // A space that was put before a character of two units has that character's place.
    if (isTrail(part.text, first)) ++first;
    let last = end >= trailing ? Math.max(end - trailing, first) : end;
    if (isTrail(part.text, last)) --last;
    return [first, last];
  });
  return { ...part, offsets };
}

/** The `post_processor` of a tokenizer.json. `idOf` gives ids of special tokens that it does not list. */
export function compilePostProcessor(parsed: unknown, idOf: (token: string) => number | undefined, fail: Fail): PostProcessor {
  const config = componentOf(parsed, 'post_processor', fail);
  if (config === null) return (parts) => parts;
  const type = own(config, 'type');
  const pairOf = (key: string): number => {
    const given = own(config, key);
    if (!Array.isArray(given) || !isId(given[1])) throw fail(`post_processor.${key}: expected a token and its id, got ${kindOf(given)}`);
    return given[1];
  };
  const trims = own(config, 'trim_offsets') !== false;
  const prefixed = own(config, 'add_prefix_space') !== false;
  switch (type) {
    case 'Sequence': {
      const all = listOf(config, 'processors', fail).map((one) => compilePostProcessor(one, idOf, fail));
      return (parts, add) => all.reduce((made, one) => one(made, add), parts);
    }
    case 'ByteLevel':
      return (parts) => (trims ? parts.map((part) => trim(part, prefixed)) : parts);
    case 'BertProcessing':
    case 'RobertaProcessing': {
      const roberta = type === 'RobertaProcessing';
      const [sep, cls] = [pairOf('sep'), pairOf('cls')];
      return (parts, add) =>
        parts.flatMap((part, i) => {
          const typeId = roberta ? 0 : i;
          const own = typed(roberta && trims ? trim(part, prefixed) : part, typeId);
          if (!add) return [own];
          const before = i === 0 ? [cls] : roberta ? [sep] : [];
          return [specialPart(before, typeId), own, specialPart([sep], typeId)];
        });
    }
    case 'TemplateProcessing': {
      const [single, pair] = (['single', 'pair'] as const).map((key) => readTemplate(config, key, idOf, fail));
      return (parts, add) =>
        ((parts.length > 1 ? pair : single) as Slot[]).flatMap((slot) =>
          slot.ids === undefined ? [typed(parts[slot.sequence] as Part, slot.typeId)] : add ? [specialPart(slot.ids, slot.typeId)] : [],
        );
    }
    default:
      throw fail(`post_processor: ${kindOf(type)} is not supported`, 'unsupported');
  }
}

/** A place of a template: special tokens, or the text `sequence`. */
interface Slot {
  ids?: number[];
  sequence: number;
  typeId: number;
}

function readTemplate(config: JsonObject, key: 'single' | 'pair', idOf: (token: string) => number | undefined, fail: Fail): Slot[] {
  const tokens = own(config, 'special_tokens');
  return listOf(config, key, fail).map((slot): Slot => {
    const special = isObject(slot) ? own(slot, 'SpecialToken') : undefined;
    const text = isObject(slot) ? own(slot, 'Sequence') : undefined;
    const inner = special ?? text;
    if (!isObject(inner)) throw fail(`post_processor.${key}: expected a SpecialToken or a Sequence, got ${kindOf(slot)}`);
    const id = String(own(inner, 'id'));
    const typeId = Number(own(inner, 'type_id') ?? 0);
    if (special === undefined) {
      if (id !== 'A' && (id !== 'B' || key === 'single')) throw fail(`post_processor.${key}: expected the text A, got ${kindOf(id)}`);
      return { sequence: Number(id === 'B'), typeId };
    }
    const listed = isObject(tokens) ? own(tokens, id) : undefined;
    const ids = isObject(listed) ? own(listed, 'ids') : [idOf(id)];
    if (!Array.isArray(ids) || !ids.every(isId))
      throw fail(`post_processor.special_tokens: expected the ids of ${id}, got ${kindOf(isObject(listed) ? ids : undefined)}`);
    return { ids, sequence: -1, typeId };
  });
}
