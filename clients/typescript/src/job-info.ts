export type State = "available" | "running" | "scheduled" | "completed" | "failed" | "cancelled";

/** A job, in the state of its newest attempt. */
export interface JobInfo {
  id: string;
  state: State;
  queue: string;
  priority: number;
  kind: string;
  args: unknown;
  meta: Record<string, unknown> | null;
  key: string | null;
  flow: string | null;
  attempt: number;
  maxAttempts: number;
  enqueuedAt: Date;
  runAt: Date | null;
  claimedAt: Date | null;
  finishedAt: Date | null;
  cancelRequested: boolean;
  output: string | null;
  /** Why the last attempt ended. */
  error: string | null;
  /** Those of the last 25 attempts, oldest first. */
  errors: unknown[];
  percent: number | null;
  message: string | null;
  log: unknown[];
}

/** Reads a job as the database, or a hub, writes it. */
export function jobInfo(given: Record<string, unknown>): JobInfo {
  const date = (value: unknown) => (value == null ? null : new Date(String(value)));
  const id = (value: unknown) => (value == null ? null : String(value));
  return {
    id: String(given.id),
    state: given.state as State,
    queue: String(given.queue),
    priority: Number(given.priority),
    kind: String(given.kind),
    args: given.args,
    meta: (given.meta ?? null) as JobInfo["meta"],
    key: id(given.key),
    flow: id(given.flow),
    attempt: Number(given.attempt),
    maxAttempts: Number(given.max_attempts),
    enqueuedAt: date(given.enqueued_at)!,
    runAt: date(given.run_at),
    claimedAt: date(given.claimed_at),
    finishedAt: date(given.finished_at),
    cancelRequested: given.cancel_requested === true,
    output: (given.output ?? null) as string | null,
    error: (given.error ?? null) as string | null,
    errors: (given.errors ?? []) as unknown[],
    percent: (given.percent ?? null) as number | null,
    message: (given.message ?? null) as string | null,
    log: (given.log ?? []) as unknown[],
  };
}
