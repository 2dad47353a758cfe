import { Attempt, type Context, type Reports } from "./attempt.js";
import { atLeast, atMost, type Moment, now } from "./clock.js";
import { Interrupted } from "./errors.js";
import { type Cancel, type End, Fatal, type Feed, type Given, type Link, type Refusal, type Report } from "./protocol.js";
import { Backoff, Bell, HASTE, sleep } from "./time.js";

/** A handler with all that is known of its kind. */
export interface Runnable {
  timeout: number;
  run(args: unknown, context: Context): unknown;
}

export interface WorkerConfig {
  name: string;
  queues: ReadonlyMap<string, number>;
  handlers: ReadonlyMap<string, Runnable>;
  signal: AbortSignal | undefined;
  lease: number | undefined;
  stopTimeout: number;
  chores: boolean;
  onStart(): void;
  onError(error: unknown): void;
}

/** How long a handler that was interrupted has to end, in seconds. Then its attempt ends without it. */
const GRACE = 5;
/** How long to wait for an answer that shows that the lease is not over, in seconds. */
const DOUBT = 3;
/** How many ends may wait to be recorded before no more jobs are taken. */
const MAX_UNRECORDED = 5000;
/** Of how many kinds without a handler the program hears: anyone who enqueues can invent kinds. */
const MAX_KINDS = 1000;
/** How much one call that records may contain, in characters of errors and outputs: a hub takes 8 MiB, and JSON writes some characters as six. */
const MAX_RECORD = 1_200_000;
/** After how many characters of JSON one call that reports contains no further report: each may have 4 MB, and a character 3 bytes. */
const MAX_REPORT = 1_200_000;

/**
 * Runs jobs that a link gives it, and records how they ended. Three loops run at once: the link's, which gives jobs and renews the lease;
 * one that records ends; one that stores reports. Handlers run beside them.
 */
export class Worker implements Feed, Reports {
  readonly #config: WorkerConfig;
  readonly #link: Link;
  readonly #attempts = new Map<string, Attempt>(); // given, and not yet recorded
  readonly #busy = new Map<string, number>(); // handlers that run, by queue
  #running = 0;
  readonly #unknown = new Set<string>(); // kinds that have no handler, and of which the program has heard
  #ends: End[] = []; // to be recorded
  #later = 0; // ends that wait for a transaction of their handler's
  #recording = 0;
  readonly #changed = new Bell(); // a handler has ended, or the worker stops
  readonly #ended = new Bell(); // there are ends to record
  readonly #recorded = new Bell();
  #lapse: ReturnType<typeof setTimeout> | undefined;
  #lease: { sentAt: Moment; seconds: number } | undefined; // when it was renewed last
  #endedAt: Moment | undefined; // when what stood for the worker ended, so that others may get the attempts soon
  #doubtedAt: Moment | undefined; // since when the lease may be over
  #reporting: Promise<void> = Promise.resolve();
  #started = false;
  watch: (() => void) | undefined;
  stopping = false;
  over = false;

  constructor(config: WorkerConfig, link: Link) {
    this.#config = config;
    this.#link = link;
  }

  get name() {
    return this.#config.name;
  }

  get wanted() {
    return this.#config.lease;
  }

  get chores() {
    return this.#config.chores;
  }

  get kinds() {
    return [...this.#config.handlers.keys()];
  }

  get queues() {
    return this.#config.queues;
  }

  /** Works until the signal aborts and everything has stopped. Rejects if there is no point in going on. */
  async run(): Promise<void> {
    const { signal } = this.#config;
    const stop = () => this.#stop();
    if (signal?.aborted) return;
    signal?.addEventListener("abort", stop);
    let error: unknown;
    const fail = (cause: unknown) => {
      error ??= cause;
      this.#stop();
    };
    const feeding = this.#link.feed(this).catch(fail);
    const recording = this.#record().catch(fail);
    const reporting = this.#reportAgainAndAgain();
    try {
      while (!this.stopping) await this.#changed.wait();
      await this.#drain(error === undefined ? this.#config.stopTimeout : 0);
    } finally {
      this.over = true;
      this.wake();
      this.#ended.ring();
      await Promise.all([feeding, recording, reporting]);
      clearTimeout(this.#lapse);
      this.#giveUp("stopping", "the worker has stopped");
      signal?.removeEventListener("abort", stop);
    }
    await this.#link.stop().catch((cause: unknown) => error ?? this.failed(cause));
    if (error !== undefined) throw error instanceof Fatal ? error.cause : error;
  }

  #stop(): void {
    this.stopping = true;
    this.wake();
  }

  /** Lets handlers end, interrupts those that don't, and records what has ended. */
  async #drain(patience: number): Promise<void> {
    const idle = async (seconds: number) => {
      for (const end = performance.now() + seconds * 1000; this.#running > 0 && performance.now() < end; ) await this.#changed.wait((end - performance.now()) / 1000);
    };
    await idle(patience);
    for (const attempt of this.#attempts.values()) {
      if (!attempt.over) this.#interrupt(attempt, new Interrupted("stopping", "the worker is stopping"));
    }
    await idle(GRACE);
    await this.recorded(patience > 0 ? 10 : 1);
  }

  // What the link needs.

  room(): Map<string, number> {
    const full = this.stopping || this.#ends.length > MAX_UNRECORDED;
    const room = new Map<string, number>();
    for (const [queue, most] of this.#config.queues) room.set(queue, full ? 0 : Math.max(0, most - (this.#busy.get(queue) ?? 0)));
    return room;
  }

  held(): string[] {
    return [...this.#attempts.keys()];
  }

  changed(seconds: number): Promise<void> {
    return this.over ? Promise.resolve() : this.#changed.wait(seconds);
  }

  wake(): void {
    this.#changed.ring();
    this.watch?.();
  }

  give(given: readonly Given[]): boolean {
    this.#watch(); // before the timer notices: this process, or its machine, may have stood still
    if (this.#lease === undefined || this.unsure) return given.length > 0;
    let declined = false;
    for (const one of given) {
      if (this.#attempts.has(one.token)) continue; // in an answer that was thought lost
      if (this.stopping && this.#link.givesBack) {
        declined = true;
        continue;
      }
      const handler = this.#config.handlers.get(one.job.kind);
      const attempt = new Attempt(one, handler?.timeout ?? 0, this.#link, this);
      this.#attempts.set(one.token, attempt);
      if (this.stopping) {
        attempt.over = true; // it is released when the worker has stopped
      } else if (handler) {
        this.#start(attempt, handler);
      } else {
        attempt.over = true;
        this.#warn(one.job.kind);
        this.#ends.push({ token: one.token, outcome: "released", error: `no handler for kind ${one.job.kind}` });
        this.#ended.ring();
      }
    }
    return declined;
  }

  #warn(kind: string): void {
    if (this.#unknown.has(kind) || this.#unknown.size >= MAX_KINDS) return;
    this.#unknown.add(kind);
    this.failed(new Error(`weir: this worker has no handler for ${kind}: its jobs are released, for workers that have one`));
  }

  interrupt(cancels: readonly Cancel[]): void {
    for (const { token, reason } of cancels) {
      const attempt = this.#attempts.get(token);
      if (attempt === undefined) continue;
      if (reason === "lost") this.#lose(attempt, "another worker has the job, or will get it");
      else if (!attempt.over && attempt.interruption === undefined) this.#interrupt(attempt, new Interrupted("cancelled", "the job was cancelled"));
    }
  }

  renewed(sentAt: Moment, lease: number): void {
    if (this.over) return;
    if (!this.#started) {
      this.#started = true;
      this.#config.onStart();
    }
    this.#lease = { sentAt, seconds: lease };
    if (this.#endedAt !== undefined && sentAt.steady > this.#endedAt.steady) this.#endedAt = sentAt;
    this.#watch();
  }

  shorten(endedAt: Moment | undefined): void {
    this.#endedAt = endedAt;
    if (!this.over) this.#watch();
  }

  get unsure() {
    return this.#doubtedAt !== undefined;
  }

  /** For how many seconds others can't get the attempts yet, as a clock says. */
  #left(since: (moment: Moment) => number): number {
    if (this.#lease === undefined) return 0;
    const left = this.#lease.seconds * this.#link.patience() - since(this.#lease.sentAt);
    return this.#endedAt === undefined ? left : Math.min(left, HASTE - since(this.#endedAt));
  }

  /** Looks whether the lease is over, or may be; and again later, in steps, because timers don't run while a machine is suspended. */
  #watch(): void {
    clearTimeout(this.#lapse);
    if (this.#lease === undefined || this.over) return;
    const doubted = this.unsure;
    this.#doubtedAt = this.#left(atMost) > 0 ? undefined : (this.#doubtedAt ?? now());
    const left = Math.min(this.#left(atLeast), this.#doubtedAt === undefined ? Infinity : DOUBT - atLeast(this.#doubtedAt));
    if (left <= 0) return this.#expire();
    this.#lapse = setTimeout(() => this.#watch(), Math.min(left, 1) * 1000);
    if (this.unsure && !doubted) this.wake();
  }

  #expire(): void {
    clearTimeout(this.#lapse);
    this.#lease = this.#endedAt = this.#doubtedAt = undefined;
    for (const attempt of this.#attempts.values()) {
      if (!attempt.over) this.#lose(attempt, "the worker has heard nothing for so long that another one may have the job");
    }
    this.#link.lapse();
  }

  fenced(): void {
    clearTimeout(this.#lapse);
    this.#lease = this.#endedAt = this.#doubtedAt = undefined;
    for (const attempt of this.#attempts.values()) this.#lose(attempt, "the worker was silent for too long, so others get its jobs");
    this.#ends = [];
    this.#recorded.ring();
  }

  async recorded(seconds: number): Promise<void> {
    for (const end = performance.now() + seconds * 1000; (this.#ends.length > 0 || this.#later > 0 || this.#recording > 0) && performance.now() < end; ) await this.#recorded.wait((end - performance.now()) / 1000);
  }

  failed(error: unknown): void {
    try {
      this.#config.onError(error);
    } catch {
      // a bug in there must not end the worker
    }
  }

  // Handlers.

  #start(attempt: Attempt, handler: Runnable): void {
    const { queue } = attempt.given.job;
    this.#busy.set(queue, (this.#busy.get(queue) ?? 0) + 1);
    this.#running++;
    if (attempt.timeout > 0) {
      attempt.timer = setTimeout(() => this.#interrupt(attempt, new Interrupted("timeout", `timeout: the attempt took longer than ${attempt.timeout} seconds`)), Math.min(attempt.timeout * 1000, 2 ** 31 - 1));
    }
    void this.#handle(attempt, handler);
  }

  async #handle(attempt: Attempt, handler: Runnable): Promise<void> {
    let end: End | undefined;
    try {
      end = attempt.returned(await handler.run(attempt.given.args, attempt.context()));
    } catch (error) {
      end = attempt.threw(error);
    }
    this.#finish(attempt, end);
  }

  /** Notes the end of a handler; without an end, others get the job. */
  #finish(attempt: Attempt, end: End | undefined): void {
    if (attempt.over) return;
    attempt.over = true;
    clearTimeout(attempt.timer);
    const { queue } = attempt.given.job;
    this.#busy.set(queue, (this.#busy.get(queue) ?? 0) - 1);
    this.#running--;
    if (end !== undefined && this.#attempts.get(attempt.token) === attempt) {
      this.#ends.push(end);
      this.#ended.ring();
    }
    this.wake();
  }

  /** Tells a handler to end, and waits for it for a while. */
  #interrupt(attempt: Attempt, why: Interrupted): void {
    if (attempt.over || attempt.interruption !== undefined) return;
    attempt.interrupt(why);
    clearTimeout(attempt.timer);
    attempt.timer = setTimeout(() => {
      const { kind, id } = attempt.given.job;
      this.failed(new Error(`weir: the handler of ${kind} still runs ${GRACE} seconds after its signal aborted (job ${id}: ${why.message})`));
      this.#finish(attempt, attempt.threw(why));
    }, GRACE * 1000);
  }

  /** Forgets an attempt that others have, or may have. Its handler keeps its place until it has ended. */
  #lose(attempt: Attempt, message: string): void {
    this.#attempts.delete(attempt.token);
    if (attempt.interruption === undefined) this.#interrupt(attempt, new Interrupted("lost", message));
    else attempt.interruption = new Interrupted("lost", message);
  }

  #giveUp(why: Interrupted["why"], message: string): void {
    for (const attempt of this.#attempts.values()) {
      if (!attempt.over) attempt.interrupt(new Interrupted(why, message));
      attempt.over = true;
      clearTimeout(attempt.timer);
    }
  }

  // Ends and reports.

  async #record(): Promise<void> {
    const backoff = new Backoff();
    while (!(this.over && this.#ends.length === 0)) {
      if (this.#ends.length === 0) {
        await this.#ended.wait();
        await new Promise((resolve) => setTimeout(resolve)); // so that jobs that end together are recorded together
        continue;
      }
      const batch = this.#batch();
      this.#recording = batch.length;
      try {
        await this.#storeReports(batch.map(({ token }) => this.#attempts.get(token)).filter((attempt) => attempt !== undefined));
        this.#settle(batch, await this.#link.record(batch));
        backoff.reset();
      } catch (error) {
        if (error instanceof Fatal) throw error;
        this.#ends = batch.filter(({ token }) => this.#attempts.has(token)).concat(this.#ends); // not if it was fenced in the meantime
        this.failed(error);
        if (this.over) return; // what is left is released
        await sleep(backoff.next());
      } finally {
        this.#recording = 0;
        this.#recorded.ring();
      }
    }
  }

  /** Takes as many ends as fit into one call. */
  #batch(): End[] {
    let size = 0;
    let n = 0;
    for (const { error, output } of this.#ends) {
      size += (error?.length ?? 0) + (output?.length ?? 0);
      if (n > 0 && (n >= this.#link.most || size > MAX_RECORD)) break;
      n++;
    }
    return this.#ends.splice(0, n);
  }

  #settle(batch: readonly End[], refusals: readonly Refusal[]): void {
    const refused = new Map(refusals.map((one) => [one.token, one]));
    for (const end of batch) {
      const refusal = refused.get(end.token);
      if (refusal?.refusal === "busy" || refusal?.refusal === "unavailable") {
        this.#repeatLater(end);
      } else if (refusal?.refusal === "invalid" && !bare(end)) {
        this.failed(new Error(`weir: the end of an attempt was refused, so it has failed: ${refusal.detail}`));
        this.#ends.push({ token: end.token, outcome: "failed", error: `its end was refused: ${refusal.detail}${end.error === undefined ? "" : `\n${end.error}`}` });
      } else {
        if (refusal?.refusal === "invalid") this.failed(new Error(`weir: the end of an attempt was refused: ${refusal.detail}`));
        this.#attempts.delete(end.token); // recorded; or ended before, or lost, which leaves nothing to do
      }
    }
    this.wake();
  }

  /** A transaction in which the job was completed is still open, or a hub can't reach its database. */
  #repeatLater(end: End): void {
    this.#later++;
    void sleep(0.1).then(() => {
      this.#later--;
      if (this.#attempts.has(end.token)) this.#ends.push(end);
      this.#ended.ring();
    });
  }

  async #reportAgainAndAgain(): Promise<void> {
    for (let last = performance.now(); !this.over; last = performance.now()) {
      while (!this.over && performance.now() < last + 1000) await this.changed(1);
      await this.stored().catch((error: unknown) => this.failed(error));
    }
  }

  /** Stores what all attempts have reported. */
  stored(): Promise<void> {
    return this.#storeReports([...this.#attempts.values()].filter((attempt) => !attempt.over));
  }

  /** One call after the other, so that what is older is never stored later. */
  #storeReports(attempts: readonly Attempt[]): Promise<void> {
    const stored = this.#reporting.then(async () => {
      for (;;) {
        const taken: [Attempt, Report][] = [];
        let size = 0;
        for (const attempt of attempts) {
          if (taken.length === 500 || size > MAX_REPORT) break;
          const report = attempt.takeReport();
          if (report === undefined) continue;
          taken.push([attempt, report]);
          size += JSON.stringify(report).length;
        }
        if (taken.length === 0) return;
        try {
          for (const { refusal, detail } of await this.#link.report(taken.map(([, report]) => report))) {
            if (refusal === "unavailable") throw new Error(`weir: what jobs have reported is not stored yet: ${detail}`);
            if (refusal === "invalid") this.failed(new Error(`weir: what a job has reported was refused: ${detail}`));
          }
        } catch (error) {
          for (const [attempt, report] of taken) attempt.putBack(report);
          throw error;
        }
      }
    });
    this.#reporting = stored.catch(() => {});
    return stored;
  }
}

/** Reports whether an end says no more than that an attempt has failed. */
function bare({ outcome, final, delay }: End): boolean {
  return outcome === "failed" && final === undefined && delay === undefined;
}
