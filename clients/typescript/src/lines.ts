// Sessions of a worker's own where they can be had, so that handlers which use up the program's connections don't keep it from renewing its lease.

import { type Moment, now } from "./clock.js";
import { type Run, runner, type Sql } from "./executor.js";

/** A session at the server. */
export interface Line {
  readonly run: Run;
  /** What tells the server that nothing is between it and this end of the connection; undefined: not known. */
  readonly end: { pid: number; address: string; port: number } | undefined;
  /** When it was heard that the session had ended; undefined: it has not, as far as is known. */
  readonly endedAt: Moment | undefined;
  /** Ends a session that works; `broken`: one that doesn't, and whatever it is doing. */
  close(broken: boolean): void;
}

export type Dial = () => Promise<Line>;

interface PgClient {
  connect(): Promise<unknown>;
  end(): Promise<void>;
  on(event: string, heard: (what: any) => void): unknown;
  query(text: string, values?: unknown[]): Promise<{ rows: object[] }>;
  processID?: number | null;
  connection?: { stream?: { localAddress?: string; localPort?: number; destroy?: () => void } };
}

/** Returns how to get sessions, for what a program has passed; undefined: this has no way to get one. */
export function dialer(sql: Sql, failed: (error: unknown) => void): Dial | undefined {
  const { Client, options, unsafe, begin, $client } = sql as unknown as {
    Client?: new (options: object) => PgClient;
    options?: Record<string, unknown>;
    unsafe?: (text: string, values?: any[]) => PromiseLike<any>;
    begin?: unknown; // which a transaction has not
    $client?: Sql; // of Drizzle
  };
  if (typeof Client === "function" && typeof options === "object") return () => own(Client, options, failed);
  if (typeof unsafe === "function" && typeof begin === "function") return async () => shared(sql as { unsafe: typeof unsafe });
  return $client === undefined ? undefined : dialer($client, failed);
}

/** What a worker's calls need, whatever the defaults of the server, the database or the role. */
const SETTLE = `SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; SET statement_timeout = 0; SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0; SET jit = off; SET extra_float_digits = 1`;

/** Connects beside a Pool of pg, with its options. */
async function own(Client: new (options: object) => PgClient, options: Record<string, unknown>, failed: (error: unknown) => void): Promise<Line> {
  // Passwords are properties that are not enumerable. A time limit of the client's own would end a call that the server still runs.
  const copy = Object.defineProperties({}, Object.getOwnPropertyDescriptors(options)) as Record<string, unknown>;
  const client = new Client(Object.assign(copy, { keepAlive: true, query_timeout: 0, connectionTimeoutMillis: options.connectionTimeoutMillis || 5000 }));
  let endedAt: Moment | undefined;
  client.on("error", () => (endedAt ??= now())); // the next call reports it
  client.on("end", () => (endedAt ??= now()));
  client.on("notice", ({ message, severity }: { message?: string; severity?: string }) => {
    if (severity === "WARNING") failed(new Error(message)); // of chores
  });
  await client.connect();
  try {
    const { rows } = await client.query("SELECT pg_backend_pid() AS pid");
    if (Number((rows[0] as { pid: unknown }).pid) === client.processID) await client.query(SETTLE); // a pooler would pass the session on with these settings
  } catch (error) {
    client.end().catch(() => {});
    throw error;
  }
  const { localAddress: address, localPort: port } = client.connection?.stream ?? {};
  return {
    run: runner(client),
    end: client.processID && address && port ? { pid: client.processID, address, port } : undefined,
    get endedAt() {
      return endedAt;
    },
    close(broken) {
      if (broken) client.connection?.stream?.destroy?.();
      client.end().catch(() => {});
    },
  };
}

/**
 * Uses connections of a pool of postgres.js's or Bun's, which have no way to get one for good: a reserved connection of postgres.js that has
 * ended while it was idle never answers.
 */
function shared(sql: { unsafe(text: string, values?: any[]): PromiseLike<any> }): Line {
  const run = runner(sql);
  const calls = new Set<(error: Error) => void>();
  return {
    run(text, values) {
      return new Promise((resolve, reject) => {
        calls.add(reject);
        run(text, values).then(resolve, reject).finally(() => calls.delete(reject));
      });
    },
    end: undefined,
    endedAt: undefined,
    close() {
      for (const reject of calls) reject(new Error("weir: the call was given up"));
    },
  };
}
