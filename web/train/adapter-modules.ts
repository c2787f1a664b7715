import type { NativeParameter } from '../engine/native.ts';
import { type ErrorCode, WasmformerError } from '../errors.ts';
import type { AdapterTargets } from './adapter-options.ts';

/** Output layers, by name. One that is tied to the embedding has no weight of its own, and is nevertheless a module to PEFT. */
const heads = ['lm_head', 'embed_out', 'vocab_projector', 'cls.predictions.decoder', 'predictions.decoder', 'lm_head.decoder'];

function fail(what: string, expected: string, got: unknown, code: ErrorCode = 'invalid-argument'): never {
  throw new WasmformerError(code, `[lora] ${what}: expected ${expected}, got ${JSON.stringify(got)}`);
}

/**
 * Python's `re.match` with a pattern. What JavaScript reads under `u` means the same to both, of names in ASCII; all but references to
 * groups, which differ where the group matched nothing.
 */
function expression(key: string, pattern: string, whole = pattern): RegExp {
  const translated = (source: string) => new RegExp(source.replaceAll('(?P<', '(?<'), 'u');
  try {
    if (/\\[1-9k]/.test(pattern)) throw 0;
    translated(pattern);
    return translated(`^(?:${whole})`);
  } catch {
    return fail(key, 'a regular expression that means the same in Python and JavaScript', pattern, 'unsupported');
  }
}

/** Whether a module is named: a pattern matches its name, or one of some names is the end of its path. */
function matcher(key: string, names: string | readonly string[]): (module: string) => boolean {
  if (typeof names !== 'string') return (module) => names.some((name) => `.${module}`.endsWith(`.${name}`));
  const pattern = expression(key, names, `(?:${names})$`);
  return (module) => pattern.test(module);
}

/**
 * The modules that PEFT would change (`check_target_module_exists`, `_maybe_include_all_linear_layers`), by names that say so.
 * @param head as in `ModelInfo`
 * @param saved of an adapter that there is: as to PEFT, names of no such layer say nothing beside others
 * @throws WasmformerError `invalid-argument` for names and settings that make no sense; `unsupported` for modules that are no linear layers
 */
export function modulesOf(targets: AdapterTargets, parameters: readonly NativeParameter[], head: string, saved = false): readonly string[] {
  const { target_modules: target, exclude_modules, layers_to_transform: layers, layers_pattern: pattern } = targets;
  const isPattern = typeof target === 'string';
  const exclude = exclude_modules ?? [];
  const [numbers, levels] = [[layers ?? []].flat(), [pattern || []].flat()];
  if (isPattern && numbers.length > 0) fail('layers_to_transform', 'none beside a string', layers);
  if (levels.length > 0 && numbers.length === 0) fail('layers_pattern', 'layers_to_transform beside it', pattern);

  const linear = new Set<string>();
  const modules = new Set(heads);
  for (const { name, linear: isLinear } of parameters) {
    for (let end = name.indexOf('.'); end > 0; end = name.indexOf('.', end + 1)) modules.add(name.slice(0, end));
    if (isLinear) linear.add(name.slice(0, name.lastIndexOf('.')));
  }
  if (!isPattern) {
    const known = target.filter((name) => [...linear].some(matcher('target_modules', [name])));
    const other = target.find((name) => !known.includes(name));
    if (other !== undefined && !(saved && known[0])) fail('target_modules', 'names of linear layers', other);
    if (exclude.length + numbers.length === 0) return known;
  }
  const isOutput = (module: string) => heads.includes(module) || (head === 'sequence' && /^(score|classifier)$/.test(module));
  const isAll = isPattern && target.toLowerCase() === 'all-linear';
  const isTarget = isAll ? (module: string) => linear.has(module) && !isOutput(module) : matcher('target_modules', target);
  const isExcluded = matcher('exclude_modules', exclude);
  const index = levels.length > 0 ? levels.map((level) => `(?:^|.*?\\.)${level}`) : ['.*?\\.[^.]*'];
  const paths = index.map((before, i) => expression('layers_pattern', levels[i] ?? '', `${before}\\.(?<idx>\\d+)\\.`));
  const isInLayer = (module: string) => {
    const found = paths.map((path) => path.exec(module)).find((match) => match);
    return numbers.includes(Number(found?.groups?.idx ?? -1));
  };

  const found = [...modules].filter((module) => isTarget(module) && !isExcluded(module) && (numbers.length === 0 || isInLayer(module)));
  const other = found.find((module) => !linear.has(module));
  if (other !== undefined) fail('target_modules', 'linear layers', other, 'unsupported');
  if (found.length === 0) fail('target_modules', 'at least one module that is named and not left out', target);
  return found;
}
