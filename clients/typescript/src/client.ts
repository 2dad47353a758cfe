import type { Context } from "./attempt.js";
import { duration, ENQUEUE, enqueueManyStatement, type Enqueued, type EnqueueOptions, enqueueStatement, type JobRequest, refusal, refuse, request } from "./enqueue.js";
import { type Row, runner, type Sql } from "./executor.js";
import { Hub, type Token } from "./hub.js";
import { HubLink } from "./hub-link.js";
import { type JobInfo, jobInfo, type State } from "./job-info.js";
import { dialer } from "./lines.js";
import { isPlain, knows, knowsSignal, shown, wrong } from "./options.js";
import type { Link } from "./protocol.js";
import { definitionOf, type Input, type JobDefinitions, knowsJobs, type Output, type StandardSchema, validated } from "./schema.js";
import { SocketLink } from "./socket-link.js";
import { SqlLink } from "./sql-link.js";
import { type Presence, subscribe, type SubscribeOptions, type Subscription, type SubscriptionEvent } from "./subscribe.js";
import { type Runnable, Worker } from "./worker.js";
import type { WebSocketConstructor } from "./web-socket.js";

/** The jobs of a client that was not told about any: any name, and any payload. */
export type AnyJobs = Readonly<Record<string, StandardSchema<any, any>>>;

export interface WeirOptions<Jobs extends JobDefinitions = AnyJobs> {
  /** Where the jobs are: a Pool of pg, postgres.js's or Bun's `sql`, a Drizzle database; for everything but `work`, whatever can run SQL. */
  sql?: Sql;
  /** The address of a hub, for `subscribe`; and for jobs over HTTP, if there is no `sql`. */
  hub?: string | URL;
  /** The hub's bearer token, or a function that returns one. It is called again when a token has expired. */
  token?: Token;
  /** For sessions at the hub. Default: the platform's, if it has one; otherwise `work` polls, and `subscribe` reads an event stream. `false`: never. */
  WebSocket?: WebSocketConstructor | false;
  /** The payload of each job, by name. */
  jobs?: Jobs;
  /** The queue of jobs whose definition doesn't name one. Default: `default`. */
  queue?: string;
}

export interface CallOptions {
  /** Your transaction: the jobs run after its commit, and never after a rollback. */
  tx?: Sql;
}

export interface WorkOptions<Jobs extends JobDefinitions> {
  /** How many jobs of each queue run at once. */
  queues: Readonly<Record<string, number>>;
  /** A function for each kind of job that this worker runs. What it returns is the job's output; if it throws, the attempt has failed. */
  handlers: { readonly [Kind in keyof Jobs]?: (payload: Output<Jobs[Kind]>, context: Context) => unknown };
  /** Aborts when the worker should stop: it takes no more jobs, and lets those that run end. */
  signal?: AbortSignal;
  /** Shown to people. Default: the host and the process. */
  name?: string;
  /** For how many seconds an attempt may run, if its job's definition doesn't say so; 0: for ever. Default: an hour. */
  timeout?: number;
  /** How many seconds handlers have to end when the worker stops, before they are interrupted, and their jobs released. Default: 30. */
  stopTimeout?: number;
  /** After how many seconds of silence others get the jobs, 1 to 300. Default: 30. A hub has a lease of its own. */
  lease?: number;
  /** Do what keeps the queues going, such as starting jobs that are due. `false`: workers in Go do it. Default: true, over SQL. */
  chores?: boolean;
  /** Is called when the worker has begun to take jobs. */
  onStart?: () => void;
  /** Hears what failed and will be tried again, and, over SQL, once of each kind that has no handler. Default: `console.error`. */
  onError?: (error: unknown) => void;
}

const knowsClient = knows<WeirOptions>("a client", { sql: 1, hub: 1, token: 1, WebSocket: 1, jobs: 1, queue: 1 });
const knowsWork = knows<WorkOptions<AnyJobs>>("work", { queues: 1, handlers: 1, signal: 1, name: 1, timeout: 1, stopTimeout: 1, lease: 1, chores: 1, onStart: 1, onError: 1 });
const knowsEnqueue = knows<EnqueueOptions & CallOptions>("enqueue", { ...ENQUEUE, tx: 1 });
const knowsJob = knows<EnqueueOptions & { kind: string; payload: unknown }>("a job", { kind: 1, payload: 1, ...ENQUEUE });
const knowsCall = knows<CallOptions>("this call", { tx: 1 });

/** Jobs and messages of one database. It holds no connection of its own, except while it works or subscribes. */
export class Weir<const Jobs extends JobDefinitions = AnyJobs> {
  readonly #options: WeirOptions<Jobs>;
  readonly #jobs: JobDefinitions;
  readonly #hub: Hub | undefined;

  constructor(options: WeirOptions<Jobs>) {
    knowsClient(options);
    if (options.sql === undefined && options.hub === undefined) throw new TypeError("weir: pass sql, such as a Pool of pg, or the address of a hub");
    this.#options = options;
    if (options.sql !== undefined) runner(options.sql);
    this.#jobs = options.jobs ?? {};
    knowsJobs(this.#jobs);
    this.#hub = options.hub === undefined ? undefined : new Hub(options.hub, options.token);
  }

  /** Enqueues a job. */
  async enqueue<Kind extends keyof Jobs & string>(kind: Kind, payload: Input<Jobs[Kind]>, options: EnqueueOptions & CallOptions = {}): Promise<Enqueued> {
    knowsEnqueue(options);
    const job = await this.#request(kind, payload, options);
    if (options.tx === undefined && this.#options.sql === undefined) return (await this.#hub!.enqueue([job]))[0]!;
    const [row] = await this.#run(options.tx, ...enqueueStatement(job));
    return { id: row!.id!, duplicate: row!.duplicate === "true" };
  }

  /** Enqueues up to 10,000 jobs (over HTTP 1,000), all or none. Returns what became of each, in their order. */
  async enqueueMany<Kind extends keyof Jobs & string>(
    jobs: readonly { [K in Kind]: { kind: K; payload: Input<Jobs[K]> } & EnqueueOptions }[Kind][],
    options: CallOptions = {},
  ): Promise<Enqueued[]> {
    knowsCall(options);
    if (!Array.isArray(jobs)) throw wrong("what enqueueMany got", jobs, "an array of jobs, such as [{ kind, payload }]");
    jobs.forEach((job) => knowsJob(job));
    const requests = await Promise.all(jobs.map(({ kind, payload, ...rest }) => this.#request(kind, payload, rest as EnqueueOptions)));
    if (requests.length === 0) return [];
    if (options.tx === undefined && this.#options.sql === undefined) return this.#hub!.enqueue(requests);
    return (await this.#run(options.tx, ...enqueueManyStatement(requests))).map(({ id, duplicate }) => ({ id: id!, duplicate: duplicate === "true" }));
  }

  /** Looks a job up; undefined: there is none, or it has finished long ago. */
  async job(id: string | number | bigint): Promise<JobInfo | undefined> {
    if (this.#options.sql === undefined) return this.#hub!.job(id);
    const [row] = await this.#run(undefined, "SELECT row_to_json(j)::text AS job FROM weir.job_info($1::text::bigint) j", [String(id)]);
    return row === undefined ? undefined : jobInfo(JSON.parse(row.job!) as Record<string, unknown>);
  }

  /** Cancels a job. Returns `cancelled`; `running`, if it runs, so that its handler is interrupted; or the state in which it has ended; undefined: there is none. */
  async cancel(id: string | number | bigint, options: CallOptions = {}): Promise<State | undefined> {
    knowsCall(options);
    if (options.tx === undefined && this.#options.sql === undefined) return this.#hub!.cancel(id);
    const [row] = await this.#run(options.tx, "SELECT weir.cancel($1::text::bigint)::text AS state", [String(id)]);
    return row!.state === "requested" ? "running" : ((row!.state ?? undefined) as State | undefined);
  }

  /** Runs a finished job again. Needs SQL, and the role weir_operate. Returns its state; undefined: there is none. */
  async retry(id: string | number | bigint, options: CallOptions = {}): Promise<State | undefined> {
    knowsCall(options);
    return ((await this.#run(options.tx, "SELECT weir.retry($1::text::bigint)::text AS state", [String(id)]))[0]!.state ?? undefined) as State | undefined;
  }

  /** Publishes a message. With `tx`, or over SQL, it is delivered after the commit. */
  async publish(channel: string, payload: string, options: CallOptions = {}): Promise<void> {
    knowsCall(options);
    if (typeof channel !== "string") throw wrong("the channel", channel, "its name");
    if (typeof payload !== "string") throw wrong("the payload of a message", payload, "a text, such as JSON.stringify(…) makes");
    if (options.tx === undefined && this.#options.sql === undefined) return this.#hub!.publish(channel, payload);
    refuse(channel, "the channel");
    refuse(payload, "the payload of a message");
    await this.#run(options.tx, "SELECT 'true' AS published FROM weir.publish($1::text, $2::text)", [channel, payload]);
  }

  /** Works: takes jobs and runs them, until the signal aborts and the jobs that ran have ended. Rejects if there is no point in going on. */
  async work(options: WorkOptions<Jobs>): Promise<void> {
    knowsWork(options);
    knowsSignal(options.signal);
    const { queues: given, handlers: handling, timeout = 3600, stopTimeout = 30, onError = (error: unknown) => console.error(error), onStart = () => {} } = options;
    if (!isPlain(given) || Object.keys(given).length === 0) throw wrong("queues", given, "how many jobs of each queue run at once, such as { mail: 8 }");
    const queues = new Map(Object.entries(given));
    for (const [queue, n] of queues) {
      if (!Number.isInteger(n) || n < 1 || n > 10_000) throw new RangeError(`weir: queue ${queue} is to run ${shown(n)} jobs at once: pass a number from 1 to 10000`);
    }
    duration(timeout, "timeout");
    duration(stopTimeout, "stopTimeout");
    for (const [name, heard] of Object.entries({ onError, onStart })) if (typeof heard !== "function") throw wrong(name, heard, "a function");
    const handlers = new Map<string, Runnable>();
    for (const [kind, handler] of Object.entries(handling ?? {})) {
      if (handler === undefined) continue;
      if (typeof handler !== "function") throw wrong(`the handler of ${kind}`, handler, "a function");
      handlers.set(kind, this.#runnable(kind, handler as (payload: unknown, context: Context) => unknown, timeout));
    }
    if (handlers.size === 0) throw wrong("handlers", handling, "a function for each kind of job, such as { welcome: async (payload) => … }");
    const worker = new Worker(
      { queues, handlers, onError, onStart, stopTimeout, name: options.name ?? defaultName(), signal: options.signal, lease: options.lease, chores: options.chores ?? true },
      this.#link(onError),
    );
    await worker.run();
  }

  /** Subscribes at the hub to channels and patterns. After a lost connection it goes on where it was. */
  subscribe(channels: string | readonly string[], options: SubscribeOptions & { presence: true }): Subscription<SubscriptionEvent | Presence>;
  subscribe(channels: string | readonly string[], options?: SubscribeOptions & { presence?: false }): Subscription;
  subscribe(channels: string | readonly string[], options: SubscribeOptions = {}): Subscription<any> {
    if (this.#options.hub === undefined) throw new TypeError("weir: subscribe needs the address of a hub: new Weir({ hub: \"https://…\" })");
    const { token, WebSocket } = this.#options;
    return subscribe(this.#options.hub, channels, { ...(token !== undefined && { token }), ...(WebSocket !== undefined && { WebSocket }), ...options } as SubscribeOptions & { presence: true });
  }

  async #request(kind: string, payload: unknown, options: EnqueueOptions): Promise<JobRequest> {
    const definition = definitionOf(this.#jobs, kind);
    if (definition === undefined && this.#options.jobs !== undefined) throw new TypeError(`weir: there is no job named ${kind}`);
    // What is enqueued is what was passed, so that the handler's schema reads what the caller's type says.
    if (definition !== undefined) await validated(definition, kind, payload);
    return request(kind, payload, { ...options, ...defaults(options, definition) }, this.#options.queue ?? "default");
  }

  async #run(tx: Sql | undefined, text: string, values: string[]): Promise<Row[]> {
    const sql = tx ?? this.#options.sql;
    if (sql === undefined) throw new TypeError("weir: this needs SQL: new Weir({ sql: pool })");
    try {
      return await runner(sql)(text, values);
    } catch (error) {
      throw refusal(error);
    }
  }

  #runnable(kind: string, handler: (payload: unknown, context: Context) => unknown, timeout: number): Runnable {
    const definition = definitionOf(this.#jobs, kind);
    return {
      timeout: definition?.timeout ?? timeout,
      run: definition === undefined ? handler : async (args, context) => handler(await validated(definition, kind, args), context),
    };
  }

  #link(onError: (error: unknown) => void): Link {
    const { sql, WebSocket = globalThis.WebSocket as WebSocketConstructor | undefined } = this.#options;
    if (sql === undefined) return WebSocket ? new SocketLink(this.#hub!, WebSocket) : new HubLink(this.#hub!);
    const dial = dialer(sql, onError);
    if (dial === undefined) throw new TypeError("weir: work needs sessions of its own: pass a Pool of pg, sql of postgres.js or Bun, or a Drizzle database made from one of these");
    return new SqlLink(dial);
  }
}

function defaults(options: EnqueueOptions, definition: Pick<EnqueueOptions, "queue" | "priority" | "maxAttempts" | "unique"> | undefined): EnqueueOptions {
  const found: EnqueueOptions = {};
  if (definition === undefined) return found;
  if (options.queue === undefined && definition.queue !== undefined) found.queue = definition.queue;
  if (options.priority === undefined && definition.priority !== undefined) found.priority = definition.priority;
  if (options.maxAttempts === undefined && definition.maxAttempts !== undefined) found.maxAttempts = definition.maxAttempts;
  if (options.unique === undefined && definition.unique !== undefined) found.unique = definition.unique;
  return found;
}

interface Process {
  pid?: number;
  env?: Record<string, string | undefined>;
  once?(event: string, heard: () => void): unknown;
}

function defaultName(): string {
  const { pid, env } = (globalThis as { process?: Process }).process ?? {};
  return `${env?.HOSTNAME ?? env?.HOST ?? "typescript"}:${pid ?? 0}`;
}

/** Returns a signal that aborts when the process is told to end, by SIGTERM or SIGINT; a second one ends it as usual. */
export function terminated(): AbortSignal {
  const controller = new AbortController();
  for (const signal of ["SIGTERM", "SIGINT"]) (globalThis as { process?: Process }).process?.once?.(signal, () => controller.abort());
  return controller.signal;
}

