// A worker over plain SQL, to copy. docs/sql.md describes the functions.
//
//     npm install && npm run build
//     node worker.js postgres://app@localhost/app queue
//
// Its role needs weir_work. Run it under a supervisor that restarts it when it exits.

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const LEASE = Number(process.env.WEIR_LEASE ?? 30); // seconds of silence after which other workers get the jobs
const SLOTS = 100; // jobs that run at once
const GRACE = Number(process.env.WEIR_GRACE ?? 10); // seconds that handlers have to finish when the process is told to stop

/** Thrown by a handler: the job fails, and is not tried again. */
export class Final extends Error {}

/** Thrown by a handler: the job runs again after this many seconds, without using up an attempt. */
export class Snooze extends Error {
  constructor(readonly seconds: number) {
    super();
  }
}

type Job = { event: "job" | "cancel"; token: string; id: string; kind: string; args: any; key: string | null; flow: string | null; attempt: number; max_attempts: number };
type End = { token: string; outcome: string; output?: string; error?: string; final?: boolean; delay?: number };

// A handler gets a job, and a signal that aborts when the job is cancelled; it returns the job's output. It may run twice for a job.
const handlers: Record<string, (job: Job, signal: AbortSignal) => Promise<unknown>> = {
  hello: async (job) => "hello, " + job.args.name.trim(),
  rest: async (job, signal) => void (await sleep(job.args.seconds * 1000, undefined, { signal })),
};

async function run(job: Job, signal: AbortSignal): Promise<End> {
  const token = job.token;
  try {
    const output = await handlers[job.kind]!(job, signal);
    return { token, outcome: "completed", output: typeof output === "string" ? output : JSON.stringify(output) };
  } catch (e) {
    if (e instanceof Snooze) return { token, outcome: "snoozed", delay: e.seconds };
    return { token, outcome: signal.aborted ? "cancelled" : "failed", error: String((e as Error)?.stack ?? e), final: e instanceof Final };
  }
}

async function main(url: string, queue: string) {
  const held = new Map<string, AbortController>(); // the jobs not yet recorded
  const ends = new Map<string, End>(); // and how they ended
  let db: pg.Client | undefined, worker: number | undefined, lost = false, pause = 100, chores = 0, stopAt = 0, lapse: NodeJS.Timeout | undefined;
  let fresh = false, wake = () => {}; // a job has ended
  for (const s of ["SIGTERM", "SIGINT"]) process.on(s, () => (stopAt ||= Date.now() + GRACE * 1000));
  for (;;) {
    try {
      if (!db) {
        db = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5000, keepAlive: true });
        db.on("error", () => {}); // the next query reports it
        db.on("notice", (notice) => console.error(notice.message));
        await db.connect();
      }
      if (!worker) {
        const name = `${hostname()}:${process.pid}`;
        worker = (await db.query("SELECT weir.start($1, $2, make_interval(secs => $3)) AS id", [name, [queue], LEASE])).rows[0].id as number;
        console.log(`worker ${worker} works ${queue}`);
      }
      if (held.size > 0 && !fresh) await new Promise<void>((resolve) => setTimeout((wake = resolve), 50));
      fresh = false;
      if (ends.size > 0) {
        const given = [...ends.values()];
        const { rows } = await db.query("SELECT token, refusal, detail FROM weir.record($1, $2)", [worker, JSON.stringify(given)]);
        for (const { token } of given) {
          const refused = rows.find((row) => row.token === token);
          if (refused?.refusal === "invalid") ends.set(token, { token, outcome: "failed", error: refused.detail });
          else if (refused?.refusal !== "busy") ends.delete(token), held.delete(token); // lost attempts run elsewhere
        }
      }
      if (stopAt && (held.size === 0 || Date.now() > stopAt)) {
        while (!(await db.query("SELECT weir.stop($1) AS stopped", [worker])).rows[0].stopped) await sleep(50);
        process.exit();
      }
      const sent = Date.now();
      const { rows } = await db.query<Job>(
        `SELECT event, token, id, kind, args, key, flow, attempt, max_attempts
         FROM weir.take($1, limits => $2, kinds => $3, held => $4, lost => $5, wait => make_interval(secs => $6))`,
        [worker, [stopAt ? 0 : SLOTS - held.size], Object.keys(handlers), [...held.keys()], lost, held.size > 0 || stopAt ? 0 : 0.5]);
      for (const job of rows) {
        if (job.event === "cancel") {
          held.get(job.token)!.abort();
          continue;
        }
        held.set(job.token, new AbortController());
        run(job, held.get(job.token)!.signal).then((end) => (ends.set(end.token, end), (fresh = true), wake()));
      }
      // A take leaves at least two thirds of the lease. When they are over the process exits, because a handler can't be interrupted.
      clearTimeout(lapse);
      lapse = setTimeout(() => process.exit(1), sent + LEASE * 600 - Date.now());
      lost = false, pause = 100;
      if (Date.now() > chores) {
        chores = Date.now() + 500;
        await db.query("CALL weir.chores()"); // not needed if Go workers run too
      }
    } catch (e) {
      const { code, message } = e as pg.DatabaseError;
      if (!worker || /^(WR|22|42)...$/.test(code ?? "")) { // fenced, or a permanent error
        console.error(`worker ${worker} ends: ${message}`);
        process.exit(1);
      }
      console.error(`worker ${worker}: ${message}`);
      db?.end().catch(() => {});
      db = undefined, lost = true;
      await sleep(pause);
      pause = Math.min(pause * 2, 2000);
    }
  }
}

await main(process.argv[2]!, process.argv[3]!);
