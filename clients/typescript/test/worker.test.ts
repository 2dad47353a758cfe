import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer, Socket } from "node:net";
import { after, test } from "node:test";
import { type Context, defineJobs, Final, Interrupted, payload, Release, RetryIn, Snooze, Weir, WeirError } from "@weir-pg/client";
import pg from "pg";
import postgres from "postgres";
import { z } from "zod";
import { bouncerUrl, databaseUrl, pool as makePool, until } from "./server.js";

const pool = makePool();
after(() => pool.end());

const jobs = defineJobs({ job: payload<{ n?: number; text?: string }>(), typed: z.object({ at: z.iso.datetime().transform((text) => new Date(text)) }) });
const enqueueMany = async (...args: Parameters<typeof weir.enqueueMany>) => (await weir.enqueueMany(...args)).map(({ id }) => id);
const weir = new Weir({ sql: pool, jobs });
type Handler = (payload: { n?: number; text?: string }, context: Context) => unknown;

let queues = 0;

/** A queue with a worker that runs until the test is over. */
function worker(handler: Handler, options: Partial<Parameters<typeof weir.work>[0]> & { client?: typeof weir; concurrency?: number } = {}) {
  const queue = `queue ${++queues}`;
  const stop = new AbortController();
  const { client = weir, concurrency = 10, ...rest } = options;
  const done = client.work({ queues: { [queue]: concurrency }, handlers: { job: handler }, signal: stop.signal, stopTimeout: 5, onError: () => {}, ...rest });
  return {
    queue,
    stop: () => (stop.abort(), done),
    async [Symbol.asyncDispose]() {
      stop.abort();
      await done;
    },
  };
}

const ended = (id: string, state: string) => until(`job ${id} is ${state}`, async () => {
  const job = await weir.job(id);
  return job?.state === state ? job : undefined;
});

async function using<T extends AsyncDisposable>(resource: T, work: (resource: T) => Promise<void>) {
  try {
    await work(resource);
  } finally {
    await resource[Symbol.asyncDispose]();
  }
}

test("a handler's result is the job's output: texts as they are, the rest as JSON", () =>
  using(worker(({ n }) => [undefined, "a text", { a: [1] }, 7, "\ud800 \0"][n!]), async ({ queue }) => {
    const ids = await enqueueMany([0, 1, 2, 3, 4].map((n) => ({ kind: "job" as const, payload: { n }, queue })));
    const outputs = [];
    for (const id of ids) outputs.push((await ended(id, "completed")).output);
    assert.deepEqual(outputs, [null, "a text", '{"a":[1]}', "7", "\ufffd \ufffd"]);
  }));

test("what handlers throw decides what becomes of the job", () =>
  using(
    worker(({ n }, { job }) => {
      if (n === 0) throw new Error("the first problem", { cause: new TypeError("its cause") });
      if (n === 1) throw new Final("hopeless");
      if (n === 2 && job.attempt === 1) throw new RetryIn(0, "again");
      if (n === 3) throw new Snooze(1000);
      if (n === 4) throw "a text";
      if (n === 5) return 1n;
      if (n === 6) throw new Release("not here");
      return job.attempt;
    }),
    async ({ queue }) => {
      const [plain, final, soon, snoozed, text, bad, released] = await enqueueMany([0, 1, 2, 3, 4, 5, 6].map((n) => ({ kind: "job" as const, payload: { n }, queue, maxAttempts: n === 1 || n === 2 ? 5 : 1 })));
      const job = await ended(plain!, "failed");
      assert.match(job.error!, /the first problem[\s\S]*worker\.test\.[\s\S]*caused by: .*its cause/);
      assert.match((await ended(final!, "failed")).error!, /hopeless/);
      assert.equal((await ended(soon!, "completed")).output, "2");
      const later = await ended(snoozed!, "scheduled");
      assert.equal(later.attempt, 1);
      assert.ok(later.runAt!.getTime() > Date.now() + 900_000);
      assert.match((await ended(text!, "failed")).error!, /^a text/);
      assert.match((await ended(bad!, "failed")).error!, /the output can't be written as JSON/);
      assert.equal((await until("it is released", async () => { const job = await weir.job(released!); return job?.error ? job : undefined; })).attempt, 1);
    },
  ));

test("a delay that is over is none, and a delay that is no number fails the attempt, which onError hears", async () => {
  const wrong = [NaN, Infinity, -Infinity, "60", undefined, 315_576_001];
  const thrown = [...[-1, ...wrong].map((seconds) => new RetryIn(seconds as number, "try again")), ...[-1, ...wrong].map((seconds) => new Snooze(seconds as number))];
  const heard: string[] = [];
  const ran = new Set<string>();
  const handler: Handler = ({ n }, { job }) => {
    if (ran.has(job.id)) return "again";
    ran.add(job.id);
    throw thrown[n!];
  };
  await using(worker(handler, { onError: (error) => heard.push(String(error)) }), async ({ queue }) => {
    const ids = await enqueueMany(thrown.map(({ seconds }, n) => ({ kind: "job" as const, payload: { n }, queue, maxAttempts: seconds === -1 ? 2 : 1 })));
    for (const [n, { name, seconds }] of thrown.entries()) {
      if (seconds === -1) {
        assert.equal((await ended(ids[n]!, "completed")).attempt, name === "RetryIn" ? 2 : 1);
        continue;
      }
      const said = `weir: ${name} got ${typeof seconds === "string" ? '"60"' : seconds}: pass a number of seconds`;
      const { error, attempt } = await ended(ids[n]!, "failed");
      assert.ok(error!.includes(said) && attempt === 1 && (name === "Snooze" || error!.includes("try again")), error!);
      assert.equal(heard.filter((text) => text.includes(said)).length, 1, said);
    }
  });
  assert.equal(heard.length, wrong.length * 2);
});

test("handlers get what their schema makes of the payload, and an invalid one fails the attempt", async () => {
  const queue = `queue ${++queues}`;
  const stop = new AbortController();
  const done = weir.work({ queues: { [queue]: 2 }, handlers: { typed: ({ at }) => at.getTime() }, signal: stop.signal });
  const { id } = await weir.enqueue("typed", { at: "2026-11-26T03:00:00Z" }, { queue });
  const { id: bad } = await new Weir({ sql: pool }).enqueue("typed", { at: "soon" }, { queue, maxAttempts: 1 });
  assert.equal((await ended(id, "completed")).output, String(Date.UTC(2026, 10, 26, 3)));
  assert.match((await ended(bad, "failed")).error!, /the payload of typed is invalid: at: /);
  stop.abort();
  await done;
});

test("handlers see all of their job", () =>
  using(
    worker((_, { job }) => JSON.stringify(job)),
    async ({ queue }) => {
      const { id } = await weir.enqueue("job", {}, { queue, key: "acme", meta: { tenant: "ä" }, priority: 3, maxAttempts: 7 });
      const { enqueuedAt, ...rest } = JSON.parse((await ended(id, "completed")).output!);
      assert.deepEqual(rest, { id, queue, priority: 3, kind: "job", meta: { tenant: "ä" }, key: "acme", flow: null, attempt: 1, maxAttempts: 7 });
      assert.equal(enqueuedAt, (await weir.job(id))!.enqueuedAt.toISOString());
    },
  ));

for (const why of ["cancelled", "timeout"] as const) {
  test(`a job that ${why === "timeout" ? "takes too long" : "is cancelled"} is interrupted, and its signal says why`, async () => {
    const seen: unknown[] = [];
    const handler: Handler = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => (seen.push(signal.reason), reject(signal.reason))));
    await using(worker(handler, why === "timeout" ? { timeout: 0.2 } : {}), async ({ queue }) => {
      const { id } = await weir.enqueue("job", {}, { queue, maxAttempts: 1 });
      if (why === "cancelled") {
        await ended(id, "running");
        assert.equal(await weir.cancel(id), "running");
      }
      const job = await ended(id, why === "timeout" ? "failed" : "cancelled");
      if (why === "timeout") assert.match(job.error!, /took longer than 0.2 seconds/);
      assert.ok(seen[0] instanceof Interrupted && seen[0].why === why);
    });
  });
}

test("a handler that ignores its signal does not keep its place for ever", () =>
  using(worker(({ n }) => (n === 0 ? new Promise(() => {}) : undefined), { timeout: 0.1, concurrency: 1 }), async ({ queue }) => {
    const [stuck, next] = await enqueueMany([0, 1].map((n) => ({ kind: "job" as const, payload: { n }, queue, maxAttempts: 1 })));
    await ended(stuck!, "failed");
    await ended(next!, "completed");
  }));

test("completion commits with the effects of the handler, or rolls back with them", async () => {
  await pool.query("CREATE TABLE effect (job bigint, attempt integer)");
  const handler: Handler = async ({ n }, { job, complete }) => {
    const client = await pool.connect();
    try {
      await client.query("BEGIN");
      await client.query("INSERT INTO effect VALUES ($1, $2)", [job.id, job.attempt]);
      await complete(client, "the output");
      if (n === 1 && job.attempt === 1) throw new RetryIn(0, "after the completion");
      await client.query(n === 2 && job.attempt === 1 ? "ROLLBACK" : "COMMIT"); // the second says nothing of it
      if (n === 3) throw new Error("after the commit");
    } catch (error) {
      await client.query("ROLLBACK");
      throw error;
    } finally {
      client.release();
    }
    return "not this output";
  };
  await using(worker(handler), async ({ queue }) => {
    await pool.query("SELECT weir.set($1, 'backoff', '10 ms')", [queue]);
    const ids = await enqueueMany([0, 1, 2, 3].map((n) => ({ kind: "job" as const, payload: { n }, queue, maxAttempts: 3 })));
    const jobs = [];
    for (const id of ids) jobs.push(await ended(id, "completed"));
    assert.deepEqual(jobs.map(({ attempt, output }) => [attempt, output]), [[1, "the output"], [2, "the output"], [2, "the output"], [1, "the output"]]);
    assert.match(JSON.stringify(jobs[2]!.errors), /was not committed/);
    const { rows } = await pool.query("SELECT job::text, count(*)::integer AS n FROM effect GROUP BY job ORDER BY job");
    assert.deepEqual(rows, ids.map((job) => ({ job, n: 1 })));
  });
});

test("progress, checkpoint and log are kept, and the next attempt goes on from the checkpoint", () =>
  using(
    worker(async (_, { job, progress, log, checkpoint, setCheckpoint, sync }) => {
      const last = (await checkpoint<{ row: number }>())?.row ?? 0;
      progress(last + 40, "importing");
      log("row 17 skipped", "WARN");
      await setCheckpoint({ row: last + 1 });
      if (job.attempt === 1) {
        await sync();
        assert.deepEqual((await weir.job(job.id))?.percent, 40);
        throw new RetryIn(0, "goes on");
      }
      assert.deepEqual(await checkpoint(), { row: last + 1 });
      const client = await pool.connect();
      await client.query("BEGIN");
      await setCheckpoint({ row: 99 }, { tx: client });
      await client.query("COMMIT");
      client.release();
      return last;
    }),
    async ({ queue }) => {
      const { id } = await weir.enqueue("job", {}, { queue });
      const job = await ended(id, "completed");
      assert.deepEqual([job.output, job.attempt, job.percent, job.message, job.log.length], ["1", 2, 41, "importing", 2]);
      assert.deepEqual((await pool.query("SELECT weir.checkpoint($1) AS row", [id])).rows, [{ row: { row: 99 } }]);
    },
  ));

test("what jobs report at once may be more than a call takes", () => {
  const lines = 200;
  const most = 12;
  let logged = 0;
  let go = () => {};
  const all = new Promise<void>((resolve) => (go = resolve));
  return using(
    worker(
      async (_, { log }) => {
        for (let i = 0; i < lines; i++) log("\u0001".repeat(2000) + "x".repeat(6000));
        if (++logged === most) go();
        await all;
      },
      { concurrency: most },
    ),
    async ({ queue }) => {
      for (const id of await enqueueMany(Array.from({ length: most }, () => ({ kind: "job" as const, payload: {}, queue })))) {
        const job = await ended(id, "completed");
        assert.deepEqual([job.attempt, job.log.length], [1, lines]);
      }
    },
  );
});

test("a worker that stops lets jobs end, interrupts those that don't, and releases them without using up an attempt", async () => {
  let release = () => {};
  const handler: Handler = ({ n }, { signal }) => (n === 0 ? new Promise<void>((resolve) => (release = resolve)) : new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("interrupted")))));
  const { queue, stop } = worker(handler, { stopTimeout: 0.5 });
  const [short, long] = await enqueueMany([0, 1].map((n) => ({ kind: "job" as const, payload: { n }, queue, maxAttempts: 1 })));
  await ended(short!, "running");
  await ended(long!, "running");
  const stopped = stop();
  release();
  await stopped;
  await ended(short!, "completed");
  const job = await ended(long!, "available");
  assert.equal(job.attempt, 1);
});

test("no more jobs of a queue run at once than was asked for", async () => {
  let running = 0;
  let most = 0;
  const handler: Handler = async () => {
    most = Math.max(most, ++running);
    await new Promise((resolve) => setTimeout(resolve, 1));
    running--;
  };
  await using(worker(handler, { concurrency: 3 }), async ({ queue }) => {
    const ids = await enqueueMany(Array.from({ length: 100 }, () => ({ kind: "job" as const, payload: {}, queue })));
    for (const id of ids) await ended(id, "completed");
  });
  assert.equal(most, 3);
});

test("a worker goes on after its sessions were ended, and runs no job twice for it", async () => {
  const ran = new Map<string, number>();
  const handler: Handler = async (_, { job }) => {
    ran.set(job.id, (ran.get(job.id) ?? 0) + 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
  };
  await using(worker(handler, { concurrency: 20 }), async ({ queue }) => {
    const ids: string[] = [];
    for (let round = 0; round < 5; round++) {
      ids.push(...(await enqueueMany(Array.from({ length: 100 }, () => ({ kind: "job" as const, payload: {}, queue, maxAttempts: 1 })))));
      await until("some have run", () => ran.size > round * 100 + 20);
      await pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%weir.take(%' AND pid <> pg_backend_pid()");
    }
    for (const id of ids) await ended(id, "completed");
  });
});

test("jobs are interrupted, long before the lease is over, if nothing can replace the session that stood for their worker", async () => {
  const reasons: string[] = [];
  let silent = false;
  const deaf = createServer(() => {}).listen(0, "127.0.0.1"); // the network between this worker and the server, which is silent for a while
  await once(deaf, "listening");
  class Connection extends Socket {
    override connect(...args: any[]): this {
      return super.connect(...((silent ? [(deaf.address() as AddressInfo).port, "127.0.0.1"] : args) as [number, string]));
    }
  }
  const url = new URL(databaseUrl);
  url.searchParams.set("application_name", "cut off");
  const own = new pg.Pool({ connectionString: url.href, max: 2, stream: () => new Connection() });
  own.on("error", () => {});
  const attended = () => pool.query("SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND classid = 1464158554 AND granted AND application_name = 'cut off'");
  const handler: Handler = (_, { signal }) =>
    new Promise<void>((resolve, reject) => {
      if (reasons.length > 0) return resolve();
      signal.addEventListener("abort", () => (reasons.push((signal.reason as Interrupted).why), reject(signal.reason)));
    });
  await using(worker(handler, { client: new Weir({ sql: own, jobs }), lease: 300 }), async ({ queue }) => {
    const { id } = await weir.enqueue("job", {}, { queue });
    await ended(id, "running");
    await until("a session stands for the worker", async () => (await attended()).rowCount);
    await pool.query("SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND classid = 1464158554 AND application_name = 'cut off'");
    await until("another session stands for the worker", async () => (await attended()).rowCount);
    assert.deepEqual(reasons, []);
    silent = true;
    await pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cut off'");
    await until("the job is interrupted", () => reasons.length > 0);
    silent = false;
    assert.deepEqual(reasons, ["lost"]);
    await ended(id, "completed");
  });
  await own.end();
  deaf.close();
});

test("a worker that was fenced starts again, and its jobs are interrupted as lost", async () => {
  const why: string[] = [];
  const handler: Handler = ({ n }, { signal }) => (n === 0 && why.length === 0 ? new Promise((_, reject) => signal.addEventListener("abort", () => (why.push((signal.reason as Interrupted).why), reject(signal.reason)))) : "done");
  await using(worker(handler), async ({ queue }) => {
    const { id } = await weir.enqueue("job", { n: 0 }, { queue, maxAttempts: 1 });
    const job = await ended(id, "running");
    assert.ok(job);
    await pool.query("SELECT weir.stop(worker) FROM weir.job_info($1)", [id]);
    assert.equal((await ended(id, "completed")).output, "done");
    assert.deepEqual(why, ["lost"]);
  });
});

test("a worker without the privileges ends, and says why", async () => {
  await pool.query("CREATE ROLE nobody_at_all LOGIN PASSWORD 'x'");
  const url = new URL(databaseUrl);
  url.username = "nobody_at_all";
  url.password = "x";
  const poor = makePool(url.href);
  await assert.rejects(new Weir({ sql: poor }).work({ queues: { q: 1 }, handlers: { job: () => {} }, onError: () => {} }), /permission denied/);
  await poor.end();
  await pool.query("DROP ROLE nobody_at_all");
});

test("what keeps a worker from starting is its error, and nothing is printed besides", async () => {
  const url = new URL(databaseUrl);
  const heard: unknown[] = [];
  url.pathname = "/none"; // with a server that trusts, there is no wrong password
  const none = makePool(url.href);
  await assert.rejects(new Weir({ sql: none }).work({ queues: { q: 1 }, handlers: { job: () => {} }, onError: (error) => heard.push(error) }), (error) => error instanceof WeirError && error.code === "3D000");
  assert.deepEqual(heard, []);
  await none.end();
});

test("of a kind without a handler the program hears once, and its jobs wait for another worker", async () => {
  const heard: string[] = [];
  await using(worker(() => "done", { concurrency: 1, onError: (error) => heard.push(String(error)) }), async ({ queue }) => {
    const other = async () => (await new Weir({ sql: pool }).enqueue("other", {}, { queue })).id;
    const ids = [await other(), await other()];
    const { id } = await weir.enqueue("job", {}, { queue });
    await ended(id, "completed");
    for (const one of ids) await until(`job ${one} is released`, async () => /no handler/.test((await weir.job(one))!.error ?? ""));
  });
  assert.deepEqual(heard, ["Error: weir: this worker has no handler for other: its jobs are released, for workers that have one"]);
});

test("handlers that use up the pool don't keep a worker from its lease, and its jobs end", async () => {
  const small = makePool();
  small.options.max = 1;
  const client = new Weir({ sql: small, jobs });
  const handler: Handler = async () => void (await small.query("SELECT pg_sleep(0.2)"));
  await using(worker(handler, { client, concurrency: 20, lease: 2 }), async ({ queue }) => {
    const ids = await enqueueMany(Array.from({ length: 30 }, () => ({ kind: "job" as const, payload: {}, queue, maxAttempts: 1 })));
    for (const id of ids) await ended(id, "completed");
  });
  await small.end();
});

for (const [name, make] of Object.entries({
  "pg through PgBouncer": () => makePool(bouncerUrl()),
  "postgres.js through PgBouncer": () => postgres(bouncerUrl(), { onnotice: () => {} }),
  "postgres.js": () => postgres(databaseUrl, { onnotice: () => {} }),
})) {
  test(`a worker works on ${name}`, async () => {
    const sql = make();
    const client = new Weir({ sql, jobs });
    await using(worker(({ text }) => text, { client }), async ({ queue }) => {
      const ids = await enqueueMany(Array.from({ length: 100 }, () => ({ kind: "job" as const, payload: { text: "ü" }, queue })));
      for (const id of ids) assert.equal((await ended(id, "completed")).output, "ü");
    });
    await sql.end();
  });
}

test("a queue without room does not keep jobs of another from starting", async () => {
  const stop = new AbortController();
  const done = weir.work({ queues: { "full queue": 1, "free queue": 1 }, handlers: { job: ({ n }, { signal }) => (n === 0 ? new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))) : "done") }, signal: stop.signal, stopTimeout: 0.1 });
  const { id: blocking } = await weir.enqueue("job", { n: 0 }, { queue: "full queue" });
  await ended(blocking, "running");
  const { id } = await weir.enqueue("job", { n: 1 }, { queue: "free queue" });
  await ended(id, "completed");
  stop.abort();
  await done;
});
