import { encoded, refusal } from "./enqueue.js";
import { checked, describe, Final, Interrupted, Release, RetryIn, Snooze } from "./errors.js";
import { runner, type Sql } from "./executor.js";
import { knows } from "./options.js";
import type { End, Given, Job, Link, Report } from "./protocol.js";

const MAX_ERROR = 64 << 10; // bytes, as the rest of these
const MAX_OUTPUT = 1 << 20;
const MAX_CHECKPOINT = 128 << 10;
const MAX_MESSAGE = 2000;
const MAX_LINE = 8000;
const MAX_LINES = 1000; // that wait to be stored
const MAX_LINES_AT_ONCE = 200; // in one report
const MAX_LOG_AT_ONCE = 600_000; // characters of them

/** What a handler can do besides returning an output, or throwing an error. */
export interface Context {
  readonly job: Job;
  /** Aborts when the handler should end; its `reason` is an `Interrupted` that says why. */
  readonly signal: AbortSignal;
  /**
   * Completes the job in a transaction of the handler's: the handler's effects and the completion commit together, or not at all. Commit it,
   * then return. Not over HTTP.
   */
  complete(tx: Sql, output?: unknown): Promise<void>;
  /** How far the job is, for people: 0 to 100, and a text. */
  progress(percent: number, message?: string): void;
  /** Keeps a line with the attempt. */
  log(text: string, level?: "DEBUG" | "INFO" | "WARN" | "ERROR"): void;
  /** What was set last, in this attempt or an earlier one; undefined: nothing. */
  checkpoint<T = unknown>(): Promise<T | undefined>;
  /** From where the next attempt is to go on; undefined: from the beginning. With `tx`, it is set in that transaction (not over HTTP); without, within a second. */
  setCheckpoint(value: unknown, options?: { tx?: Sql }): Promise<void>;
  /** Resolves when progress, checkpoint and log are stored. */
  sync(): Promise<void>;
  /** Ends the handler: the job runs again after this many seconds, without using up an attempt. The same as `throw new Snooze(seconds)`. */
  snooze(seconds: number): never;
}

/** Where attempts say what is not their end. */
export interface Reports {
  /** Resolves when what attempts have reported is stored. */
  stored(): Promise<void>;
  /** Something is wrong that the program should hear of. */
  failed(error: unknown): void;
}

/** One try at a job, from when it was given to the worker until its end is recorded. */
export class Attempt {
  readonly given: Given;
  readonly timeout: number;
  interruption: Interrupted | undefined;
  /** The handler has ended, or was given up. */
  over = false;
  timer: ReturnType<typeof setTimeout> | undefined;
  readonly #link: Link;
  readonly #worker: Reports;
  #controller: AbortController | undefined;
  #completing = false;
  #checkpoint: { value: unknown } | undefined;
  #report: Report | undefined;

  constructor(given: Given, timeout: number, link: Link, worker: Reports) {
    this.given = given;
    this.timeout = timeout;
    this.#link = link;
    this.#worker = worker;
  }

  get token(): string {
    return this.given.token;
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.interruption) this.#controller.abort(this.interruption);
    }
    return this.#controller.signal;
  }

  interrupt(interruption: Interrupted): void {
    this.interruption = interruption;
    this.#controller?.abort(interruption);
  }

  /** The end of a handler that has returned. */
  returned(output: unknown): End {
    const token = this.token;
    if (this.#completing) return this.#uncommitted();
    if (output === undefined) return { token, outcome: "completed" };
    try {
      return { token, outcome: "completed", output: outputText(output) };
    } catch (error) {
      return this.failed(error);
    }
  }

  /** The end of a handler that has thrown; undefined: it was interrupted, and others get the job. */
  threw(thrown: unknown): End | undefined {
    const token = this.token;
    const error = checked(thrown);
    if (error !== thrown) this.#worker.failed(error);
    const interruption = this.interruption;
    if (interruption?.why === "lost" || interruption?.why === "stopping") return undefined;
    if (interruption?.why === "cancelled") return { token, outcome: "cancelled", error: interruption.message };
    if (interruption !== undefined) return this.failed(aborted(error, interruption) ? interruption.message : error);
    if (error instanceof Snooze) return { token, outcome: "snoozed", delay: Math.max(0, error.seconds) };
    if (error instanceof Release) return { token, outcome: "released", error: error.message };
    return this.failed(error);
  }

  failed(error: unknown): End {
    const end: End = { token: this.token, outcome: "failed", error: cut(describe(error), MAX_ERROR) };
    if (error instanceof Final) end.final = true;
    if (error instanceof RetryIn) end.delay = Math.max(0, error.seconds); // until a moment that is over
    return end;
  }

  /** The end of a handler that has completed its job in a transaction: it is refused if this was committed, and otherwise true. */
  #uncommitted(): End {
    return { token: this.token, outcome: "failed", error: "the transaction in which the job was completed was not committed" };
  }

  /** Returns what was reported since the last time; of a long log, the beginning. */
  takeReport(): Report | undefined {
    const report = this.#report;
    this.#report = undefined;
    const lines = report?.log ?? [];
    let n = 0;
    for (let size = 0; n < Math.min(lines.length, MAX_LINES_AT_ONCE); n++) {
      size += lines[n]!.text.length;
      if (size > MAX_LOG_AT_ONCE) break;
    }
    if (n < lines.length) this.#report = { token: this.token, log: lines.splice(n) };
    return report;
  }

  /** Keeps a report that could not be stored; what was said since then is newer. */
  putBack(report: Report): void {
    const newer = this.#report;
    this.#report = { ...report, ...newer };
    const log = [...(report.log ?? []), ...(newer?.log ?? [])].slice(0, MAX_LINES);
    if (log.length > 0) this.#report.log = log;
  }

  #say(what: Partial<Report>): void {
    if (!this.over) this.#report = { token: this.token, ...this.#report, ...what };
  }

  /** What the handler gets. Its methods may be taken out of it. */
  context(): Context {
    const attempt = this;
    const link = this.#link;
    return {
      job: this.given.job,
      get signal() {
        return attempt.signal;
      },
      async complete(tx, output) {
        if (!link.completion) throw new TypeError("weir: a job that came over HTTP can't be completed in a transaction: work over SQL");
        const [text, values] = link.completion(attempt.token, output === undefined ? undefined : outputText(output));
        attempt.#completing = true;
        await run(tx, text, values);
      },
      progress(percent, message) {
        if (!(percent >= 0 && percent <= 100)) throw new RangeError(`weir: progress is ${percent}: pass a number from 0 to 100`);
        attempt.#say(message === undefined ? { percent } : { percent, message: message.slice(0, MAX_MESSAGE) });
      },
      log(text, level = "INFO") {
        const lines = attempt.#report?.log ?? [];
        if (lines.length < MAX_LINES) lines.push({ at: new Date().toISOString(), level, text: text.slice(0, MAX_LINE) });
        attempt.#say({ log: lines });
      },
      async checkpoint<T>() {
        attempt.#checkpoint ??= { value: await link.checkpoint(attempt.given) };
        return (attempt.#checkpoint.value ?? undefined) as T | undefined;
      },
      async setCheckpoint(value, options = {}) {
        knowsCheckpoint(options);
        const { tx } = options;
        const text = encoded(value ?? null, "the checkpoint");
        if (size(text) > MAX_CHECKPOINT) throw new RangeError(`weir: the checkpoint has ${size(text)} bytes, at most ${MAX_CHECKPOINT} are allowed: keep larger data elsewhere, and its place in the checkpoint`);
        if (tx !== undefined) {
          if (!link.checkpointing) throw new TypeError("weir: over HTTP, a checkpoint can't be set in a transaction: work over SQL");
          await run(tx, ...link.checkpointing(attempt.token, text));
          if (attempt.#report) delete attempt.#report.checkpoint; // an older one
        } else {
          attempt.#say({ checkpoint: JSON.parse(text) as unknown });
        }
        attempt.#checkpoint = { value: JSON.parse(text) as unknown };
      },
      sync: () => attempt.#worker.stored(),
      snooze(seconds) {
        throw new Snooze(seconds);
      },
    };
  }
}

const knowsCheckpoint = knows<{ tx?: Sql }>("setCheckpoint", { tx: 1 });

async function run(tx: Sql, text: string, values: string[]): Promise<void> {
  try {
    await runner(tx)(text, values);
  } catch (error) {
    throw refusal(error);
  }
}

/** An output as it is kept with the job: a text as it is, anything else as JSON. */
function outputText(output: unknown): string {
  return cut(typeof output === "string" ? output : encoded(output, "the output"), MAX_OUTPUT);
}

const size = (text: string) => new TextEncoder().encode(text).length;

/** Cuts a text to a number of bytes, between two characters. */
function cut(text: string, bytes: number): string {
  if (text.length * 3 <= bytes || size(text) <= bytes) return text;
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(bytes));
  return text.slice(0, read);
}

/** Reports whether an error only says that the signal aborted. */
function aborted(error: unknown, interruption: Interrupted): boolean {
  return error === interruption || (error instanceof Error && (error.name === "AbortError" || error.cause === interruption));
}
