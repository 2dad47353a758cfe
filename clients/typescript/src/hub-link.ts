import { later, now } from "./clock.js";
import { WeirError } from "./errors.js";
import { type Hub, lasting } from "./hub.js";
import { type Cancel, type End, Fatal, type Feed, type Given, type Link, type Refusal, type Report } from "./protocol.js";
import { Backoff, sleep } from "./time.js";

/** How many jobs a worker may have at once, at a hub. */
export const MOST = 1000;

/** A job as hubs write it. */
export interface HubJob {
  token: string;
  id: number | string;
  queue: string;
  priority: number;
  kind: string;
  args: unknown;
  meta: Record<string, unknown> | null;
  key: string | null;
  flow: number | string | null;
  attempt: number;
  max_attempts: number;
  enqueued_at: string;
  checkpoint?: unknown;
}

/** What both ways to work at a hub have in common. */
export abstract class AtHub {
  readonly most = MOST;
  readonly givesBack = false;
  protected readonly hub: Hub;
  protected worker: string | undefined;
  #calls = 0;

  constructor(hub: Hub) {
    this.hub = hub;
  }

  patience(): number {
    return 0.9;
  }

  /** What a call says of the worker. Its number tells the hub which of two calls is the later one: one that was ended here may reach it after the next. */
  protected opening(feed: Feed, queues: Iterable<[string, number]>): object {
    return { worker: this.worker, name: feed.name, queues: Object.fromEntries(queues), kinds: feed.kinds, held: feed.held(), call: ++this.#calls };
  }

  async checkpoint({ checkpoint }: Given): Promise<unknown> {
    return checkpoint ?? undefined;
  }

  async stop(): Promise<void> {
    if (this.worker !== undefined) await this.hub.call("DELETE", `/v1/work/${encodeURIComponent(this.worker)}`, undefined, { patience: 10 });
  }

  /** Returns an error as one that ends the worker, if repeating does not help. */
  protected judged(error: unknown): unknown {
    const refused = error instanceof WeirError && error.code === "unauthorized" && !this.hub.renewable;
    return refused || lasting(error) ? new Fatal(error) : error;
  }
}

/** The way to the jobs by long polling: docs/work-http.md. */
export class HubLink extends AtHub implements Link {
  async feed(feed: Feed): Promise<void> {
    const backoff = new Backoff();
    while (!feed.over) {
      let room = feed.room();
      if ((none(room) || feed.stopping) && !feed.unsure) {
        // Most handlers end soon, and then there is something to ask for.
        await feed.changed(1);
        room = feed.room();
      }
      if (feed.over) return;
      const call = new AbortController();
      const sentAt = now();
      const urgent = feed.unsure;
      try {
        const holds = feed.held().length;
        const asked = within(room, MOST - holds);
        const wait = this.worker === undefined || urgent ? 0 : 20; // at first, to be known at once
        const answer = this.hub.call("POST", "/v1/work/take", JSON.stringify({ ...this.opening(feed, asked), wait }), { signal: call.signal, patience: 40 });
        const { worker, lease, waited, jobs = [], cancel, quiet, warnings } = (await this.#unlessThereIsMore(feed, asked, urgent, answer, call)) as {
          worker: string;
          lease: number;
          waited?: number;
          jobs?: HubJob[];
          cancel?: Cancel[];
          quiet?: boolean;
          warnings?: string[];
        };
        this.worker = worker;
        warn(feed, warnings);
        backoff.reset();
        // A call that has nothing to renew waits for longer than a lease may be; and when its answer is read says nothing, if this process or the network stood still.
        const from = holds > 0 ? sentAt : jobs.length > 0 && waited !== undefined ? later(sentAt, waited) : now();
        feed.renewed(from, lease);
        feed.give(jobs.map(given)); // what it declines, and is still this worker's, is in the next answer
        feed.interrupt(cancel ?? []);
        if (quiet) await sleep(backoff.next());
      } catch (error) {
        if (call.signal.aborted) continue; // what the hub has given in the meantime is in its next answer
        const judged = this.judged(error);
        if (judged instanceof Fatal) throw judged;
        feed.failed(error);
        await sleep(backoff.next());
      }
    }
  }

  /** Waits for the answer, but ends the call if there is room in a queue for which nothing was asked, the worker stops, or the lease may have ended since. */
  async #unlessThereIsMore<T>(feed: Feed, asked: ReadonlyMap<string, number>, urgent: boolean, answer: Promise<T>, call: AbortController): Promise<T> {
    const stopping = feed.stopping;
    feed.watch = () => {
      const more = [...feed.room()].some(([queue, n]) => n > 0 && !asked.get(queue));
      if (feed.over || more || feed.stopping !== stopping || (feed.unsure && !urgent)) call.abort();
    };
    try {
      return await answer;
    } finally {
      feed.watch = undefined;
    }
  }

  async record(ends: readonly End[]): Promise<Refusal[]> {
    return this.#say("/v1/work/record", { ends });
  }

  async report(entries: readonly Report[]): Promise<Refusal[]> {
    return this.#say("/v1/work/progress", { entries });
  }

  async #say(path: string, what: object): Promise<Refusal[]> {
    try {
      return refusals((await this.hub.call("POST", path, JSON.stringify(what))) as Results);
    } catch (error) {
      throw this.judged(error);
    }
  }

  lapse(): void {}
}

/** Passes on what may be wrong with what the worker has asked for. */
export function warn(feed: Feed, warnings: readonly string[] = []): void {
  for (const text of warnings) feed.failed(new Error(`weir: ${text}`));
}

export interface Results {
  results: { token: string; recorded?: boolean; stored?: boolean; refusal?: string; detail?: string }[];
}

export function refusals({ results }: Results): Refusal[] {
  return results.filter(({ refusal }) => refusal !== undefined) as Refusal[];
}

function none(room: ReadonlyMap<string, number>): boolean {
  return [...room.values()].every((n) => n === 0);
}

/** Asks for no more jobs than a worker may have. */
export function within(room: ReadonlyMap<string, number>, most: number): Map<string, number> {
  const asked = new Map<string, number>();
  for (const [queue, n] of room) {
    const some = Math.max(0, Math.min(n, most));
    asked.set(queue, some);
    most -= some;
  }
  return asked;
}

export function given(job: HubJob): Given {
  const { token, args, checkpoint } = job;
  return {
    token,
    args,
    checkpoint,
    job: {
      id: String(job.id),
      queue: job.queue,
      priority: job.priority,
      kind: job.kind,
      meta: job.meta ?? null,
      key: job.key ?? null,
      flow: job.flow == null ? null : String(job.flow),
      attempt: job.attempt,
      maxAttempts: job.max_attempts,
      enqueuedAt: new Date(job.enqueued_at),
    },
  };
}
