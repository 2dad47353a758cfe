// What works in Bun and Deno as it does in Node.js: a transaction, a worker over SQL and over a hub, a subscription; and in Bun its own sql. It writes "works".

import { payload, type Sql, Weir } from "@weir-pg/client";
import { verifyWebhook } from "@weir-pg/client/webhook";
import pg from "pg";

const { DATABASE_URL, HUB_URL } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE_URL! });
const jobs = { job: payload<{ n: number }>() };
const ways: Record<string, Weir<typeof jobs>> = { "on SQL": new Weir({ sql: pool, hub: HUB_URL!, jobs }), "at a hub": new Weir({ hub: HUB_URL!, jobs }) };

type Transaction = (work: (tx: Sql) => Promise<unknown>) => Promise<unknown>;

let transaction: Transaction = async (work) => {
  const client = await pool.connect();
  await client.query("BEGIN");
  await work(client);
  await client.query("COMMIT");
  client.release();
};

const { Bun } = globalThis as { Bun?: { SQL: new (url: string) => Sql & { begin: Transaction } } };
if (Bun) {
  const sql = new Bun.SQL(DATABASE_URL!);
  ways["on Bun's sql"] = new Weir({ sql, hub: HUB_URL!, jobs });
  transaction = (work) => sql.begin(work);
}

for (const [queue, weir] of Object.entries(ways)) {
  const stop = new AbortController();
  const ran = new Set<number>();
  const working = weir.work({
    queues: { [queue]: 10 },
    handlers: {
      job({ n }) {
        ran.add(n);
        if (ran.size === 100) stop.abort();
      },
    },
    signal: stop.signal,
  });
  await weir.enqueueMany(Array.from({ length: 99 }, (_, n) => ({ kind: "job" as const, payload: { n }, queue })));
  await transaction((tx) => weir.enqueue("job", { n: 99 }, { queue, tx }));
  await working;
  for await (const event of weir.subscribe("channel", { onSubscribed: () => void weir.publish("channel", "hello") })) {
    if (event.type !== "message" || event.payload !== "hello") throw new Error(JSON.stringify(event));
    break;
  }
}
await verifyWebhook({ body: "", headers: {}, secret: "" }).then(
  () => Promise.reject(new Error("not signed")),
  () => {},
);
await pool.end();
console.log("works");
process.exit();
