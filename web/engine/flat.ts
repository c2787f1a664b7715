/** A flat configuration: dotted keys. */
export type Flat = Record<string, number | boolean | string | null | readonly number[] | readonly string[]>;
