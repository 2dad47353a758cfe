/** For how many seconds a worker has its jobs after what stood for it has ended: others get them after three, which leaves room for a step of the clock. */
export const HASTE = 2.25;

/** Resolves after some seconds, or when the signal aborts. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    signal?.addEventListener("abort", end);
  });
}

/** The pauses between attempts to reach something: random, and longer each time. */
export class Backoff {
  #failures = 0;
  readonly #first: number;
  readonly #most: number;

  constructor(first = 0.1, most = 5) {
    this.#first = first;
    this.#most = most;
  }

  reset(): void {
    this.#failures = 0;
  }

  next(): number {
    return Math.min(this.#first * 2 ** this.#failures++, this.#most) * (0.5 + Math.random() / 2);
  }
}

/** Something that happens again and again, and that several can wait for. */
export class Bell {
  #waiting = new Set<() => void>();

  ring(): void {
    const waiting = this.#waiting;
    this.#waiting = new Set();
    for (const wake of waiting) wake();
  }

  /** Resolves at the next ring, or after some seconds. */
  wait(seconds = Infinity): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#waiting.delete(wake);
        resolve();
      };
      const timer = seconds === Infinity ? undefined : setTimeout(wake, seconds * 1000);
      this.#waiting.add(wake);
    });
  }
}
