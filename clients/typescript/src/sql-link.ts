import { now } from "./clock.js";
import { isState, refusal } from "./enqueue.js";
import { WeirError } from "./errors.js";
import { arrayText, type Row } from "./executor.js";
import type { Dial, Line } from "./lines.js";
import { type End, Fatal, type Feed, type Given, type Link, type Refusal, type Report } from "./protocol.js";
import { Backoff, sleep } from "./time.js";

// Of all kinds, those without a handler too: otherwise the database would release these, and nobody would hear of it.
const TAKE = `SELECT event, token, id::text, queue, priority::text, kind, args::text, meta::text, attempt::text, max_attempts::text AS most,
       extract(epoch FROM enqueued_at)::text AS at, key, flow::text
FROM weir.take($1::text::integer, queues => $2::text::text[], limits => $3::text::integer[], held => $4::text::text[],
       lost => $5::text::boolean, wait => make_interval(secs => $6::text::double precision))`;

/** How many seconds to wait for an answer. The functions wait for locks for up to 10. */
const PATIENCE = 15;
const PATIENCE_START = 600; // which may rebase the log
const PATIENCE_CHORES = 30; // each commits on its own, and goes on where it was

/** The way to the jobs over SQL: docs/sql.md, "Work". */
export class SqlLink implements Link {
  readonly most = 5000;
  readonly givesBack = true;
  readonly #dial: Dial;
  readonly #lines = new Map<string, Line>();
  #worker: number | undefined;
  #lapsed = false;
  #feed: Feed | undefined;
  #attends = false;
  #beatAt = 0;
  #chores: Promise<void> | undefined;
  #done = false;

  constructor(dial: Dial) {
    this.#dial = dial;
  }

  /** A session that stands for the worker is kept for a lease after each call; for others a call may leave no more than two thirds of it. */
  patience(): number {
    return this.#attends ? 0.9 : 2 / 3;
  }

  async feed(feed: Feed): Promise<void> {
    this.#feed = feed;
    try {
      await this.#take(feed);
    } finally {
      this.#done = true;
      feed.wake();
      await this.#chores;
    }
  }

  /** Takes jobs. There is one call at a time, and none is given up before it has ended, because of what docs/sql.md says of `held`. */
  async #take(feed: Feed): Promise<void> {
    const lease = feed.wanted ?? 30;
    const backoff = new Backoff();
    let lost = false;
    while (!feed.over) {
      try {
        if (this.#lapsed) await this.#startOver(feed);
        if (this.#worker === undefined) {
          if (feed.stopping) return;
          this.#worker = Number((await this.#ask("take", "SELECT weir.start($1::text, $2::text::text[], make_interval(secs => $3::text::double precision))::text AS worker", [feed.name, arrayText(feed.queues.keys()), String(lease)], PATIENCE_START))[0]!.worker);
          lost = false;
          if (feed.chores) this.#chores ??= this.#doChores(feed); // not before, so that of what keeps the worker from starting nobody hears twice
        }
        const room = await this.#room(feed, lost, lease);
        const sentAt = now();
        await this.#attend(lease);
        const full = [...room.values()].includes(0);
        const wait = feed.stopping || !some(room) ? 0 : Math.min(full ? 0.1 : 1, lease / 6);
        const rows = await this.#ask("take", TAKE, [String(this.#worker), arrayText(room.keys()), arrayText(room.values()), arrayText(feed.held()), String(lost), String(wait)]);
        backoff.reset();
        feed.renewed(sentAt, lease);
        lost = feed.give(rows.filter(({ event }) => event === "job").map(given));
        feed.interrupt(rows.filter(({ event }) => event === "cancel").map(({ token }) => ({ token: token!, reason: "cancelled" })));
      } catch (error) {
        lost = true;
        if (error instanceof WeirError && error.code === "55000") continue; // the call was held up on its way
        if (error instanceof WeirError && (error.code === "WR001" || error.code === "WR003")) {
          this.#worker = undefined;
          this.#lapsed = false;
          this.#hangUp("take"); // this session stands for the worker that was
          feed.fenced();
        } else if (permanent(error)) {
          throw new Fatal(error);
        }
        feed.failed(error);
        await sleep(backoff.next());
      }
    }
  }

  /** Waits until there is something to ask for: room for jobs, or time to hear of cancellations and to renew the lease. */
  async #room(feed: Feed, lost: boolean, lease: number): Promise<Map<string, number>> {
    const end = performance.now() + Math.min(500, lease * 100);
    for (let room = feed.room(); ; room = feed.room()) {
      if (lost || feed.over || feed.unsure || performance.now() >= end || enough(room, feed)) return room;
      // Room that comes bit by bit is taken together, because each call costs the database a batch.
      await feed.changed(Math.min(some(room) ? 0.01 : Infinity, (end - performance.now()) / 1000));
      if (some(room) && !enough(feed.room(), feed)) return feed.room();
    }
  }

  /**
   * Says that this session stands for the worker, where nothing is between the two: then others get the jobs of a killed process within
   * seconds, and not after its lease. The heartbeat finds out if the session has lost its lock.
   */
  async #attend(lease: number): Promise<void> {
    const line = await this.#line("take");
    if (line.end === undefined || performance.now() < this.#beatAt) return;
    if (this.#beatAt === 0) {
      const { pid, address, port } = line.end;
      const answer = await this.#ask("take", "SELECT weir.attend($1::text::integer, $2::text::integer, $3::text::inet, $4::text::integer)::text AS attends", [String(this.#worker), String(pid), address, String(port)]);
      this.#attends = answer[0]!.attends === "true";
      if (this.#attends) this.#feed?.shorten(undefined);
    } else if (this.#attends) {
      await this.#ask("take", "SELECT fenced::text FROM weir.heartbeat($1::text::integer)", [String(this.#worker)]);
    }
    this.#beatAt = this.#attends ? performance.now() + (lease / 4) * 1000 : Infinity;
  }

  /** After a silence only a new worker is safe, because an old call may still be on its way. What has ended is recorded for the old one. */
  async #startOver(feed: Feed): Promise<void> {
    await feed.recorded(5);
    if (this.#worker !== undefined) await this.#stop("take", 5);
    this.#worker = undefined;
    this.#lapsed = false;
    feed.fenced();
  }

  async #doChores(feed: Feed): Promise<void> {
    const backoff = new Backoff(1, 30);
    while (!this.#done) {
      let pause = 0.4 + 0.2 * Math.random(); // about twice a second
      try {
        await this.#ask("chores", "CALL weir.chores()", [], PATIENCE_CHORES);
        backoff.reset();
      } catch (error) {
        if (this.#done) return;
        feed.failed(error);
        pause = backoff.next();
      }
      for (const end = performance.now() + pause * 1000; !this.#done && performance.now() < end; ) await feed.changed((end - performance.now()) / 1000);
    }
  }

  async record(ends: readonly End[]): Promise<Refusal[]> {
    return this.#say("SELECT token, refusal, detail FROM weir.record($1::text::integer, $2::text)", ends);
  }

  async report(reports: readonly Report[]): Promise<Refusal[]> {
    return this.#say("SELECT token, refusal, detail FROM weir.progress($1::text::integer, $2::text)", reports);
  }

  async #say(text: string, what: readonly { token: string }[]): Promise<Refusal[]> {
    if (this.#worker === undefined) return what.map(({ token }) => ({ token, refusal: "lost" }));
    try {
      return (await this.#ask("record", text, [String(this.#worker), JSON.stringify(what)])) as unknown as Refusal[];
    } catch (error) {
      if (error instanceof WeirError && error.code === "WR001") return what.map(({ token }) => ({ token, refusal: "lost" }));
      throw permanent(error) ? new Fatal(error) : error;
    }
  }

  async checkpoint({ job }: Given): Promise<unknown> {
    const [row] = await this.#ask("record", "SELECT weir.checkpoint($1::text::bigint)::text AS checkpoint", [job.id]);
    return row?.checkpoint == null ? undefined : JSON.parse(row.checkpoint);
  }

  completion(token: string, output: string | undefined): [string, string[]] {
    const values = [String(this.#worker), token];
    if (output !== undefined) values.push(output.replaceAll("\0", "\uFFFD"));
    return [`SELECT 'true' AS completed FROM weir.complete($1::text::integer, $2::text${output === undefined ? "" : ", $3::text"})`, values];
  }

  checkpointing(token: string, checkpoint: string): [string, string[]] {
    return ["SELECT 'true' AS set FROM weir.set_checkpoint($1::text::integer, $2::text, $3::text::jsonb)", [String(this.#worker), token, checkpoint]];
  }

  lapse(): void {
    this.#lapsed = true;
    for (const name of this.#lines.keys()) this.#hangUp(name);
  }

  async stop(): Promise<void> {
    try {
      if (this.#worker !== undefined) await this.#stop("take", 10);
    } finally {
      for (const line of this.#lines.values()) line.close(false);
      this.#lines.clear();
    }
  }

  async #stop(name: string, seconds: number): Promise<void> {
    for (const end = performance.now() + seconds * 1000; performance.now() < end; await sleep(0.05)) {
      try {
        if ((await this.#ask(name, "SELECT weir.stop($1::text::integer)::text AS stopped", [String(this.#worker)]))[0]!.stopped === "true") return;
      } catch (error) {
        if (error instanceof WeirError && error.code === "WR001") return;
        if (permanent(error) || performance.now() + 1000 > end) throw error;
      }
    }
  }

  async #line(name: string): Promise<Line> {
    let line = this.#lines.get(name);
    if (line === undefined) {
      line = await this.#dial().catch((error: unknown) => {
        if (name === "take" && down(error)) this.#feed?.shorten(undefined);
        throw error;
      });
      this.#lines.set(name, line);
      if (name === "take") {
        this.#beatAt = 0;
        this.#attends = false;
      }
    }
    return line;
  }

  /** Gives a session up. If it stood for the worker, others get the jobs soon, unless another one does. */
  #hangUp(name: string): void {
    const line = this.#lines.get(name);
    line?.close(true);
    this.#lines.delete(name);
    if (name !== "take" || !this.#attends) return;
    this.#attends = false;
    if (this.#worker !== undefined && !this.#lapsed) this.#feed?.shorten(line?.endedAt ?? now());
  }

  /** Runs a statement in a session, which is given up unless the database answers in time. */
  async #ask(name: string, text: string, values: string[], seconds = PATIENCE): Promise<Row[]> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        if (text === TAKE) this.#lapsed = true;
        reject(new Error(`weir: the database did not answer within ${seconds} seconds`));
      }, seconds * 1000);
    });
    try {
      const line = await Promise.race([this.#line(name), late]);
      return await Promise.race([line.run(text, values), late]);
    } catch (error) {
      const told = refusal(error);
      if (!(told instanceof WeirError) || /^(08|57P|unavailable)/.test(told.code)) this.#hangUp(name);
      throw told;
    } finally {
      clearTimeout(timer);
    }
  }
}

function some(room: ReadonlyMap<string, number>): boolean {
  for (const n of room.values()) if (n > 0) return true;
  return false;
}

/** Reports whether a queue has so much room that it is worth a call. */
function enough(room: ReadonlyMap<string, number>, feed: Feed): boolean {
  for (const [queue, n] of room) if (n > 0 && n >= feed.queues.get(queue)! / 4) return true;
  return false;
}

/** Reports whether the server has no use for connections: none listens, or it starts, stops or is full. Then nobody is fenced for the want of one. */
function down(error: unknown): boolean {
  const code = (error as { code?: unknown } | undefined)?.code;
  return typeof code === "string" && (code === "ECONNREFUSED" || /^(57P|53)/.test(code));
}

/** Reports whether an error will not go away: a privilege, the schema or the configuration is missing. */
function permanent(error: unknown): boolean {
  const code = (error as { code?: unknown } | undefined)?.code;
  return typeof code === "string" && isState(code) && /^(22|28|3D|3F|42|WR004)/.test(code);
}

function given(row: Row): Given {
  return {
    token: row.token!,
    args: JSON.parse(row.args!),
    job: {
      id: row.id!,
      queue: row.queue!,
      priority: Number(row.priority),
      kind: row.kind!,
      meta: row.meta == null ? null : (JSON.parse(row.meta) as Record<string, unknown>),
      key: row.key ?? null,
      flow: row.flow ?? null,
      attempt: Number(row.attempt),
      maxAttempts: Number(row.most),
      enqueuedAt: new Date(Number(row.at) * 1000),
    },
  };
}
