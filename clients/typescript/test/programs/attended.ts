// A worker with the longest lease, whose jobs never end: node attended.js DATABASE_URL. A test kills it.

import { Weir } from "@weir-pg/client";
import pg from "pg";

const weir = new Weir({ sql: new pg.Pool({ connectionString: process.argv[2]! }) });
await weir.work({ queues: { attended: 1 }, lease: 300, handlers: { sleep: () => new Promise(() => {}) } });
