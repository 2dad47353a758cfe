import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Weir } from "@weir-pg/client";
import { bouncerUrl, databaseUrl, pool as makePool, until } from "./server.js";

const pool = makePool();
after(() => pool.end());
const enqueueMany = async (...args: Parameters<typeof weir.enqueueMany>) => (await weir.enqueueMany(...args)).map(({ id }) => id);
const weir = new Weir({ sql: pool });

/** Starts workers, two at a time, and kills one after another, until all jobs have ended. */
async function killAndKill(url: string, jobs: number) {
  await pool.query("DROP TABLE IF EXISTS done, ran");
  await pool.query("CREATE TABLE done (n integer, attempt integer); CREATE TABLE ran (n integer)");
  await pool.query("SELECT weir.set('killed', 'backoff', '100 ms'), weir.set('killed', 'backoff_limit', '200 ms')");
  const ids = await enqueueMany(Array.from({ length: jobs }, (_, n) => ({ kind: n % 2 ? "plain" : "effect", payload: { n }, queue: "killed" })));
  const started: ChildProcess[] = [];
  const start = () => {
    const child = spawn(process.execPath, [fileURLToPath(new URL("programs/exactly-once.js", import.meta.url)), url], { stdio: "inherit" });
    started.push(child);
    return child;
  };
  const count = async (table: string) => Number((await pool.query(`SELECT count(DISTINCT n) FROM ${table}`)).rows[0].count);
  const workers = [start(), start()];
  try {
    for (let kills = 0; kills < 4; kills++) {
      const before = (await count("ran")) + (await count("done"));
      await until("jobs run", async () => (await count("ran")) + (await count("done")) >= Math.min(jobs, before + jobs / 10));
      workers[kills % 2]!.kill("SIGKILL");
      workers[kills % 2] = start();
    }
    for (const id of ids) await until(`job ${id} has completed`, async () => (await weir.job(id))?.state === "completed");
    for (const worker of workers) worker.kill("SIGTERM");
    for (const worker of workers) assert.equal(await new Promise((resolve) => (worker.exitCode === null ? worker.once("exit", resolve) : resolve(worker.exitCode))), 0);
  } finally {
    for (const worker of started) worker.kill("SIGKILL");
  }
  assert.equal(await count("ran"), jobs / 2, "jobs without a transaction have run, once or more");
  const { rows } = await pool.query("SELECT count(*)::integer AS effects, count(DISTINCT n)::integer AS jobs FROM done");
  assert.deepEqual(rows, [{ effects: jobs / 2, jobs: jobs / 2 }], "effects of jobs that complete in a transaction");
}

test("workers that are killed lose no job, and effects in a transaction happen once", () => killAndKill(databaseUrl, 400));

test("so they do through PgBouncer", () => killAndKill(bouncerUrl(), 400));

test("the jobs of a killed worker need not wait for its lease, which here is longer than this test waits", async () => {
  const { id } = await weir.enqueue("sleep", {}, { queue: "attended" });
  const program = [fileURLToPath(new URL("programs/attended.js", import.meta.url)), databaseUrl];
  const first = spawn(process.execPath, program, { stdio: "inherit" });
  await until("the job runs", async () => (await weir.job(id))?.state === "running");
  first.kill("SIGKILL");
  const second = spawn(process.execPath, program, { stdio: "inherit" });
  try {
    await until("the job runs again", async () => (await weir.job(id))?.attempt === 2);
  } finally {
    second.kill("SIGKILL");
  }
});
