// A mistyped option would do nothing, and say nothing where types are not checked.

/** Returns a function that throws if there are no such options; `names` are those that there are. */
export function knows<Options extends object>(what: string, names: Record<keyof Options & string, 1>): (options: object) => void {
  return (options) => {
    for (const name of Object.keys(options)) {
      if (!Object.hasOwn(names, name)) throw new TypeError(`weir: ${what} has no option ${JSON.stringify(name)}: it has ${Object.keys(names).join(", ")}`);
    }
  };
}
