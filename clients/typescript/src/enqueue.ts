// What is enqueued, and how it is said to the database and to hubs.

import { WeirError } from "./errors.js";
import { knows, shown, wrong } from "./options.js";

/** Which jobs are duplicates of each other: docs/unique.md. `true`: those of the same kind with equal payloads. */
export interface Unique {
  /** Which jobs of the queue are duplicates, whatever their kind and payload. Default: the kind and the payload decide. */
  key?: string;
  /** Without a key: the fields of the payload that count. */
  fields?: readonly string[];
  /** Up to when an earlier job counts: until it has `finished` (the default), or only until it has `started`. */
  until?: "finished" | "started";
  /** Instead of `until`: for how many seconds after it was enqueued an earlier job counts, whatever became of it. */
  within?: number;
  /** Enqueue the job in any case; earlier ones that have not started end as cancelled. */
  replace?: boolean;
  /** First wait for transactions that ask for the same with `wait`. */
  wait?: boolean;
}

export interface EnqueueOptions {
  /** Default: as the job's definition says, or else the client's `queue`. */
  queue?: string;
  /** 1 (first) to 4. Default: 2. */
  priority?: 1 | 2 | 3 | 4;
  /** The earliest time to run the job. Default: now. */
  runAt?: Date;
  /** Whose job it is, such as a tenant: keys of a queue take turns. */
  key?: string;
  /** Enqueue the job only if it is no duplicate of another. */
  unique?: boolean | Unique;
  /** How many attempts the job has, 1 to 1000. Default: 25. */
  maxAttempts?: number;
  /** An object for tools; handlers see it too. */
  meta?: Readonly<Record<string, unknown>>;
  /** The flow that it is a member of. */
  flow?: string | number | bigint;
  /** What is to be done once in the flow. */
  once?: string;
}

/** The names of the options of jobs. */
export const ENQUEUE = { queue: 1, priority: 1, runAt: 1, key: 1, unique: 1, maxAttempts: 1, meta: 1, flow: 1, once: 1 } as const satisfies Record<keyof EnqueueOptions, 1>;
export const knowsUnique = knows<Unique>("unique", { key: 1, fields: 1, until: 1, within: 1, replace: 1, wait: 1 });

export interface Enqueued {
  id: string;
  /** An earlier job is there already; `id` is that one's. (With `replace`: this job replaces an earlier one.) */
  duplicate: boolean;
}

/** A job as `weir.enqueue_many` and hubs take it. */
export type JobRequest = Record<string, unknown> & { queue: string; kind: string; args: unknown };

/** Returns the request for a job. */
export function request(kind: string, args: unknown, options: EnqueueOptions, queue: string): JobRequest {
  if (options.unique && (options.flow !== undefined || options.once !== undefined)) throw new TypeError("weir: a unique job can't be a member of a flow: there, use once");
  const job: JobRequest = { queue: options.queue ?? queue, kind, args };
  const { priority, runAt, key, maxAttempts, meta, flow, once, unique } = options;
  if (priority !== undefined) job.priority = whole(priority, 1, 4, "priority");
  if (runAt !== undefined) job.run_at = time(runAt);
  if (key !== undefined) job.key = key;
  if (maxAttempts !== undefined) job.max_attempts = whole(maxAttempts, 1, 1000, "maxAttempts");
  if (meta !== undefined) job.meta = meta;
  if (flow !== undefined) job.flow = String(flow);
  if (once !== undefined) job.once = once;
  if (unique && unique !== true) knowsUnique(unique);
  if (unique === true) job.unique = true;
  else if (unique) job.unique = unique.within === undefined ? unique : { ...unique, within: `${unique.within} seconds` };
  return job;
}

/** Returns a number if it is whole and within a range. */
export function whole(n: number, least: number, most: number, what: string): number {
  if (!Number.isInteger(n) || n < least || n > most) throw new RangeError(`weir: ${what} is ${shown(n)}: pass a whole number from ${least} to ${most}`);
  return n;
}

/** Returns a number of seconds if it is one. */
export function duration(seconds: number, what: string): number {
  if (!(typeof seconds === "number" && seconds >= 0)) throw new RangeError(`weir: ${what} is ${shown(seconds)}: pass a number of seconds`);
  return seconds;
}

function time(at: Date): string {
  if (typeof at?.getTime !== "function") throw wrong("runAt", at, "a Date");
  if (Number.isNaN(at.getTime())) throw new TypeError("weir: runAt is an invalid date");
  const text = at.toISOString();
  if (!/^\d/.test(text)) throw new TypeError(`weir: runAt is ${text}: a job can be scheduled up to the year 9999`);
  return text;
}

/**
 * Returns the JSON of a value. What PostgreSQL can't store is refused here, because an error of the database would cost the caller the
 * transaction.
 */
export function encoded(value: unknown, what: string): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    throw new TypeError(`weir: ${what} can't be written as JSON: ${error instanceof Error ? error.message : error}`, { cause: error });
  }
  if (text === undefined) throw new TypeError(`weir: ${what} is ${typeof value}, which has no form in JSON`);
  if (/\\u(0000|d[89a-f])/.test(text)) refuse(JSON.parse(text), what);
  return text;
}

/** Throws if a text within a value has a character that PostgreSQL can't store. */
export function refuse(value: unknown, place: string): void {
  if (typeof value === "string") {
    if (value.includes("\0")) throw new TypeError(`weir: ${place} contains the character NUL, which PostgreSQL can't store`);
    if (/[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(value)) throw new TypeError(`weir: ${place} contains half of a surrogate pair, which PostgreSQL can't store`);
  } else if (typeof value === "object" && value !== null) {
    for (const [name, inner] of Object.entries(value)) {
      refuse(name, `a name in ${place}`);
      refuse(inner, `${place}.${name}`);
    }
  }
}

/** Returns the statement that enqueues one job, which is faster than that for many. */
export function enqueueStatement(job: JobRequest): [text: string, values: string[]] {
  const { queue, kind, args, unique, ...rest } = job;
  refuse(kind, "the name of a job");
  refuse(queue, `the queue of ${kind}`);
  const values = [queue, kind, encoded(args, `the payload of ${kind}`)];
  let text = "$1::text, $2::text, $3::text::jsonb";
  const add = (name: string, type: string, value: unknown) => {
    if (value === undefined) return;
    refuse(value, `the ${name} of ${kind}`);
    text += `, ${name} => $${values.push(String(value))}::text::${type}`;
  };
  add("priority", "integer", rest.priority);
  add("run_at", "timestamptz", rest.run_at);
  add("max_attempts", "integer", rest.max_attempts);
  if (rest.meta !== undefined) add("meta", "jsonb", encoded(rest.meta, `the meta of ${kind}`));
  add("key", "text", rest.key);
  add("flow", "bigint", rest.flow);
  add("once", "text", rest.once);
  if (!unique) return [`SELECT weir.enqueue(${text})::text AS id, 'false' AS duplicate`, values];
  if (unique !== true) {
    const { key, fields, until, within, replace, wait } = unique as Unique;
    add("unique_key", "text", key);
    if (fields !== undefined) text += `, fields => ARRAY(SELECT jsonb_array_elements_text($${values.push(encoded(fields, `the fields of ${kind}`))}::text::jsonb))`;
    add("until", "text", until);
    add("within", "interval", within);
    add("replace", "boolean", replace);
    add("wait", "boolean", wait);
  }
  return [`SELECT id::text, duplicate::text FROM weir.enqueue_unique(${text})`, values];
}

const ENQUEUE_MANY = `SELECT u.id::text, 'false' AS duplicate FROM unnest(weir.enqueue_many($1::text::jsonb)) WITH ORDINALITY u(id, nr) ORDER BY u.nr`;

// enqueue_many does not tell which jobs are duplicates.
const ENQUEUE_UNIQUE = `SELECT r.answer ->> 'id' AS id, r.answer ->> 'duplicate' AS duplicate
FROM (SELECT e.nr, CASE
        WHEN e.job ? 'unique' THEN (
          SELECT to_jsonb(q) FROM jsonb_to_record(CASE jsonb_typeof(e.job -> 'unique') WHEN 'object' THEN e.job -> 'unique' ELSE '{}' END)
            y(key text, fields text[], until text, within interval, replace boolean, wait boolean)
          CROSS JOIN LATERAL weir.enqueue_unique(x.queue, x.kind, x.args, unique_key => y.key, fields => y.fields, until => y.until, within => y.within, replace => y.replace, wait => y.wait,
            priority => x.priority, run_at => x.run_at, max_attempts => x.max_attempts, meta => x.meta, key => x.key) q)
        ELSE jsonb_build_object('id', weir.enqueue(x.queue, x.kind, x.args, x.priority, x.run_at, x.max_attempts, x.meta, x.key, x.flow, x.once), 'duplicate', false) END AS answer
      FROM jsonb_array_elements($1::text::jsonb) WITH ORDINALITY e(job, nr)
      CROSS JOIN LATERAL jsonb_to_record(e.job) x(queue text, kind text, args jsonb, priority integer, run_at timestamptz, max_attempts integer, meta jsonb, key text, flow bigint, once text)
      ORDER BY e.nr) r ORDER BY r.nr`;

/** Returns the statement that enqueues many. */
export function enqueueManyStatement(jobs: readonly JobRequest[]): [text: string, values: string[]] {
  const parts = jobs.map((job, i) => encoded(job, `job ${i + 1} of ${jobs.length} (${job.kind})`));
  return [jobs.some(({ unique }) => unique) ? ENQUEUE_UNIQUE : ENQUEUE_MANY, [`[${parts.join(",")}]`]];
}

/** What the system, postgres.js, Prisma and Bun say of a connection that can't be made, or was lost; pg has some texts without a code. */
const UNREACHED = /^(E(AI_AGAIN|CONN\w+|HOST\w+|NET\w+|NOENT|NOTFOUND|PIPE|TIMEDOUT)|CONNECT_TIMEOUT|CONNECTION_(CLOSED|DESTROYED)|P10(01|02|08|17)|DatabaseNotReachable|ConnectionClosed|SocketTimeout|ERR_POSTGRES_CONNECTION_\w+)$/;
const UNREACHED_TEXT = /^(Connection terminated (unexpectedly|due to)|timeout exceeded when trying to connect|timeout expired)/;

/** Returns an error of a driver's as one of this package's, if the database has refused the call, or can't be reached. */
export function refusal(error: unknown): unknown {
  const { code, kind, message, hint, cause, meta, originalCode } = (error ?? {}) as { code?: unknown; kind?: unknown; message?: unknown; hint?: unknown; cause?: unknown; originalCode?: unknown; meta?: Record<string, unknown> };
  if (typeof code === "string" && isState(code)) {
    return new WeirError(String(message), code, typeof hint === "string" ? hint : remedy(code, String(message)), { cause: error });
  }
  if (UNREACHED.test(String(code ?? kind)) || UNREACHED_TEXT.test(String(message))) {
    const [first] = (error as { errors?: Error[] }).errors ?? []; // one for each address
    return new WeirError(`the database can't be reached: ${message || first?.message || (code ?? kind)}`, "unavailable", "check the database's address, and that it runs", { cause: error });
  }
  // Prisma has an error of its own, with that of its driver in it; Drizzle has it as the cause.
  const inner = (meta?.driverAdapterError as { cause?: unknown } | undefined)?.cause ?? cause;
  if (typeof originalCode === "string") return new WeirError(String((error as { originalMessage?: unknown }).originalMessage ?? message), originalCode, typeof hint === "string" ? hint : undefined, { cause: error });
  if (inner !== undefined && inner !== error) {
    const found = refusal(inner);
    if (found instanceof WeirError) return new WeirError(found.message, found.code, found.hint, { cause: error });
  }
  return error;
}

/** Returns what to do about a missing privilege or schema, for which PostgreSQL has no hint. */
function remedy(code: string, message: string): string | undefined {
  if (/^(3F000|42883|42P01)$/.test(code) && /\bweir\b/.test(message)) return "Weir is not installed in this database, or an older version of it: run weir migrate up";
  const [, what] = (code === "42501" && /^permission denied for (?:function|procedure|schema) (\w+)$/.exec(message)) || [];
  if (what === undefined) return undefined;
  if (what === "weir") return "grant this user the role weir_enqueue to enqueue, weir_work to work, or weir_operate for everything but a hub";
  const role = /^enqueue/.test(what) ? "weir_enqueue" : /^publish/.test(what) ? "weir_publish" : what === "retry" ? "weir_operate" : "weir_work";
  return `grant this user the role ${role}`;
}

/** Reports whether a code is a SQLSTATE, and not one of the system's (EPIPE) or Prisma's (P2010). */
export function isState(code: string): boolean {
  return /^(?!E|P[1-9])[0-9A-Z]{5}$/.test(code);
}
