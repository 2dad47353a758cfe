// The examples of README.md, which documented_test.go has written to readme/, run as they are. What they use without saying where it is from
// (readme/prelude.d.ts) is global.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { after, test } from "node:test";
import { Weir } from "@weir-pg/client";
import { PrismaPg } from "@prisma/adapter-pg";
import { drizzle } from "drizzle-orm/node-postgres";
import { Kysely, PostgresDialect } from "kysely";
import postgres from "postgres";
import { PrismaClient } from "./prisma/generated/client.js";
import { databaseUrl, hubUrl, pool as makePool, tokenFor, tokenHubUrl, until } from "./server.js";

const pool = makePool();
const sql = postgres(databaseUrl, { onnotice: () => {} });
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: databaseUrl }) });
const given = globalThis as Record<string, unknown>;
const example = async (number: number) => (await import(new URL(`readme/example-${number}.js`, import.meta.url).href)) as Record<string, unknown>;

const { jobs } = (await example(2)) as { jobs: Record<string, never> };
const weir = new Weir({ sql: pool, jobs }) as unknown as Weir;
const shown: string[] = [];
Object.assign(given, {
  pool,
  sql,
  prisma,
  drizzle: drizzle({ client: pool }),
  kysely: new Kysely({ dialect: new PostgresDialect({ pool }) }),
  weir,
  Weir,
  jobs,
  freshToken: async () => "token",
  send: async (account: number) => `sent to ${account}`,
  show: (channel: string, payload: string) => shown.push(`${channel}: ${payload}`),
  reload: () => assert.fail("messages are missing"),
});
after(async () => {
  await Promise.all([pool.end(), sql.end(), prisma.$disconnect()]);
});
await pool.query("CREATE TABLE account (id bigint PRIMARY KEY, welcomed boolean NOT NULL DEFAULT false)");

/** Runs an example that works or subscribes until `shutdown` aborts, which it does when the test has ended. */
async function untilShutdown(number: number, test: () => Promise<void>) {
  const stop = new AbortController();
  given.shutdown = stop.signal;
  const running = example(number);
  try {
    await Promise.race([test(), running.then(() => assert.ok(stop.signal.aborted, "the example has ended"))]);
  } finally {
    stop.abort();
    await running;
  }
}

const ended = async (id: string) => {
  const job = await until(`job ${id} has ended`, async () => {
    const found = await weir.job(id);
    return found?.finishedAt ? found : undefined;
  });
  assert.equal(job.state, "completed", String(job.error));
  return job;
};

const waiting = async (kind: string) => Number((await pool.query("SELECT count(*) FROM weir.jobs('available') WHERE kind = $1", [kind])).rows[0].count);

async function transaction(work: () => Promise<void>) {
  const tx = await pool.connect();
  given.tx = tx;
  try {
    await tx.query("BEGIN");
    await work();
    await tx.query("COMMIT");
  } finally {
    tx.release();
  }
}

test("enqueue in a transaction", async () => {
  await example(3);
  assert.equal(await waiting("welcome"), 5);
});

test("options, and several jobs at once", async () => {
  await transaction(async () => void (await example(4)));
  assert.equal(await waiting("welcome"), 6);
  assert.equal(await waiting("digest"), 2);
});

test("work", () =>
  untilShutdown(5, async () => {
    const { id } = await weir.enqueue("welcome", { account: 7 });
    assert.equal((await ended(id)).output, "7");
    const past = await weir.enqueue("remind", { account: 7, at: new Date(0).toISOString() });
    assert.equal((await ended(past.id)).output, "done");
    const { id: future } = await weir.enqueue("remind", { account: 7, at: "2999-01-01T00:00:00Z" });
    await until("the job is snoozed", async () => (await weir.job(future))?.state === "scheduled");
  }));

test("complete in the transaction", () =>
  untilShutdown(6, async () => {
    const { id } = await weir.enqueue("welcome", { account: 7 });
    await ended(id);
    assert.deepEqual((await pool.query("SELECT welcomed FROM account WHERE id = 7")).rows, [{ welcomed: true }]);
  }));

test("progress, and a checkpoint", async () => {
  const pages: number[] = [];
  given.render = async (_: string, page: number) => {
    if (page === 60 && !pages.includes(60)) {
      pages.push(page);
      throw new Error("out of ink");
    }
    return pages.push(page) > 1;
  };
  await pool.query("SELECT weir.set('default', 'backoff', '100 ms')");
  await untilShutdown(7, async () => {
    const { id } = await weir.enqueue("thumbnail", { file: "book.pdf", width: 100 });
    const job = await ended(id);
    assert.deepEqual([job.attempt, job.percent, job.message], [2, 100, "rendering"]);
  });
  assert.equal(pages.filter((page) => page === 59).length, 1, "the second attempt goes on where the first has failed");
});

test("over HTTP", () =>
  untilShutdown(8, async () => {
    const newest = async () => (await pool.query("SELECT id::text FROM weir.jobs('completed') WHERE kind = 'welcome' AND output = 'sent to 7'")).rows[0]?.id as string | undefined;
    await until("the job has run", newest);
  }));

test("look up, cancel, retry", async () => {
  const { id } = await weir.enqueue("digest", { account: 9 });
  given.id = id;
  await example(9);
  assert.equal((await weir.job(id))?.state, "available", "it was cancelled, and then retried");
});

test("publish, and subscribe", () =>
  untilShutdown(10, async () => {
    // Its own message is published before it subscribes.
    await until("a message is shown", async () => {
      await weir.publish("orders.8", "paid");
      return shown.includes("orders.8: paid");
    });
  }));

test("begin with the last messages, and hear who is there", () => {
  given.weir = new Weir({ hub: tokenHubUrl(), token: tokenFor("ada") });
  return untilShutdown(11, async () => {
    await until("a message is shown", async () => {
      await weir.publish("room.7", "hello");
      return shown.includes("room.7: hello");
    });
  }).finally(() => (given.weir = weir));
});

test("subscribe in a page", async () => {
  void example(12); // for ever
  await until("a message is shown", async () => {
    await weir.publish("orders.7", "for the page");
    return shown.includes("orders.7: for the page");
  });
});

test("webhooks", async () => {
  process.env.SECRET = Buffer.from("a secret").toString("base64");
  process.env.OLD_SECRET = Buffer.from("an older secret").toString("base64");
  const [id, at, body] = ["job_1", String(Math.floor(Date.now() / 1000)), '{"id": 1}'];
  const signature = createHmac("sha256", "a secret").update(`${id}.${at}.${body}`).digest("base64");
  given.request = new Request(hubUrl(), { method: "POST", body, headers: { "webhook-id": id, "webhook-timestamp": at, "webhook-signature": `v1,${signature}` } });
  await example(13);
});
