// What the pages' handlers call: it keeps a ledger of who was welcomed.
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 4 });

export async function welcome(account) {
  if (account >= 20000) {
    while ((await pool.query("SELECT FROM gate")).rowCount === 0) await sleep(50);
  } else if (account >= 10000) {
    throw new Error("mailbox full");
  }
  await pool.query("INSERT INTO ledger (account) VALUES ($1)", [account]);
}
