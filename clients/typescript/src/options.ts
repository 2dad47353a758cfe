// A mistyped option would do nothing, and say nothing where types are not checked.

/** Returns a function that throws if there are no such options; `names` are those that there are. */
export function knows<Options extends object>(what: string, names: Record<keyof Options & string, 1>): (options: object) => void {
  return (options) => {
    for (const name of Object.keys(options)) {
      if (!Object.hasOwn(names, name)) throw new TypeError(`weir: ${what} has no option ${JSON.stringify(name)}: it has ${Object.keys(names).join(", ")}`);
    }
  };
}

/** Returns a value as an error tells it. */
export function shown(value: unknown): string {
  const text = isPlain(value) || Array.isArray(value) || typeof value === "string" ? json(value) : value instanceof Object && typeof value === "object" ? `an object of ${value.constructor?.name}` : String(value);
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
}

function json(value: unknown): string {
  try {
    return JSON.stringify(value);
  } catch {
    return String(value); // it contains itself, or a bigint
  }
}

/** Reports whether a value is an object as literals make them. */
export function isPlain(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}
