// What works in Bun and Deno as it does in Node.js: a transaction, a worker over SQL and over a hub, a subscription. It writes "works".

import { payload, Weir } from "@weir-pg/client";
import { verifyWebhook } from "@weir-pg/client/webhook";
import pg from "pg";

const { DATABASE_URL, HUB_URL } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE_URL! });
const jobs = { job: payload<{ n: number }>() };
for (const [queue, weir] of Object.entries({ "on SQL": new Weir({ sql: pool, hub: HUB_URL!, jobs }), "at a hub": new Weir({ hub: HUB_URL!, jobs }) })) {
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
  const client = await pool.connect();
  await client.query("BEGIN");
  await weir.enqueue("job", { n: 99 }, { queue, tx: client });
  await client.query("COMMIT");
  client.release();
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
