// What a worker takes for its own. The sockets, and the hub for long polling, are the test's own, and do nothing but what it says.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, test } from "node:test";
import { text } from "node:stream/consumers";
import { type Context, payload, Weir } from "@weir-pg/client";
import { pool as makePool } from "./server.js";

const jobs = { job: payload<object>() };
const now = Date.now;
let skipped = 0; // by the clock on the wall alone: this process did not run, or somebody has set it
beforeEach(() => {
  skipped = 0;
  Date.now = () => now() + skipped;
});
afterEach(() => {
  Date.now = now;
});

const hour = 3_600_000;
/** A handler that ends when it is interrupted. */
const lasting = (heard: (why: unknown) => void) => ({ signal }: Context) => new Promise<void>((_, reject) => {
    const interrupted = () => (heard(signal.reason.why), reject(signal.reason));
    if (signal.aborted) interrupted();
    else signal.addEventListener("abort", interrupted);
  });
const job = (id: number) => ({ token: `T${id}`, id, queue: "mail", priority: 2, kind: "job", args: {}, meta: null, key: null, flow: null, attempt: 1, max_attempts: 1, enqueued_at: "2026-11-26T03:00:00Z" });

/** Things that occur, and that the test waits for, in their order. */
class Events<T> {
  readonly #waiting: ((event: T) => void)[] = [];
  readonly #there: T[] = [];

  add(event: T): void {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(event);
    else this.#there.push(event);
  }

  next(): Promise<T> {
    return this.#there.length > 0 ? Promise.resolve(this.#there.shift()!) : new Promise((resolve) => this.#waiting.push(resolve));
  }
}

type Occurred = { opens: Socket; held: string[] } | { closes: Socket } | { begins: string } | { interrupted: unknown } | { slots: unknown } | { pings: () => void };

class Socket {
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  onerror: ((event: object) => void) | null = null;
  static occurred: Events<Occurred>;

  constructor() {
    setImmediate(() => this.onopen?.());
  }

  send(text: string): void {
    const { type, id, held, ends, queues } = JSON.parse(text) as { type: string; id: number; held: string[]; ends: { token: string }[]; queues: object };
    if (type === "slots") Socket.occurred.add({ slots: queues });
    if (type === "open") Socket.occurred.add({ opens: this, held });
    if (type === "record") setImmediate(() => this.says({ type: "recorded", id, results: ends.map(({ token }) => ({ token, recorded: true })) }));
    if (type === "ping") Socket.occurred.add({ pings: () => this.says({ type: "pong", id }) });
    if (type === "stop") setImmediate(() => this.says({ type: "stopped", id }));
  }

  /** The other end does not agree: it can't be reached, and what it has sent is still on its way. */
  close(): void {
    Socket.occurred.add({ closes: this });
  }

  says(frame: object): void {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }

  gives(id: number): void {
    this.says({ type: "jobs", jobs: [job(id)] });
  }
}

async function working(handler: (context: Context) => unknown, test: (opened: (lease: number, held?: string[], before?: () => void) => Promise<Socket>, occurs: () => Promise<Occurred>, stop: () => void) => Promise<void>, stopTimeout = 0): Promise<void> {
  const occurred = (Socket.occurred = new Events<Occurred>());
  const stop = new AbortController();
  const done = new Weir({ hub: "http://127.0.0.1:9", WebSocket: Socket as never, jobs }).work({
    queues: { mail: 2 },
    handlers: {
      job(_, context) {
        occurred.add({ begins: context.job.id });
        return handler(context);
      },
    },
    signal: stop.signal,
    stopTimeout,
    onError: () => {},
  });
  const opened = async (lease: number, held: string[] = [], before = () => {}) => {
    let event = await occurred.next();
    while ("closes" in event || "pings" in event) event = await occurred.next(); // of another one
    assert.ok("opens" in event, `a session is to be opened, but ${JSON.stringify(event)}`);
    assert.deepEqual(event.held, held);
    before();
    event.opens.says({ type: "opened", worker: "W", lease });
    return event.opens;
  };
  try {
    await Promise.race([test(opened, () => occurred.next(), () => stop.abort()), done.then(() => assert.fail("the worker has ended"))]);
  } finally {
    stop.abort();
    await done;
  }
}

test("what a session that was left still brings is not begun, and another one is opened at once", () =>
  working(
    () => {},
    async (opened, occurs) => {
      const left = await opened(0.2);
      let event = await occurs();
      while ("pings" in event) event = await occurs();
      assert.deepEqual(event, { closes: left }); // it has not answered a ping within the lease
      left.gives(1);
      (await opened(3000)).gives(2);
      assert.deepEqual(await occurs(), { begins: "2" });
    },
  ));

test("a job that waited in the connection until its lease was over is not begun", () =>
  working(
    () => {},
    async (opened, occurs) => {
      const before = await opened(3000);
      skipped += 2_900_000;
      before.gives(1);
      assert.ok("pings" in (await occurs())); // which nobody answers
      const next = await opened(3000); // which does not name it
      next.gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
    },
  ));

test("a job that runs is interrupted soon after the machine went on if its lease is over", () =>
  working(
    lasting((interrupted) => Socket.occurred.add({ interrupted })),
    async (opened, occurs) => {
      (await opened(3000)).gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
      skipped += 2_900_000; // timers stand still meanwhile
      assert.ok("pings" in (await occurs())); // which nobody answers
      assert.deepEqual(await occurs(), { interrupted: "lost" });
      await opened(3000);
    },
  ));

test("a clock that was set forward ends no lease at a hub that answers, and what the hub gives meanwhile begins after its answer", () =>
  working(
    lasting((interrupted) => Socket.occurred.add({ interrupted })),
    async (opened, occurs) => {
      const session = await opened(3000);
      session.gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
      skipped += hour;
      session.gives(2);
      session.says({ type: "cancel", attempts: [{ token: "T2", reason: "cancelled" }] });
      const asked = await occurs();
      assert.ok("pings" in asked, JSON.stringify(asked));
      asked.pings();
      assert.deepEqual(await occurs(), { begins: "2" });
      assert.deepEqual(await occurs(), { interrupted: "cancelled" });
    },
  ));

test("a clock that was set back lengthens no lease", { timeout: 60_000 }, () =>
  working(
    lasting((interrupted) => Socket.occurred.add({ interrupted })),
    async (opened, occurs) => {
      (await opened(1.5)).gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
      skipped -= hour;
      let event = await occurs();
      while ("pings" in event) event = await occurs(); // which nobody answers
      assert.deepEqual(event, { interrupted: "lost" });
    },
  ));

test("by long polling, a clock that was set forward has the worker ask at once, and ends no lease at a hub that answers", async () => {
  const occurred = new Events<{ asks: { wait: number; held: string[] }; answers: (jobs: object[]) => void } | { begins: string } | { interrupted: unknown }>();
  const hub = createServer(async (request, response: ServerResponse) => {
    const said = await text(request);
    if (!request.url!.endsWith("/take")) return response.end("{}");
    const { wait, held } = JSON.parse(said);
    occurred.add({ asks: { wait, held }, answers: (jobs) => response.end(JSON.stringify({ worker: "W", lease: 30, waited: 0, jobs })) });
  }).listen(0, "127.0.0.1");
  await once(hub, "listening");
  const stop = new AbortController();
  const done = new Weir({ hub: `http://127.0.0.1:${(hub.address() as AddressInfo).port}`, WebSocket: false, jobs }).work({
    queues: { mail: 2 },
    handlers: {
      job(_, context) {
        occurred.add({ begins: context.job.id });
        return lasting((interrupted) => occurred.add({ interrupted }))(context);
      },
    },
    signal: stop.signal,
    stopTimeout: 0,
    onError: () => {},
  });
  const asked = async (wait: number, held: string[]) => {
    const event = await occurred.next();
    assert.ok("asks" in event, `a call is to be made, but ${JSON.stringify(event)}`);
    assert.deepEqual(event.asks, { wait, held });
    return event.answers;
  };
  try {
    (await asked(0, []))([job(1)]);
    assert.deepEqual(await occurred.next(), { begins: "1" });
    await asked(20, ["T1"]); // which waits
    skipped += hour;
    (await asked(0, ["T1"]))([job(2)]);
    assert.deepEqual(await occurred.next(), { begins: "2" });
    await asked(20, ["T1", "T2"]);
  } finally {
    stop.abort();
    await done;
    hub.closeAllConnections();
    hub.close();
  }
});

for (const [how, step] of [["forward", hour], ["back", -hour]] as const) {
  test(`over SQL, a clock that was set ${how} interrupts nothing, and a worker whose slots are full still hears of cancellations`, { timeout: 60_000 }, async () => {
    const pool = makePool();
    const occurred = new Events<{ begins: string } | { interrupted: unknown }>();
    const stop = new AbortController();
    const weir = new Weir({ sql: pool, jobs });
    const goes = new Map<string, () => void>();
    const done = weir.work({
      queues: { [how]: 1 },
      handlers: {
        job(_, context) {
          occurred.add({ begins: context.job.id });
          const { id } = context.job;
          return Promise.race([new Promise<void>((resolve) => goes.set(id, resolve)), lasting((interrupted) => occurred.add({ interrupted }))(context)]);
        },
      },
      signal: stop.signal,
      stopTimeout: 5,
      onError: () => {},
    });
    const begins = async () => {
      const { id } = await weir.enqueue("job", {}, { queue: how });
      return id;
    };
    try {
      const first = await begins();
      assert.deepEqual(await occurred.next(), { begins: first });
      skipped += step;
      const second = await begins();
      await weir.cancel(first);
      assert.deepEqual(await occurred.next(), { interrupted: "cancelled" });
      assert.deepEqual(await occurred.next(), { begins: second });
      goes.get(second)!();
    } finally {
      stop.abort();
      await done;
      await pool.end();
    }
  });
}

test("a worker that is stopped while it opens its session tells the hub, which gives it no jobs", () => {
  let end = () => {};
  return working(
    () => new Promise<void>((resolve) => (end = resolve)),
    async (opened, occurs, stop) => {
      const first = await opened(3000);
      first.gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
      first.onclose?.({ code: 1006, reason: "" });
      await opened(3000, ["T1"], stop);
      assert.deepEqual(await occurs(), { slots: { mail: 0 } });
      end();
    },
    60,
  );
});
