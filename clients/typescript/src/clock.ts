// How long ago something was, by two clocks. performance.now() counts what has passed, but on some systems stands still while the machine is suspended. The clock on the wall goes on
// meanwhile, but it can be set: if it is ahead of the other one, nobody can tell which of the two has happened.

/** A moment, in milliseconds of each clock. */
export interface Moment {
  readonly steady: number;
  readonly wall: number;
}

export function now(): Moment {
  return { steady: performance.now(), wall: Date.now() };
}

/** How many seconds have passed since then, at least. */
export function atLeast({ steady }: Moment): number {
  return (performance.now() - steady) / 1000;
}

/** How many seconds may have passed since then. A clock on the wall that was set back says nothing. */
export function atMost(moment: Moment): number {
  return Math.max(atLeast(moment), (Date.now() - moment.wall) / 1000);
}

/** Some seconds later. */
export function later({ steady, wall }: Moment, seconds: number): Moment {
  return { steady: steady + seconds * 1000, wall: wall + seconds * 1000 };
}
