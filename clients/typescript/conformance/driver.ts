// The driver with which the conformance suite plays its scripts: ../../conformance/README.md.

import { createInterface } from "node:readline";
import { Final, Interrupted, RetryIn, Weir, WeirError, type Context, type EnqueueOptions, type Unique } from "@weir-pg/client";
import pg from "pg";
import WebSocket from "ws";

type Fields = Record<string, any>;

class Refused extends Error {
  constructor(readonly code: string, message: string) {
    super(message);
  }
}

const { WEIR_VIA: via = "sql", DATABASE_URL, WEIR_HUB_URL, WEIR_POOL = "4", WEIR_POLLS } = process.env;
const overSql = via === "sql";
const pool = overSql ? new pg.Pool({ connectionString: DATABASE_URL, max: Number(WEIR_POOL), connectionTimeoutMillis: 10_000 }) : undefined;
pool?.on("error", () => {}); // scripts end sessions
const weir = new Weir({
  ...(pool && { sql: pool }),
  ...(WEIR_HUB_URL && { hub: WEIR_HUB_URL, WebSocket: WEIR_POLLS ? false : (WebSocket as never) }),
});

const say = (line: object) => void process.stdout.write(JSON.stringify(line) + "\n");

/** Things that commands name by a number. */
class Numbered<T> {
  #last = 0;
  readonly #all = new Map<number, T>();

  add(one: T): number {
    this.#all.set(++this.#last, one);
    return this.#last;
  }

  find(n: number, what: string): T {
    const one = this.#all.get(n);
    if (one === undefined) throw new Refused("not_found", `there is no ${what} ${n}`);
    return one;
  }

  take(n: number, what: string): T {
    const one = this.find(n, what);
    this.#all.delete(n);
    return one;
  }
}

const transactions = new Numbered<pg.PoolClient>();
const runs = new Numbered<{ context: Context; end(how: Fields): void }>();
const subscriptions = new Numbered<AbortController>();
let worker: AbortController | undefined;

const within = (tx: number | undefined) => (tx === undefined ? {} : { tx: transactions.find(tx, "transaction") });

function options({ queue, priority, run_at, max_attempts, meta, key, flow, unique }: Fields): EnqueueOptions {
  return {
    queue,
    ...(priority !== undefined && { priority }),
    ...(run_at !== undefined && { runAt: new Date(run_at) }),
    ...(max_attempts !== undefined && { maxAttempts: max_attempts }),
    ...(meta !== undefined && { meta }),
    ...(key !== undefined && { key }),
    ...(flow !== undefined && { flow }),
    ...(unique !== undefined && { unique: unique as Unique }),
  };
}

/** A handler of all kinds: it says that it was called, and does what it is told. */
async function handler(args: unknown, context: Context) {
  let interrupted = (_: unknown) => {};
  let end = (_: Fields) => {};
  const told = new Promise<Fields>((resolve, reject) => {
    end = resolve;
    interrupted = reject;
  });
  const run = runs.add({ context, end });
  const { job, signal } = context;
  const abort = () => {
    runs.take(run, "run");
    say({ event: "interrupted", run, reason: (signal.reason as Interrupted).why });
    interrupted(signal.reason);
  };
  signal.addEventListener("abort", abort);
  say({
    event: "job",
    run,
    job: {
      id: Number(job.id), queue: job.queue, priority: job.priority, kind: job.kind, args, meta: job.meta, key: job.key, flow: job.flow === null ? null : Number(job.flow),
      attempt: job.attempt, max_attempts: job.maxAttempts, enqueued_at: job.enqueuedAt.toISOString(),
    },
  });
  const { how, output, error, delay, sql, then } = await told;
  signal.removeEventListener("abort", abort);
  runs.take(run, "run");
  switch (how) {
    case "return":
      return output;
    case "raise":
      throw new Error(error);
    case "fail":
      throw new Final(error);
    case "retry_after":
      throw new RetryIn(delay, error);
    case "snooze":
      return context.snooze(delay);
    case "complete":
      return complete(context, sql, output, then, error);
    default:
      throw new Error(`a handler can't end by ${how}`);
  }
}

async function complete({ complete }: Context, sql: string, output: unknown, then: string, error: string) {
  const client = await pool!.connect();
  client.on("error", () => {}); // the next statement reports it
  try {
    await client.query("BEGIN");
    await client.query(sql);
    await complete(client, output);
    if (then !== "commit") throw new Error(error);
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK").catch(() => {});
    if (then !== "rollback") throw error;
  } finally {
    client.release();
  }
}

const commands: Record<string, (fields: Fields) => object | Promise<object>> = {
  async enqueue({ kind, args = {}, tx, ...rest }) {
    const { id, duplicate } = await weir.enqueue(kind, args, { ...options(rest), ...within(tx) });
    return { id: Number(id), duplicate };
  },
  async enqueue_many({ jobs, tx }) {
    const all = await weir.enqueueMany((jobs as Fields[]).map(({ kind, args = {}, ...rest }) => ({ kind, payload: args, ...options(rest) })), within(tx));
    return { jobs: all.map(({ id, duplicate }) => ({ id: Number(id), duplicate })) };
  },
  async begin() {
    const client = await pool!.connect();
    client.on("error", () => {});
    await client.query("BEGIN");
    return { tx: transactions.add(client) };
  },
  async sql({ tx, sql }) {
    await transactions.find(tx, "transaction").query(sql);
    return {};
  },
  commit: ({ tx }) => end(tx, "COMMIT"),
  rollback: ({ tx }) => end(tx, "ROLLBACK"),
  work({ queues, kinds, lease, timeout, stop_timeout }) {
    worker = new AbortController();
    return new Promise((resolve, reject) => {
      weir
        .work({
          queues,
          handlers: Object.fromEntries((kinds as string[]).map((kind) => [kind, handler])),
          signal: worker!.signal,
          ...(lease !== undefined && { lease }),
          ...(timeout !== undefined && { timeout }),
          ...(stop_timeout !== undefined && { stopTimeout: stop_timeout }),
          onStart: () => resolve({}),
        })
        .then(
          () => (resolve({}), say({ event: "stopped" })),
          (error) => (reject(error), say({ event: "stopped", error: judged(error) })),
        );
    });
  },
  end({ run, ...how }) {
    runs.find(run, "run").end(how);
    return {};
  },
  progress({ run, percent, message }) {
    runs.find(run, "run").context.progress(percent, message);
    return {};
  },
  log({ run, text }) {
    runs.find(run, "run").context.log(text);
    return {};
  },
  async set_checkpoint({ run, checkpoint, tx }) {
    await runs.find(run, "run").context.setCheckpoint(checkpoint, within(tx));
    return {};
  },
  checkpoint: async ({ run }) => ({ checkpoint: (await runs.find(run, "run").context.checkpoint()) ?? null }),
  stop() {
    worker?.abort();
    return {};
  },
  async job({ id }) {
    const job = found(await weir.job(id), id);
    const { maxAttempts, enqueuedAt, flow, ...rest } = job;
    return { job: { ...rest, id: Number(job.id), flow: flow === null ? null : Number(flow), max_attempts: maxAttempts, enqueued_at: enqueuedAt.toISOString() } };
  },
  cancel: async ({ id }) => ({ state: found(await weir.cancel(id), id) }),
  retry: async ({ id }) => ({ state: found(await weir.retry(id), id) }),
  async publish({ channel, payload, tx }) {
    await weir.publish(channel, payload, within(tx));
    return {};
  },
  subscribe({ channels, after }) {
    const stop = new AbortController();
    const subscription = subscriptions.add(stop);
    return new Promise((resolve, reject) => {
      const events = weir.subscribe(channels, { signal: stop.signal, ...(after !== undefined && { after }), onSubscribed: () => resolve({ subscription }), onDisconnect: (error) => console.error(error) });
      void (async () => {
        try {
          for await (const event of events) {
            if (event.type === "gap") say({ event: "gap", subscription, reason: event.reason, position: event.to });
            else say({ event: "message", subscription, channel: event.channel, position: event.position, ...(event.bytes ? { payload_base64: Buffer.from(event.bytes).toString("base64") } : { payload: event.payload }) });
          }
        } catch (error) {
          reject(error);
        }
      })();
    });
  },
  unsubscribe({ subscription }) {
    subscriptions.take(subscription, "subscription").abort();
    return {};
  },
};

function found<T>(answer: T | undefined, id: number): T {
  if (answer === undefined) throw new Refused("not_found", `there is no job ${id}`);
  return answer;
}

async function end(tx: number, statement: string) {
  const client = transactions.take(tx, "transaction");
  try {
    await client.query(statement);
  } finally {
    client.release();
  }
  return {};
}

/** An error as the suite names it. */
function judged(error: unknown): { code: string; message: string } {
  const code = error instanceof Refused ? error.code : error instanceof WeirError || (error as Fields)?.code ? byCode(String((error as Fields).code)) : error instanceof TypeError || error instanceof RangeError ? "invalid" : "other";
  return { code, message: error instanceof Error ? error.message : String(error) };
}

function byCode(code: string): string {
  if (/^(22|23|54)...$|^(bad_request|key_reused|limit)$/.test(code)) return "invalid";
  if (/^(42501|denied|unauthorized|origin|host)$/.test(code)) return "denied";
  if (/^(WR001|WR002)$/.test(code)) return "lost";
  if (/^(P0002|not_found)$/.test(code)) return "not_found";
  if (/^(08|53|55P|57)..?.$|^E[A-Z]+$|^(unavailable|draining)$/.test(code)) return "unavailable";
  return "other";
}

const features = ["flows", "subscribe", "retry_after", "log", "publish"];
if (overSql) features.push("transactions", "complete", "lease", "retry");
say({ event: "hello", client: "typescript", via, features });

for await (const line of createInterface({ input: process.stdin })) {
  const { n, do: name, ...fields } = JSON.parse(line) as Fields;
  try {
    const command = commands[name];
    if (command === undefined) throw new Refused("unknown", `there is no command ${name}`);
    say({ n, ok: await command(fields) });
  } catch (error) {
    say({ n, error: judged(error) });
  }
}
process.exit();
