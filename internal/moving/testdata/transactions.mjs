// Enqueues an account in a transaction that commits, and one in a transaction that doesn't.
import pg from "pg";
import { enqueueWelcome } from "./enqueue.mjs";

const client = new pg.Client(process.env.DATABASE_URL);
await client.connect();
for (const [account, end] of [[Number(process.argv[2]), "COMMIT"], [Number(process.argv[2]) + 1, "ROLLBACK"]]) {
  await client.query("BEGIN");
  await enqueueWelcome(client, account);
  await client.query(end);
}
process.exit();
