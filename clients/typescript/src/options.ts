// A mistyped option would do nothing, and say nothing where types are not checked.

/** Returns a function that throws if there are no such options; `names` are those that there are. */
export function knows<Options extends object>(what: string, names: Record<keyof Options & string, 1>): (options: object, whose?: string) => void {
  const all = Object.keys(names).join(", ");
  return (options, whose = what) => {
    if (!isPlain(options)) throw new TypeError(`weir: ${whose} got ${shown(options)} in place of its options: pass an object that has any of ${all}`);
    for (const name of Object.keys(options)) {
      if (!Object.hasOwn(names, name)) throw new TypeError(`weir: ${whose} has no option ${JSON.stringify(name)}: it has ${all}`);
    }
    const { tx } = options as { tx?: unknown };
    // What was to be done in it would be done at once.
    if ("tx" in options && (tx === undefined || tx === null)) throw new TypeError(`weir: tx is ${tx}: pass your transaction, or leave tx out`);
  };
}

/** Throws if a signal, which may be left out, is none. */
export function knowsSignal(signal: AbortSignal | undefined): void {
  if (signal !== undefined && typeof signal?.addEventListener !== "function") throw wrong("signal", signal, "an AbortSignal, such as the signal of an AbortController");
}

/** The error of a value that is not what it has to be. */
export function wrong(what: string, value: unknown, wanted: string): TypeError {
  return new TypeError(`weir: ${what} is ${shown(value)}: pass ${wanted}`);
}

/** Returns a value as an error tells it: of an object no more than what it has, because it may be secret. */
export function shown(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.length > 100 ? `${value.slice(0, 100)}…` : value);
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (isPlain(value)) return `{ ${Object.keys(value).slice(0, 10).join(", ")} }`;
  return typeof value === "function" ? "a function" : value instanceof Object ? `an object of ${value.constructor?.name}` : String(value);
}

/** Reports whether a value is an object as literals make them. */
export function isPlain(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
