// The queues that are measured. Each is set up as its documentation says for speed: jobs are fetched, and their ends recorded, many at once.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { PgBoss } from "pg-boss";
import WebSocket from "ws";
import { Weir } from "../dist/index.js";

const BATCH = 1000;

/** How long it takes until `wanted` jobs have run, and are recorded as completed. */
class Watch {
  #ran = 0;
  #all;
  #resolve;

  constructor(wanted) {
    this.wanted = wanted;
    this.#all = new Promise((resolve) => (this.#resolve = resolve));
  }

  ran(n = 1) {
    this.#ran += n;
    if (this.#ran >= this.wanted) this.#resolve();
  }

  get count() {
    return this.#ran;
  }

  async until(recorded) {
    await this.#all;
    while (!(await recorded())) await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

export async function weir({ url, pool, n, concurrency, hub, polls, each = () => {} }) {
  const queue = `bench ${Math.random()}`;
  const direct = new Weir({ sql: pool });
  const client = hub ? new Weir({ hub, WebSocket: polls ? false : WebSocket }) : direct;
  for (let done = 0; done < n; done += BATCH) {
    await direct.enqueueMany(Array.from({ length: Math.min(BATCH, n - done) }, (_, i) => ({ kind: "noop", payload: { n: done + i }, queue })));
  }
  const watch = new Watch(n);
  const stop = new AbortController();
  const begin = performance.now();
  const working = client.work({
    queues: { [queue]: concurrency },
    handlers: {
      noop() {
        watch.ran();
        each(watch.count);
      },
    },
    signal: stop.signal,
  });
  await watch.until(async () => {
    const { rows } = await pool.query("SELECT available + running AS n FROM weir.queues() WHERE name = $1", [queue]);
    return rows[0].n === "0";
  });
  const seconds = (performance.now() - begin) / 1000;
  stop.abort();
  await working;
  return seconds;
}

export async function graphileWorker({ url, pool, n, concurrency }) {
  const utils = await makeWorkerUtils({ connectionString: url });
  await utils.migrate();
  for (let done = 0; done < n; done += BATCH) {
    await pool.query("SELECT graphile_worker.add_job('noop', json_build_object('n', g)) FROM generate_series($1::integer, $2) g", [done, Math.min(n, done + BATCH) - 1]);
  }
  await pool.query("VACUUM ANALYZE graphile_worker._private_jobs");
  const watch = new Watch(n);
  const begin = performance.now();
  const runner = await run({
    connectionString: url,
    taskList: { noop: () => watch.ran() },
    noHandleSignals: true,
    logger: new Logger(() => () => {}), // a line for each job would cost more than the job
    preset: { worker: { concurrentJobs: concurrency, maxPoolSize: 10, pollInterval: 2000, localQueue: { size: Math.max(500, concurrency) }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
  });
  await watch.until(async () => (await pool.query("SELECT NOT EXISTS (SELECT FROM graphile_worker._private_jobs) AS done")).rows[0].done);
  const seconds = (performance.now() - begin) / 1000;
  await runner.stop();
  await utils.release();
  return seconds;
}

export async function pgBoss({ url, pool, n, concurrency }) {
  const boss = new PgBoss({ connectionString: url, max: 10 });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  const queue = `bench-${Date.now()}`;
  await boss.createQueue(queue);
  for (let done = 0; done < n; done += BATCH) {
    await boss.insert(queue, Array.from({ length: Math.min(BATCH, n - done) }, (_, i) => ({ data: { n: done + i } })));
  }
  await pool.query("VACUUM ANALYZE pgboss.job");
  const watch = new Watch(n);
  const begin = performance.now();
  // Each worker waits for half a second, its least, between two batches.
  for (let workers = 0; workers < 10; workers++) await boss.work(queue, { batchSize: concurrency, pollingIntervalSeconds: 0.5 }, async (jobs) => watch.ran(jobs.length));
  await watch.until(async () => (await pool.query("SELECT NOT EXISTS (SELECT FROM pgboss.job WHERE name = $1 AND state < 'completed') AS done", [queue])).rows[0].done);
  const seconds = (performance.now() - begin) / 1000;
  await boss.stop({ graceful: true, timeout: 5000 });
  return seconds;
}

export const connect = (url) => new pg.Pool({ connectionString: url, max: 4 });
