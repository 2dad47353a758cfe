// How much memory a worker needs for a million jobs: DATABASE_URL=… node --expose-gc memory.mjs [jobs]

import { connect, weir } from "./engines.mjs";

const n = Number(process.argv[2] ?? 1_000_000);
const pool = connect(process.env.DATABASE_URL);
const say = (done) => {
  globalThis.gc?.();
  const { rss, heapUsed } = process.memoryUsage();
  console.log(`${String(done).padStart(8)} jobs: ${(rss / 2 ** 20).toFixed(0)} MiB resident, ${(heapUsed / 2 ** 20).toFixed(1)} MiB of heap`);
};
const seconds = await weir({ url: process.env.DATABASE_URL, hub: process.env.HUB_URL, pool, n, concurrency: 500, each: (done) => done % (n / 10) === 1 && say(done) });
say(n);
console.log(`${Math.round(n / seconds)} jobs/s`);
await pool.end();
process.exit();
