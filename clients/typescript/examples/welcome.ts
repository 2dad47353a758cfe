import { defineJobs, terminated, Weir } from "@weir-pg/client";
import pg from "pg";
import { z } from "zod";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const jobs = defineJobs({
  welcome: { schema: z.object({ account: z.number() }), queue: "mail" },
});
const weir = new Weir({ sql: pool, jobs });

const { id } = await weir.enqueue("welcome", { account: 7 });
console.log(`job ${id} is enqueued`);

await weir.work({
  queues: { mail: 8 },
  handlers: {
    welcome: async ({ account }, { job }) => console.log(`job ${job.id} welcomes account ${account}`),
  },
  signal: terminated(),
});
await pool.end();
