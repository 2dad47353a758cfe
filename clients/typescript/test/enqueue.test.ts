import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { defineJobs, type EnqueueOptions, InvalidPayload, payload, type Sql, Weir, WeirError } from "@weir-pg/client";
import { PrismaPg } from "@prisma/adapter-pg";
import { drizzle as drizzlePg } from "drizzle-orm/node-postgres";
import { drizzle as drizzlePostgres } from "drizzle-orm/postgres-js";
import { CamelCasePlugin, Kysely, PostgresDialect } from "kysely";
import pg from "pg";
import postgres from "postgres";
import { DataSource } from "typeorm";
import * as v from "valibot";
import { z } from "zod";
import { PrismaClient } from "./prisma/generated/client.js";
import { databaseUrl, pool as makePool } from "./server.js";

const jobs = defineJobs({
  welcome: { schema: z.object({ account: z.number(), note: z.string().optional() }), queue: "mail", priority: 1 },
  remind: v.object({ account: v.number() }),
  report: payload<{ format: "pdf" | "html"; at?: Date }>(),
});

const pool = makePool();
const sql = postgres(databaseUrl, { onnotice: () => {} });
const kysely = new Kysely<{ account: { id: number } }>({ dialect: new PostgresDialect({ pool }), plugins: [new CamelCasePlugin()] });
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: databaseUrl }) });
const typeorm = await new DataSource({ type: "postgres", url: databaseUrl }).initialize();
const weir = new Weir({ sql: pool, jobs });
await pool.query("CREATE TABLE account (id bigint PRIMARY KEY)");
after(async () => {
  await Promise.all([pool.end(), sql.end(), prisma.$disconnect(), typeorm.destroy()]);
});

class Rollback extends Error {}

type Way = (work: (tx: Sql) => Promise<void>) => Promise<unknown>;

const ways: Record<string, Way> = {
  async pg(work) {
    const client = await pool.connect();
    try {
      await client.query("BEGIN");
      await work(client);
      await client.query("COMMIT");
    } catch (error) {
      await client.query("ROLLBACK");
      throw error;
    } finally {
      client.release();
    }
  },
  "postgres.js": (work) => sql.begin((tx) => work(tx)),
  "Drizzle on pg": (work) => drizzlePg({ client: pool }).transaction((tx) => work(tx)),
  "Drizzle on postgres.js": (work) => drizzlePostgres({ client: sql }).transaction((tx) => work(tx)),
  Kysely: (work) => kysely.transaction().execute((tx) => work(tx)),
  Prisma: (work) => prisma.$transaction((tx) => work(tx)),
  TypeORM: (work) => typeorm.transaction((tx) => work(tx)),
  "a function": (work) => sql.begin((tx) => work((text, values) => tx.unsafe(text, values))),
};

for (const [name, way] of Object.entries(ways)) {
  describe(`in a transaction of ${name}`, () => {
    test("a job is there after the commit", async () => {
      let id = "";
      await way(async (tx) => {
        ({ id } = await weir.enqueue("welcome", { account: 7 }, { tx }));
        assert.equal(await weir.job(id), undefined, "seen before the commit");
      });
      const job = await weir.job(id);
      assert.deepEqual([job?.state, job?.queue, job?.priority, job?.kind, job?.args, job?.maxAttempts], ["available", "mail", 1, "welcome", { account: 7 }, 25]);
    });

    test("a job is not there after a rollback", async () => {
      let id = "";
      const ended = way(async (tx) => {
        ({ id } = await weir.enqueue("welcome", { account: 7 }, { tx }));
        throw new Rollback();
      });
      await assert.rejects(ended, Rollback);
      assert.equal(await weir.job(id), undefined);
    });

    test("every option arrives, and so does every character", async () => {
      const nasty = "'; DROP TABLE account; -- \\ \\' \" $1 $2 ${x} ? :name {\u2028} \u{1F600} ä\n\t";
      const runAt = new Date("2099-03-04T05:06:07.089Z");
      let id = "";
      await way(async (tx) => {
        ({ id } = await weir.enqueue("welcome", { account: 8, note: nasty }, { tx, queue: "other", priority: 4, runAt, key: nasty, maxAttempts: 3, meta: { nasty } }));
      });
      const job = await weir.job(id);
      assert.deepEqual(
        [job?.state, job?.queue, job?.priority, job?.args, job?.runAt, job?.key, job?.maxAttempts, job?.meta],
        ["scheduled", "other", 4, { account: 8, note: nasty }, runAt, nasty, 3, { nasty }],
      );
    });

    test("unique jobs say whether they are duplicates", async () => {
      await way(async (tx) => {
        const first = await weir.enqueue("report", { format: "pdf" }, { tx, queue: name, unique: true });
        const second = await weir.enqueue("report", { format: "pdf" }, { tx, queue: name, unique: { until: "started" } });
        const other = await weir.enqueue("report", { format: "html" }, { tx, queue: name, unique: { fields: ["format"], within: 60 } });
        const same = await weir.enqueue("remind", { account: 1 }, { tx, queue: name, unique: { key: "k", wait: true } });
        const replacing = await weir.enqueue("remind", { account: 2 }, { tx, queue: name, unique: { key: "k", replace: true } });
        assert.deepEqual([first.duplicate, second.duplicate, other.duplicate, same.duplicate, replacing.duplicate], [false, true, false, false, true]);
        assert.equal(second.id, first.id);
        assert.notEqual(replacing.id, same.id);
      });
    });

    test("many are enqueued in their order, all or none", async () => {
      let ids: string[] = [];
      await way(async (tx) => {
        const all = await weir.enqueueMany(
          [
            { kind: "welcome", payload: { account: 1 } },
            { kind: "remind", payload: { account: 2 }, queue: "other", runAt: new Date("2099-01-01"), unique: { key: `${name} many`, within: 3600 } },
            { kind: "report", payload: { format: "pdf" } },
            { kind: "remind", payload: { account: 3 }, queue: "other", unique: { key: `${name} many`, within: 3600 } },
          ],
          { tx },
        );
        assert.deepEqual(all.map(({ duplicate }) => duplicate), [false, false, false, true]);
        assert.equal(all[3]!.id, all[1]!.id);
        ids = all.slice(0, 3).map(({ id }) => id);
      });
      const found = await Promise.all(ids.map((id) => weir.job(id)));
      assert.deepEqual(found.map((job) => [job?.kind, job?.queue, job?.state]), [["welcome", "mail", "available"], ["remind", "other", "scheduled"], ["report", "default", "available"]]);
    });

    test("the database's refusals are errors with code and hint", async () => {
      const refused = way((tx) => weir.enqueue("welcome", { account: 1 }, { tx, queue: "q".repeat(300) }).then(() => {}));
      await assert.rejects(refused, (error) => error instanceof WeirError && error.code === "22023" && /queue/.test(error.message));
    });
  });
}

test("without a transaction, a job is enqueued at once, by whatever runs SQL", async () => {
  for (const one of [pool, sql, drizzlePg({ client: pool }), kysely, prisma]) {
    const weir = new Weir({ sql: one, jobs });
    const { id } = await weir.enqueue("report", { format: "html" });
    assert.equal((await weir.job(id))?.state, "available");
    assert.equal(await weir.cancel(id), "cancelled");
    assert.equal(await weir.retry(id), "available");
  }
});

test("a missing schema is refused with what installs it", async () => {
  const url = new URL(databaseUrl);
  url.pathname = "/postgres";
  const empty = new pg.Pool({ connectionString: url.href });
  try {
    await assert.rejects(new Weir({ sql: empty, jobs }).enqueue("report", { format: "pdf" }), (error) => error instanceof WeirError && /weir migrate up/.test(error.hint ?? ""));
  } finally {
    await empty.end();
  }
});

test("a missing privilege is refused with the role that has it", async () => {
  const role = `unprivileged_${process.pid}`;
  await pool.query(`CREATE ROLE ${role}`);
  const client = await pool.connect();
  try {
    await client.query(`SET ROLE ${role}`);
    const weir = new Weir({ sql: client, jobs });
    await assert.rejects(weir.enqueue("report", { format: "pdf" }), (error) => error instanceof WeirError && error.code === "42501" && /weir_enqueue/.test(error.hint ?? ""));
    await client.query(`RESET ROLE; GRANT weir_enqueue TO ${role}; SET ROLE ${role}`);
    await weir.enqueue("report", { format: "pdf" });
    for (const [call, needed] of [[() => weir.cancel("1"), "weir_work"], [() => weir.retry("1"), "weir_operate"], [() => weir.publish("a", "b"), "weir_publish"]] as const) {
      await assert.rejects(call(), (error) => error instanceof WeirError && error.hint === `grant this user the role ${needed}`);
    }
  } finally {
    client.release(true);
    await pool.query(`DROP ROLE ${role}`);
  }
});

test("a payload that does not fit its schema is refused before anything is sent", async () => {
  await assert.rejects(weir.enqueue("welcome", { account: "7" } as never), (error) => error instanceof InvalidPayload && /welcome.*account/.test(error.message));
  await assert.rejects(weir.enqueue("remind", {} as never), InvalidPayload);
  await assert.rejects(weir.enqueue("unknown" as never, {} as never), /no job named unknown/);
});

test("what PostgreSQL can't store is refused without costing the transaction", async () => {
  const client = await pool.connect();
  await client.query("BEGIN");
  await assert.rejects(weir.enqueue("welcome", { account: 1, note: "a\0b" }, { tx: client }), /the payload of welcome\.note contains the character NUL/);
  await assert.rejects(weir.enqueue("welcome", { account: 1, note: "\ud800" }, { tx: client }), /surrogate/);
  await assert.rejects(weir.enqueue("report", { format: 1n as never }, { tx: client }), /can't be written as JSON/);
  await assert.rejects(weir.enqueue("report", { format: "pdf" }, { tx: client, runAt: new Date(NaN) }), /runAt is an invalid date/);
  const report = (options: EnqueueOptions) => weir.enqueue("report", { format: "pdf" }, { tx: client, ...options });
  await assert.rejects(report({ key: "a\0b" }), /the key of report contains the character NUL/);
  await assert.rejects(report({ key: "\ud800" }), /the key of report contains half of a surrogate pair/);
  await assert.rejects(report({ queue: "a\0b" }), /the queue of report contains the character NUL/);
  await assert.rejects(report({ once: "a\0b" }), /the once of report contains the character NUL/);
  await assert.rejects(report({ unique: { key: "a\0b" } }), /the unique_key of report contains the character NUL/);
  await assert.rejects(report({ unique: { fields: ["a\0b"] } }), /the fields of report\.0 contains the character NUL/);
  await assert.rejects(new Weir({ sql: pool }).enqueue("a\0b", {}, { tx: client }), /the name of a job contains the character NUL/);
  await assert.rejects(weir.publish("a\0b", "", { tx: client }), /the channel contains the character NUL/);
  await assert.rejects(weir.publish("a", "a\0b", { tx: client }), /the payload of a message contains the character NUL/);
  const { id } = await weir.enqueue("welcome", { account: 1, note: "\\u0000" }, { tx: client });
  await client.query("COMMIT");
  client.release();
  assert.deepEqual((await weir.job(id))?.args, { account: 1, note: "\\u0000" });
});

test("numbers out of range are refused with the range before anything is sent", async () => {
  const untyped = weir as unknown as { enqueue(...args: unknown[]): Promise<unknown>; enqueueMany(jobs: unknown[]): Promise<unknown> };
  const wrong = { name: "RangeError", message: "weir: priority is 9: pass a whole number from 1 to 4" };
  await assert.rejects(untyped.enqueue("welcome", { account: 7 }, { priority: 9 }), wrong);
  await assert.rejects(untyped.enqueueMany([{ kind: "welcome", payload: { account: 7 }, priority: 9 }]), wrong);
  await assert.rejects(weir.enqueue("welcome", { account: 7 }, { maxAttempts: 1.5 }), { message: /maxAttempts is 1\.5: pass a whole number from 1 to 1000/ });
});

test("an option that there is not is refused with those that there are", async () => {
  const any = weir as unknown as Record<"enqueue" | "enqueueMany" | "work" | "cancel" | "retry" | "publish", (...args: unknown[]) => Promise<unknown>>;
  const wrong = (what: string, name: string, some: string) => ({ name: "TypeError", message: new RegExp(`^weir: ${what} has no option "${name}": it has .*${some}`) });
  await assert.rejects(any.enqueue("welcome", { account: 7 }, { maxAttemps: 3 }), wrong("enqueue", "maxAttemps", "maxAttempts.*, tx"));
  await assert.rejects(any.enqueue("welcome", { account: 7 }, { unique: { field: ["account"] } }), wrong("unique", "field", "fields"));
  await assert.rejects(any.enqueueMany([{ kind: "welcome", payload: { account: 7 } }, { kind: "welcome", payload: { account: 7 }, tx: pool }]), wrong("a job", "tx", "kind, payload, queue"));
  await assert.rejects(any.enqueueMany([], { tz: pool }), wrong("this call", "tz", "tx"));
  for (const call of ["cancel", "retry", "publish"] as const) await assert.rejects(call === "publish" ? any[call]("a", "b", { tz: pool }) : any[call]("1", { tz: pool }), wrong("this call", "tz", "tx"));
  await assert.rejects(any.work({ queues: { q: 1 }, handlers: { report: () => {} }, concurrency: 8 }), wrong("work", "concurrency", "queues, handlers"));
  assert.throws(() => new Weir({ sql: pool, url: "" } as never), wrong("a client", "url", "sql, hub"));
  assert.throws(() => new Weir({ sql: pool, jobs: { welcome: { schema: payload<object>(), retries: 3 } } as never }), wrong("the definition of welcome", "retries", "schema, queue"));
  assert.throws(() => new Weir({ hub: "http://127.0.0.1:9" }).subscribe("a", { from: "1" } as never), wrong("subscribe", "from", "after"));
});

test("what is no transaction is refused, and nothing is enqueued without one", async () => {
  const any = weir as unknown as Record<"enqueue" | "enqueueMany" | "cancel" | "retry" | "publish", (...args: unknown[]) => Promise<unknown>>;
  const queue = "no transaction";
  const client = await pool.connect();
  await assert.rejects(any.enqueue("welcome", { account: 7 }, client), { name: "TypeError", message: /^weir: enqueue got an object of Client in place of its options: pass an object that has any of .*tx$/ });
  client.release();
  for (const options of [null, "tx", [client]]) await assert.rejects(any.enqueue("welcome", { account: 7 }, options), /^TypeError: weir: enqueue got .* in place of its options/);
  for (const tx of [undefined, null]) {
    const wrong = { name: "TypeError", message: `weir: tx is ${tx}: pass your transaction, or leave tx out` };
    await assert.rejects(any.enqueue("welcome", { account: 7 }, { queue, tx }), wrong);
    await assert.rejects(any.enqueueMany([{ kind: "welcome", payload: { account: 7 }, queue }], { tx }), wrong);
    await assert.rejects(any.publish("a", "b", { tx }), wrong);
    for (const call of ["cancel", "retry"] as const) await assert.rejects(any[call]("1", { tx }), wrong);
  }
  assert.deepEqual((await pool.query("SELECT FROM weir.jobs('available') WHERE queue = $1", [queue])).rows, []);
});

test("a definition that is wrong is refused with the job's name and what is wanted", () => {
  const schema = payload<object>();
  for (const [definition, said] of [
    [{ schema, queu: "mail" }, 'the definition of welcome has no option "queu": it has schema, queue'],
    [{ schema, priority: "1" }, 'the priority of welcome is "1": pass a whole number from 1 to 4'],
    [{ schema, priority: 9 }, "the priority of welcome is 9: pass a whole number from 1 to 4"],
    [{ schema, maxAttempts: 0 }, "maxAttempts of welcome is 0: pass a whole number from 1 to 1000"],
    [{ schema, timeout: "60" }, 'the timeout of welcome is "60": pass a number of seconds'],
    [{ schema, timeout: NaN }, "the timeout of welcome is NaN: pass a number of seconds"],
    [{ schema, queue: 7 }, "the queue of welcome is 7: pass the name of a queue"],
    [{ schema, unique: "a" }, 'unique of welcome got "a" in place of its options'],
    [{ schema, unique: { field: ["a"] } }, 'unique of welcome has no option "field": it has key, fields'],
    [{ schema: { account: "number" } }, "the schema of welcome is { account }: pass a Standard Schema"],
    [{ queue: "mail" }, "the schema of welcome is undefined: pass a Standard Schema"],
    ["mail", 'the definition of welcome got "mail" in place of its options: pass an object that has any of schema, queue'],
  ] as const) {
    for (const define of [defineJobs, (jobs: never) => new Weir({ sql: pool, jobs })]) {
      assert.throws(() => define({ welcome: definition } as never), (error) => (error instanceof TypeError || error instanceof RangeError) && error.message.startsWith(`weir: ${said}`), said);
    }
  }
  assert.throws(() => defineJobs([schema] as never), /jobs is an array of 1: pass an object/);
});

test("what can't be meant is refused with the value, and with what is wanted", async () => {
  const any = weir as unknown as Record<"enqueue" | "enqueueMany" | "publish" | "work", (...args: unknown[]) => Promise<unknown>>;
  const handlers = { report: () => {} };
  const queues = { mail: 1 };
  for (const [call, said] of [
    [() => any.enqueue("welcome", { account: 7 }, { runAt: "tomorrow" }), 'runAt is "tomorrow": pass a Date'],
    [() => any.enqueue("welcome", { account: 7 }, { priority: "1" }), 'priority is "1": pass a whole number from 1 to 4'],
    [() => any.enqueue("welcome", { account: 7 }, { unique: "account" }), 'unique got "account" in place of its options: pass an object'],
    [() => any.enqueueMany({ kind: "welcome", payload: { account: 7 } }), "what enqueueMany got is { kind, payload }: pass an array of jobs"],
    [() => any.publish("a.b", { x: 1 }), "the payload of a message is { x }: pass a text"],
    [() => any.publish(7, "text"), "the channel is 7: pass its name"],
    [() => any.work({ handlers }), "queues is undefined: pass how many jobs of each queue run at once"],
    [() => any.work({ handlers, queues: ["mail"] }), "queues is an array of 1: pass how many"],
    [() => any.work({ handlers, queues: { mail: "8" } }), 'queue mail is to run "8" jobs at once: pass a number from 1'],
    [() => any.work({ queues }), "handlers is undefined: pass a function for each kind"],
    [() => any.work({ queues, handlers: { report: "run" } }), 'the handler of report is "run": pass a function'],
    [() => any.work({ queues, handlers, signal: new AbortController() }), "signal is an object of AbortController: pass an AbortSignal"],
    [() => any.work({ queues, handlers, timeout: "60" }), 'timeout is "60": pass a number of seconds'],
    [() => any.work({ queues, handlers, onError: console }), "onError is "],
    [() => new Weir({ hub: "hub.example.com" }), 'hub is "hub.example.com": pass the whole address of a hub, such as https://'],
    [() => new Weir({ hub: "hub:8080" }), 'hub is "hub:8080": pass the whole address'],
    [() => new Weir({ hub: "https://hub.example.com" }).subscribe("a", { signal: new AbortController() as never }), "signal is an object of AbortController: pass an AbortSignal"],
    [() => new Weir("postgres://" as never), 'a client got "postgres://" in place of its options'],
  ] as [() => unknown, string][]) {
    await assert.rejects(async () => call(), (error) => (error instanceof TypeError || error instanceof RangeError) && error.message.startsWith(`weir: ${said}`), said);
  }
  assert.throws(() => new Weir({ sql: databaseUrl as never }), (error) => error instanceof TypeError && /^weir: a text can't run SQL: pass .*new pg\.Pool/.test(error.message) && !error.message.includes(databaseUrl));
});

test("a database that can't be reached is unavailable, whatever the driver says of it", async () => {
  const url = "postgres://user@127.0.0.1:9/none";
  const own = makePool(url);
  const other = postgres(url, { onnotice: () => {} });
  const unreachable = new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) });
  const away = { pg: own, "postgres.js": other, Drizzle: drizzlePg({ client: own }), Kysely: new Kysely({ dialect: new PostgresDialect({ pool: own }) }), Prisma: unreachable, localhost: makePool(url.replace("127.0.0.1", "localhost")) };
  for (const [name, sql] of Object.entries(away)) {
    await assert.rejects(new Weir({ sql }).enqueue("any", {}), (error) => error instanceof WeirError && error.code === "unavailable" && /can't be reached: .*(ECONNREFUSED|DatabaseNotReachable)/.test(error.message) && error.cause !== undefined, name);
  }
  await Promise.all([own.end(), other.end(), unreachable.$disconnect(), away.localhost.end()]);
});

test("a connection that can't run SQL is refused by name", async () => {
  await assert.rejects(weir.enqueue("report", { format: "pdf" }, { tx: {} as never }), /\{ {2}\} can't run SQL/);
  assert.throws(() => new Weir({}), /pass sql/);
  await assert.rejects(new Weir({ sql: kysely, jobs }).work({ queues: { q: 1 }, handlers: { report: () => {} } }), /sessions of its own/);
});

test("a pg client without a pool will do", async () => {
  const client = new pg.Client(databaseUrl);
  await client.connect();
  const { id } = await new Weir({ sql: client }).enqueue("anything", { at: all });
  assert.deepEqual((await weir.job(id))?.args, { at: all });
  await client.end();
});

const all = [null, true, 1.5, "x", { y: [] }];
