// A worker whose jobs write a row each: node exactly-once.js DATABASE_URL. Tests kill it.

import { terminated, Weir } from "@weir-pg/client";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.argv[2]!, max: 10 });
const weir = new Weir({ sql: pool });

await weir.work({
  queues: { killed: 20 },
  lease: 3,
  signal: terminated(),
  onError: () => {},
  handlers: {
    async effect({ n }, { job, complete }) {
      const client = await pool.connect();
      try {
        await client.query("BEGIN");
        await client.query("INSERT INTO done VALUES ($1, $2)", [n, job.attempt]);
        await complete(client);
        await client.query("COMMIT");
      } catch (error) {
        await client.query("ROLLBACK").catch(() => {});
        throw error;
      } finally {
        client.release();
      }
    },
    async plain({ n }) {
      await pool.query("INSERT INTO ran VALUES ($1)", [n]);
    },
  },
});
await pool.end();
