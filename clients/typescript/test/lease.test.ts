// What a worker over a WebSocket takes for its own. The sockets are the test's own, and do nothing but what it says.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { type Context, payload, Weir } from "@weir-pg/client";

const jobs = { job: payload<object>() };
const now = Date.now;
let skipped = 0; // of the time, in which this process did not run
afterEach(() => {
  skipped = 0;
  Date.now = now;
});

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

type Occurred = { opens: Socket; held: string[] } | { closes: Socket } | { begins: string } | { interrupted: unknown } | { slots: unknown };

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
    this.says({ type: "jobs", jobs: [{ token: `T${id}`, id, queue: "mail", priority: 2, kind: "job", args: {}, meta: null, key: null, flow: null, attempt: 1, max_attempts: 1, enqueued_at: "2026-11-26T03:00:00Z" }] });
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
    while ("closes" in event) event = await occurred.next(); // another one
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
      assert.deepEqual(await occurs(), { closes: left }); // it has not answered a ping within the lease
      left.gives(1);
      (await opened(3000)).gives(2);
      assert.deepEqual(await occurs(), { begins: "2" });
    },
  ));

test("a job that waited in the connection until its lease was over is not begun", () =>
  working(
    () => {},
    async (opened, occurs) => {
      Date.now = () => now() + skipped;
      const before = await opened(3000);
      skipped += 2_900_000;
      before.gives(1);
      const next = await opened(3000); // which does not name it
      next.gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
    },
  ));

test("a job that runs is interrupted soon after the machine went on if its lease is over", () =>
  working(
    ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => (Socket.occurred.add({ interrupted: signal.reason.why }), reject(signal.reason)))),
    async (opened, occurs) => {
      Date.now = () => now() + skipped;
      (await opened(3000)).gives(1);
      assert.deepEqual(await occurs(), { begins: "1" });
      skipped += 2_900_000; // timers stand still meanwhile
      assert.deepEqual(await occurs(), { interrupted: "lost" });
      await opened(3000);
    },
  ));

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
