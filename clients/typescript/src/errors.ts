import { shown } from "./options.js";

/** A call that was refused, by the database or by a hub. `code` is a SQLSTATE, or a code of the hub's: both are listed in the documentation. */
export class WeirError extends Error {
  override name = "WeirError";
  readonly code: string;
  readonly hint: string | undefined;

  constructor(message: string, code: string, hint?: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.hint = hint;
  }
}

/** The error of a request that a hub, or something before it, has refused. */
export function hubError(status: number, text: string): WeirError {
  try {
    const { code, error, hint } = JSON.parse(text) as { code: unknown; error: string; hint?: string };
    if (typeof code === "string") return new WeirError(error, code, hint);
  } catch {
    // not from a hub
  }
  return new WeirError(`the hub, or something before it, answered ${status}: ${text.slice(0, 200)}`, status >= 500 || status === 429 || status === 408 ? "unavailable" : "bad_request");
}

/** Returns an error of fetch as one that says what has failed, and why. */
export function unreached(error: unknown, request: string): unknown {
  if (!(error instanceof TypeError)) return error;
  const { message, code } = (error.cause ?? {}) as { message?: unknown; code?: unknown }; // an engine says no more than "fetch failed"
  return new WeirError(`${request}: ${message || code || error.message}`, "unavailable", "check the hub's address, and that it runs", { cause: error });
}

/** Thrown by a handler: the job fails for good, and is not tried again. */
export class Final extends Error {
  override name = "Final";
}

/** Thrown by a handler: the attempt failed, and the next one follows after this many seconds (less than 0: at once), whatever the queue's backoff is. */
export class RetryIn extends Error {
  override name = "RetryIn";
  readonly seconds: number;

  constructor(seconds: number, message: string, options?: ErrorOptions) {
    super(message, options);
    this.seconds = seconds;
  }
}

/** Thrown by a handler: the job runs again after this many seconds (less than 0: at once), without using up an attempt. */
export class Snooze extends Error {
  override name = "Snooze";
  readonly seconds: number;

  constructor(seconds: number) {
    super(`snoozed for ${seconds} seconds`);
    this.seconds = seconds;
  }
}

/** The longest delay, in seconds: ten years. */
const MOST = 315_576_000;

/** Returns what a handler has thrown, or what is wrong with the delay in it. */
export function checked(error: unknown): unknown {
  if (!(error instanceof RetryIn || error instanceof Snooze) || (Number.isFinite(error.seconds) && error.seconds <= MOST)) return error;
  return new TypeError(`weir: ${error.name} got ${shown(error.seconds)}: pass a number of seconds, up to ${MOST} (ten years)`, { cause: error });
}

/** Thrown by a handler: this worker can't run the job now. It waits again, for any worker, without using up an attempt. */
export class Release extends Error {
  override name = "Release";
}

/** Why a handler was interrupted: the `reason` of its signal. */
export class Interrupted extends Error {
  override name = "Interrupted";
  /**
   * `cancelled`: somebody cancelled the job. `timeout`: it ran for longer than it may. `stopping`: the worker stops.
   * `lost`: the worker was out of touch for so long that another one may have the job.
   */
  readonly why: "cancelled" | "timeout" | "stopping" | "lost";

  constructor(why: Interrupted["why"], message: string) {
    super(message);
    this.why = why;
  }
}

/** Returns what is kept with a job that failed: the stack, and the causes. */
export function describe(error: unknown): string {
  let text = "";
  for (let depth = 0; error !== undefined && depth < 5; depth++) {
    if (depth > 0) text += "\ncaused by: ";
    if (!(error instanceof Error)) return text + plain(error);
    const message = `${error.name}: ${error.message}`;
    // Some engines leave the message out of the stack, or keep an old one in it.
    text += error.stack === undefined ? message : error.stack.includes(error.message) ? error.stack : `${message}\n${error.stack}`;
    error = error.cause;
  }
  return text;
}

function plain(value: unknown): string {
  if (typeof value !== "object" || value === null) return String(value);
  try {
    return JSON.stringify(value);
  } catch {
    return String(value);
  }
}
