// A worker for the checks that workers in all languages pass: node worker.js DATABASE_URL QUEUE [pg | postgres]

import { setTimeout as sleep } from "node:timers/promises";
import { payload, terminated, Weir } from "@weir-pg/client";
import pg from "pg";
import postgres from "postgres";

const [url = "", queue = "", driver = "pg"] = process.argv.slice(2);
const onPg = driver === "pg";
// The checks end sessions at any moment. postgres.js, while it fetches types, ends the process for that.
const sql = onPg ? new pg.Pool({ connectionString: url }) : postgres(url, { onnotice: () => {}, max: 5, fetch_types: false });
const weir = new Weir({ sql, jobs: { hello: payload<{ name: string }>(), rest: payload<{ seconds: number }>() } });

await weir.work({
  queues: { [queue]: 100 },
  lease: Number(process.env.WEIR_LEASE),
  stopTimeout: Number(process.env.WEIR_GRACE),
  signal: terminated(),
  handlers: {
    hello: ({ name }) => "hello, " + name.trim(),
    rest: async ({ seconds }, { signal }) => void (await sleep(seconds * 1000, undefined, { signal })),
  },
});
await (onPg ? (sql as pg.Pool).end() : (sql as postgres.Sql).end({ timeout: 1 })); // which may wait for ever for a session that was ended
