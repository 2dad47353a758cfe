import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { type Context, defineJobs, Final, Interrupted, payload, type Presence, RetryIn, Snooze, Weir, WeirError, type WorkOptions } from "@weir-pg/client";
import WebSocket from "ws";
import { hubUrl, pool as makePool, tokenFor, tokenHubUrl, until } from "./server.js";

const pool = makePool();
after(() => pool.end());
const jobs = defineJobs({ job: payload<{ n?: number; text?: string }>() });
const direct = new Weir({ sql: pool, jobs });
type Handler = (payload: { n?: number; text?: string }, context: Context) => unknown;

let queues = 0;
const ended = (id: string, state: string) =>
  until(`job ${id} is ${state}`, async () => {
    const job = await direct.job(id);
    return job?.state === state ? job : undefined;
  });

for (const [name, options] of Object.entries({ "over a WebSocket": { WebSocket: WebSocket as never }, "by long polling": { WebSocket: false as const } })) {
  describe(name, () => {
    const weir = new Weir({ hub: hubUrl(), jobs, ...options });

    const enqueueMany = async (...args: Parameters<typeof weir.enqueueMany>) => (await weir.enqueueMany(...args)).map(({ id }) => id);

    async function working(handler: Handler, test: (queue: string, stop: () => Promise<void>) => Promise<void>, more: Partial<WorkOptions<typeof jobs>> & { concurrency?: number } = {}) {
      const queue = `${name} ${++queues}`;
      const { concurrency = 10, ...rest } = more;
      const stop = new AbortController();
      const done = weir.work({ queues: { [queue]: concurrency }, handlers: { job: handler }, signal: stop.signal, stopTimeout: 1, onError: (error) => console.error(error), ...rest });
      const end = () => (stop.abort(), done);
      try {
        await Promise.race([test(queue, end), done.then(() => assert.ok(stop.signal.aborted, "the worker has ended"))]);
      } finally {
        await end();
      }
    }

    test("what jobs report at once may be more than a hub takes in a call", () => {
      const lines = 200;
      const most = 6;
      let logged = 0;
      let go = () => {};
      const all = new Promise<void>((resolve) => (go = resolve));
      return working(
        async (_, { log }) => {
          for (let i = 0; i < lines; i++) log("\u0001".repeat(2000) + "x".repeat(6000));
          if (++logged === most) go();
          await all;
        },
        async (queue) => {
          for (const id of await enqueueMany(Array.from({ length: most }, () => ({ kind: "job" as const, payload: {}, queue })))) {
            const job = await ended(id, "completed");
            assert.deepEqual([job.attempt, job.log.length], [1, lines]);
          }
        },
      );
    });

    test("jobs run, and end as their handlers say", () =>
      working(
        ({ n, text }, { job }) => {
          if (n === 0) return text;
          if (n === 1) throw new Final("hopeless");
          if (n === 2 && job.attempt === 1) throw new RetryIn(0, "again");
          if (n === 3) throw new Snooze(1000);
          return { attempt: job.attempt, key: job.key, meta: job.meta, max: job.maxAttempts, at: job.enqueuedAt.getTime() > 0, id: job.id, flow: job.flow };
        },
        async (queue) => {
          const ids = await enqueueMany([0, 1, 2, 3].map((n) => ({ kind: "job" as const, payload: { n, text: "ü\u{1F600}" }, queue, key: "acme", meta: { by: "ada" } })));
          const [text, final, again, snoozed] = ids as [string, string, string, string];
          assert.equal((await ended(text, "completed")).output, "ü\u{1F600}");
          assert.match((await ended(final, "failed")).error!, /hopeless/);
          assert.deepEqual(JSON.parse((await ended(again, "completed")).output!), { attempt: 2, key: "acme", meta: { by: "ada" }, max: 25, at: true, id: again, flow: null });
          assert.equal((await ended(snoozed, "scheduled")).attempt, 1);
          assert.equal((await weir.job(snoozed))?.state, "scheduled");
          assert.equal(await weir.cancel(snoozed), "cancelled");
          assert.equal(await weir.job("999999999"), undefined);
        },
      ));

    test("a queue that never had a job is named", async () => {
      const heard: string[] = [];
      await working(() => {}, (queue) => until("onError hears of the name", async () => heard.some((text) => text.includes(`no job was ever enqueued to queue "${queue}"`)) || undefined).then(() => {}), { onError: (error) => heard.push(String(error)) });
      assert.equal(heard.filter((text) => text.includes("no job was ever enqueued")).length, 1);
    });

    test("a running job that is cancelled is interrupted", async () => {
      const seen: unknown[] = [];
      const handler: Handler = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => (seen.push(signal.reason), reject(signal.reason))));
      await working(handler, async (queue) => {
        const { id } = await weir.enqueue("job", {}, { queue });
        await ended(id, "running");
        assert.equal(await weir.cancel(id), "running");
        await ended(id, "cancelled");
        assert.ok(seen[0] instanceof Interrupted && seen[0].why === "cancelled");
      }, { concurrency: 1 });
    });

    test("progress and checkpoints are kept, and the next attempt goes on from there", () =>
      working(
        async (_, { job, progress, log, checkpoint, setCheckpoint, sync }) => {
          const last = (await checkpoint<number>()) ?? 0;
          progress(40 + last, "importing");
          log("row 17 skipped", "WARN");
          await setCheckpoint(last + 1);
          await sync();
          if (job.attempt === 1) throw new RetryIn(0, "goes on");
          return last;
        },
        async (queue) => {
          const { id } = await weir.enqueue("job", {}, { queue });
          const job = await ended(id, "completed");
          assert.deepEqual([job.output, job.percent, job.message, job.log.length], ["1", 41, "importing", 2]);
        },
      ));

    test("a worker that stops lets jobs end, and releases the others", async () => {
      let release = () => {};
      const handler: Handler = ({ n }, { signal }) => (n === 0 ? new Promise<void>((resolve) => (release = resolve)) : new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))));
      await working(handler, async (queue, stop) => {
        const [short, long] = (await enqueueMany([0, 1].map((n) => ({ kind: "job" as const, payload: { n }, queue, maxAttempts: 1 })))) as [string, string];
        await ended(short, "running");
        await ended(long, "running");
        const stopped = stop();
        release();
        await stopped;
        await ended(short, "completed");
        assert.equal((await ended(long, "available")).attempt, 1);
      });
    });

    test("thousands of jobs run once each, and no more at once than was asked for", async () => {
      let running = 0;
      let most = 0;
      const ran = new Set<string>();
      const handler: Handler = async (_, { job }) => {
        most = Math.max(most, ++running);
        assert.ok(!ran.has(job.id));
        ran.add(job.id);
        await new Promise((resolve) => setImmediate(resolve));
        running--;
      };
      await working(handler, async (queue) => {
        for (let i = 0; i < 3; i++) await enqueueMany(Array.from({ length: 1000 }, () => ({ kind: "job" as const, payload: {}, queue })));
        await until("all have completed", async () => (await pool.query("SELECT available + running AS n FROM weir.queues() WHERE name = $1", [queue])).rows[0].n === "0");
      }, { concurrency: 50 });
      assert.equal(ran.size, 3000);
      assert.ok(most <= 50);
    });

    test("a transaction is refused with the reason", async () => {
      await working(
        async (_, { complete }) => {
          await complete(pool);
        },
        async (queue) => {
          const { id } = await weir.enqueue("job", {}, { queue, maxAttempts: 1 });
          assert.match((await ended(id, "failed")).error!, /work over SQL/);
        },
      );
    });

    test("messages arrive in their order, and a subscription goes on where another ended", async () => {
      const stop = new AbortController();
      const channel = `${name}.orders`.replaceAll(" ", "-");
      const subscribed = resolvers();
      const subscription = weir.subscribe([channel, "other.>"], { signal: stop.signal, onSubscribed: () => subscribed.resolve(undefined) });
      const first = subscription.next();
      await subscribed.promise;
      for (let i = 0; i < 5; i++) await weir.publish(channel, `message ${i}`);
      const { value } = await first;
      assert.ok(value?.type === "message");
      assert.deepEqual([value.channel, value.payload], [channel, "message 0"]);
      assert.equal(subscription.position, value.position);
      await subscription.return?.();
      const rest: string[] = [];
      for await (const event of weir.subscribe(channel, { after: value.position! })) {
        assert.ok(event.type === "message");
        if (rest.push(event.payload) === 4) break;
      }
      assert.deepEqual(rest, ["message 1", "message 2", "message 3", "message 4"]);
      for await (const event of weir.subscribe(channel, { after: "1.1.1", signal: stop.signal })) {
        assert.deepEqual([event.type, event.type === "gap" && event.reason], ["gap", "unknown"]);
        break;
      }
    });

    test("a subscription begins with the last messages, and goes on after them", async () => {
      const stop = new AbortController();
      const channels = [0, 1].map((n) => `${name}.last.${n}`.replaceAll(" ", "-"));
      const take = async (subscription: ReturnType<typeof weir.subscribe>, n: number) => {
        const taken: string[] = [];
        for await (const event of subscription) if (event.type === "message" && taken.push(event.payload) === n) return taken;
        return taken;
      };
      const there = resolvers();
      const arrive = take(weir.subscribe(channels, { signal: stop.signal, onSubscribed: () => there.resolve(undefined) }), 5);
      await there.promise;
      for (let n = 0; n < 5; n++) await weir.publish(channels[n % 2]!, String(n));
      await arrive; // the hub has them: what it has not read yet is no history
      let history: unknown[] = [];
      const subscribed = resolvers();
      const together = weir.subscribe(channels, { last: 2, signal: stop.signal, onHistory: (messages, complete) => (history = [messages.map(({ payload }) => payload), complete]), onSubscribed: () => subscribed.resolve(undefined) });
      const next = together.next();
      await subscribed.promise;
      assert.deepEqual(history, [["1", "2", "3", "4"], true]);
      const begun = resolvers();
      const all = take(weir.subscribe(channels, { last: 2, signal: stop.signal, onSubscribed: () => begun.resolve(undefined) }), 5);
      await begun.promise;
      const position = together.position!;
      await weir.publish(channels[0]!, "5");
      assert.equal(((await next).value as { payload: string }).payload, "5");
      assert.deepEqual(await all, ["1", "2", "3", "4", "5"]);
      assert.deepEqual(await take(weir.subscribe(channels, { after: position }), 1), ["5"]);
      stop.abort();
      assert.throws(() => weir.subscribe(channels, { last: 2, after: position }), /not both/);
      assert.throws(() => weir.subscribe(channels, { last: 1001 }), /last is 1001/);
    });

    test("a subscription hears who joins and leaves", async () => {
      const room = `room.${name}`.replaceAll(" ", "-");
      const subscribe = (user: string) => new Weir({ hub: tokenHubUrl(), token: () => tokenFor(user), ...options }).subscribe(room, { presence: true });
      const [ada, bob] = [subscribe("ada"), subscribe("bob")];
      const hear = async (holds: (change: Presence) => boolean) => {
        for (;;) {
          const { value } = await ada.next();
          if (value?.type === "presence" && holds(value)) return;
        }
      };
      const first = hear(({ channel, joined }) => channel === room && joined.some(({ user, info }) => user === "bob" && (info as { is: string }).is === "bob"));
      const waiting = bob.next();
      await first;
      assert.deepEqual(await ada.members(room), { users: [{ user: "ada", info: { is: "ada" } }, { user: "bob", info: { is: "bob" } }], count: 2 });
      assert.deepEqual((await ada.members(room, "ada")).users.map(({ user }) => user), ["bob"]);
      await bob.return?.();
      await waiting;
      await hear(({ left, count }) => left.includes("bob") && count === 1);
      await assert.rejects(ada.members("other"), /has no presence/);
      await ada.return?.();
    });

    test("what the hub refuses is an error at once, and is not tried again", async () => {
      const subscription = weir.subscribe("x".repeat(300), { onDisconnect: () => assert.fail("it was tried again") });
      await assert.rejects(subscription.next(), (error) => error instanceof WeirError && error.code === "bad_request" && /300/.test(error.message));
    });

    test("a program that does not keep up misses nothing", async () => {
      const channel = `${name}.many`.replaceAll(" ", "-");
      const subscribed = resolvers();
      const seen: string[] = [];
      const subscription = weir.subscribe(channel, { onSubscribed: () => subscribed.resolve(undefined), onDisconnect: () => {} });
      const reading = (async () => {
        for await (const event of subscription) {
          assert.ok(event.type === "message");
          if (seen.push(event.payload) === 5000) return;
          if (seen.length === 1) await until("all are published", () => published);
        }
      })();
      await subscribed.promise;
      let published = false;
      for (let i = 0; i < 5; i++) await pool.query("SELECT weir.publish($1, (g + $2)::text || repeat(' ', 1000)) FROM generate_series(0, 999) g", [channel, i * 1000]);
      published = true;
      await reading;
      assert.deepEqual(seen.map(Number), Array.from({ length: 5000 }, (_, i) => i));
    });
  });
}

function resolvers() {
  let resolve = (_: unknown) => {};
  const promise = new Promise((one) => (resolve = one));
  return { promise, resolve };
}

test("a hub that can't be reached is named, with the reason", async () => {
  const weir = new Weir({ hub: "http://127.0.0.1:9", token: "x" });
  await assert.rejects(weir.publish("a", "b"), (error) => error instanceof WeirError && error.code === "unavailable" && /http:\/\/127\.0\.0\.1:9\/v1\/publish: .+/.test(error.message) && !/fetch failed/.test(error.message));
});

/** A hub before which something answers requests in its own way, if it does. */
async function behind(answers: (path: string, body: string, pass: () => Promise<string>) => Promise<string>): Promise<{ weir: Weir<typeof jobs>; close: () => void }> {
  const proxy = createServer(async (request, response) => {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const body = Buffer.concat(parts).toString();
    let status = 200;
    const text = await answers(request.url!, body, async () => {
      const answer = await fetch(hubUrl() + request.url!, { method: request.method!, ...(body ? { body } : {}) });
      status = answer.status;
      return answer.text();
    });
    response.writeHead(status, { "content-type": "application/json" }).end(text);
  });
  await new Promise<void>((listens) => proxy.listen(0, "127.0.0.1", listens));
  const close = () => {
    proxy.closeAllConnections();
    proxy.close();
  };
  return { weir: new Weir({ hub: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, jobs, WebSocket: false }), close };
}

test("a subscription that can't be made says so once on the console, if nobody listens", async (t) => {
  const stop = new AbortController();
  const said: string[] = [];
  const tries: string[] = [];
  let tried = () => {};
  const twice = new Promise<void>((resolve) => (tried = resolve));
  t.mock.method(console, "warn", (text: string) => said.push(text));
  t.mock.method(globalThis, "fetch", async (url: URL) => {
    if (tries.push(url.href) === 3) tried();
    throw new TypeError("fetch failed", { cause: new Error("connect ECONNREFUSED") });
  });
  const next = new Weir({ hub: "http://hub.invalid/databases/app/", WebSocket: false }).subscribe("a", { signal: stop.signal }).next();
  await twice;
  stop.abort();
  assert.equal((await next).done, true);
  assert.deepEqual(said, ["weir: no subscription at http://hub.invalid/databases/app/, which is tried again: GET http://hub.invalid/databases/app/v1/events: connect ECONNREFUSED"]);
});

test("a job whose lease is over when its answer is read is not started from it", async () => {
  const held: string[][] = []; // by the calls after the one whose answer was late
  let late = false;
  const { weir, close } = await behind(async (path, body, pass) => {
    const text = await pass();
    if (path !== "/v1/work/take") return text;
    const said = JSON.parse(text) as { jobs: unknown[] };
    if (late) held.push((JSON.parse(body) as { held: string[] }).held);
    if (!late && said.jobs.length > 0) {
      late = true;
      await sleep(1500);
    }
    return JSON.stringify({ ...said, lease: 1 });
  });
  const stop = new AbortController();
  const done = weir.work({ queues: { late: 1 }, handlers: { job: () => "done" }, signal: stop.signal, onError: (error) => console.error(error) });
  const { id } = await direct.enqueue("job", {}, { queue: "late" });
  await ended(id, "completed");
  stop.abort();
  await done;
  close();
  assert.deepEqual(held[0], []);
});

test("an end that is refused becomes one that nothing can be wrong with", async () => {
  const heard: string[] = [];
  const { weir, close } = await behind(async (path, body, pass) => {
    const { ends } = JSON.parse(body || "{}") as { ends: { token: string; delay?: number }[] };
    return path === "/v1/work/record" && ends[0]!.delay !== undefined ? JSON.stringify({ results: ends.map(({ token }) => ({ token, refusal: "invalid", detail: "no delays today" })) }) : pass();
  });
  const stop = new AbortController();
  const handler = () => {
    throw new RetryIn(60, "too many requests");
  };
  const done = weir.work({ queues: { refused: 1 }, handlers: { job: handler }, signal: stop.signal, onError: (error) => heard.push(String(error)) });
  const { id } = await direct.enqueue("job", {}, { queue: "refused", maxAttempts: 1 });
  assert.match((await ended(id, "failed")).error!, /no delays today\n.*too many requests/);
  stop.abort();
  await done;
  close();
  assert.deepEqual(heard, ["Error: weir: the end of an attempt was refused, so it has failed: no delays today"]);
});
