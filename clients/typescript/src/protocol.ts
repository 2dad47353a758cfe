// What a worker and the way to its jobs, SQL or a hub, say to each other.

import type { Moment } from "./clock.js";

/** A job, as its handler sees it. */
export interface Job {
  readonly id: string;
  readonly queue: string;
  readonly priority: number;
  readonly kind: string;
  readonly meta: Readonly<Record<string, unknown>> | null;
  readonly key: string | null;
  /** The flow of which it is a member: pass it to `enqueue` for what the job adds to it. */
  readonly flow: string | null;
  /** 1 for the first. */
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly enqueuedAt: Date;
}

/** An attempt that was given to the worker. */
export interface Given {
  readonly token: string;
  readonly job: Job;
  readonly args: unknown;
  /** Of earlier attempts, if the way to the jobs brings it along. */
  readonly checkpoint?: unknown;
}

/** How an attempt ended. */
export interface End {
  token: string;
  outcome: "completed" | "failed" | "cancelled" | "snoozed" | "released";
  output?: string;
  error?: string;
  final?: boolean;
  delay?: number;
}

/** How far an attempt is. */
export interface Report {
  token: string;
  percent?: number;
  message?: string;
  checkpoint?: unknown;
  log?: { at: string; level: string; text: string }[];
}

/** An end or a report that was not stored. */
export interface Refusal {
  token: string;
  refusal: string;
  detail?: string | null;
}

/** Attempts to interrupt. */
export interface Cancel {
  token: string;
  reason: "cancelled" | "lost";
}

/** What a worker needs of the way to its jobs. A call that throws changed nothing, or is safe to repeat, unless the error is Fatal or Fenced. */
export interface Link {
  /** After which part of the lease without an answer others may have the attempts. */
  patience(): number;
  /** What is not held is given to others at once. */
  readonly givesBack: boolean;
  /** How many ends one call may contain. */
  readonly most: number;
  /** Gives the worker jobs, until it has stopped. */
  feed(core: Feed): Promise<void>;
  record(ends: readonly End[]): Promise<Refusal[]>;
  report(reports: readonly Report[]): Promise<Refusal[]>;
  /** The checkpoint of an attempt, from earlier ones. */
  checkpoint(given: Given): Promise<unknown>;
  /** The statement that completes an attempt, for a transaction of the handler's; undefined: there are none. */
  completion?(token: string, output: string | undefined): [text: string, values: string[]];
  /** The statement that sets a checkpoint, for a transaction of the handler's. */
  checkpointing?(token: string, checkpoint: string): [text: string, values: string[]];
  /** The worker hears nothing: whatever call is under way has to end now. */
  lapse(): void;
  /** Releases what the worker still holds, and ends it. */
  stop(): Promise<void>;
}

/** What the way to the jobs needs of the worker. */
export interface Feed {
  readonly name: string;
  /** The lease that the program asked for, in seconds; undefined: the default. */
  readonly wanted: number | undefined;
  readonly chores: boolean;
  readonly kinds: readonly string[];
  /** How many jobs of each queue may run at once. */
  readonly queues: ReadonlyMap<string, number>;
  /** The worker takes no more jobs. */
  readonly stopping: boolean;
  /** And runs none any more, so `feed` has to return. */
  readonly over: boolean;
  /** By one of two clocks the lease is over, by the other it is not: the link has to renew it at once. */
  readonly unsure: boolean;
  /** How many more jobs of each queue the worker could run now. */
  room(): Map<string, number>;
  /** The tokens of all attempts that were given and not recorded. */
  held(): string[];
  /** Resolves when a job has ended, the worker stops, or the time is over, and never rejects. */
  changed(seconds: number): Promise<void>;
  /** Ends what waits in `changed`. */
  wake(): void;
  /** Is called when `changed` resolves. */
  watch: (() => void) | undefined;
  /** Starts attempts. Returns whether it has declined some, because it stops or its lease may be over: they are not held. */
  give(attempts: readonly Given[]): boolean;
  interrupt(attempts: readonly Cancel[]): void;
  /** A call that was sent then has renewed the lease. */
  renewed(sentAt: Moment, lease: number): void;
  /** What stood for the worker ended then, so others may get the attempts soon, unless the lease is renewed or granted again; undefined: not before the lease is over. */
  shorten(endedAt: Moment | undefined): void;
  /** The worker has been fenced: what it held belongs to others. */
  fenced(): void;
  /** Resolves when no end waits to be recorded, or after these seconds. */
  recorded(seconds: number): Promise<void>;
  /** Something failed that will be tried again. */
  failed(error: unknown): void;
}

/** An error after which there is no point in trying again. */
export class Fatal extends Error {
  constructor(cause: unknown) {
    super("fatal", { cause });
  }
}
