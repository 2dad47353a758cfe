import type { Enqueued, JobRequest } from "./enqueue.js";
import { encoded } from "./enqueue.js";
import { hubError, unreached, WeirError } from "./errors.js";
import { type JobInfo, jobInfo, type State } from "./job-info.js";
import { wrong } from "./options.js";
import { Backoff, sleep } from "./time.js";

/** A bearer token, or a function that returns one. */
export type Token = string | (() => string | Promise<string>);

interface CallOptions {
  signal?: AbortSignal;
  /** For how many seconds to wait for the answer. */
  patience?: number;
  headers?: Record<string, string>;
}

/** A hub's HTTP API. */
export class Hub {
  readonly url: URL;
  readonly #token: Token | undefined;
  #shown: Promise<string> | undefined;

  constructor(url: string | URL, token: Token | undefined) {
    this.url = address(url);
    this.#token = token;
  }

  /** The URL of one of the hub's paths, which may itself be below a path. */
  at(path: string): URL {
    return new URL(`.${path}`, this.url);
  }

  /** Whether a refused token can be replaced. */
  get renewable(): boolean {
    return typeof this.#token === "function";
  }

  /** The token to show; `again`: another than before, because the hub has refused that. */
  token(again = false): Promise<string> {
    if (again) this.#shown = undefined;
    if (this.#shown === undefined) {
      const token = this.#token ?? "";
      const shown = Promise.resolve().then(() => (typeof token === "function" ? token() : token));
      this.#shown = shown;
      shown.catch(() => {
        if (this.#shown === shown) this.#shown = undefined;
      });
    }
    return this.#shown;
  }

  /** Sends a request, and returns the answer's JSON. */
  async call(method: string, path: string, body?: string, options: CallOptions = {}): Promise<any> {
    try {
      return await this.#once(method, path, body, options, await this.token());
    } catch (error) {
      if (!(error instanceof WeirError && error.code === "unauthorized" && this.renewable)) throw error;
      return this.#once(method, path, body, options, await this.token(true));
    }
  }

  async #once(method: string, path: string, body: string | undefined, { signal, patience = 30, headers }: CallOptions, token: string): Promise<any> {
    const over = new AbortController();
    const end = () => over.abort(signal?.reason);
    const timer = setTimeout(() => over.abort(new Error(`${method} ${path}: the hub did not answer within ${patience} seconds`)), patience * 1000);
    if (signal?.aborted) end();
    signal?.addEventListener("abort", end);
    try {
      const response = await fetch(this.at(path), {
        method,
        signal: over.signal,
        headers: { ...(body !== undefined && { "content-type": "application/json" }), ...(token && { authorization: `Bearer ${token}` }), ...headers },
        ...(body !== undefined && { body }),
      });
      const text = await response.text();
      if (response.ok) return text === "" ? undefined : JSON.parse(text);
      throw hubError(response.status, text);
    } catch (error) {
      throw over.signal.aborted ? error : unreached(error, `${method} ${this.at(path)}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
    }
  }

  /** Enqueues jobs. It is repeated if the answer is lost; the key keeps the hub from doing it twice. */
  async enqueue(jobs: readonly JobRequest[]): Promise<Enqueued[]> {
    const body = jobs.length === 1 ? encoded(jobs[0], `the job ${jobs[0]!.kind}`) : `[${jobs.map((job, i) => encoded(job, `job ${i + 1} of ${jobs.length} (${job.kind})`)).join(",")}]`;
    const key = crypto.randomUUID();
    const answer = (await this.#repeated(() => this.call("POST", "/v1/jobs", body, { headers: { "idempotency-key": key } }))) as { jobs: { id: number | string; duplicate?: boolean }[] };
    return answer.jobs.map(({ id, duplicate }) => ({ id: String(id), duplicate: duplicate === true }));
  }

  async job(id: string | number | bigint): Promise<JobInfo | undefined> {
    const job = await this.#found("GET", `/v1/jobs/${encodeURIComponent(String(id))}`);
    return job && jobInfo(job);
  }

  async cancel(id: string | number | bigint): Promise<State | undefined> {
    return (await this.#found("POST", `/v1/jobs/${encodeURIComponent(String(id))}/cancel`))?.state;
  }

  /** Returns the answer; undefined: there is no such job, or the token may not see it. */
  async #found(method: string, path: string): Promise<any> {
    try {
      return await this.#repeated(() => this.call(method, path));
    } catch (error) {
      if (error instanceof WeirError && error.code === "not_found") return undefined;
      throw error;
    }
  }

  async publish(channel: string, payload: string): Promise<void> {
    await this.call("POST", "/v1/publish", JSON.stringify({ channel, payload }));
  }

  /** Repeats a call that is safe to repeat. */
  async #repeated(call: () => Promise<any>): Promise<any> {
    const backoff = new Backoff(0.2, 2);
    for (let tries = 1; ; tries++) {
      try {
        return await call();
      } catch (error) {
        if (tries >= 5 || lasting(error)) throw error;
        await sleep(backoff.next());
      }
    }
  }
}

function address(url: string | URL): URL {
  try {
    const parsed = new URL(url);
    if (/^https?:$/.test(parsed.protocol)) { // "hub:8080" has the protocol hub
      parsed.pathname = parsed.pathname.replace(/\/*$/, "/"); // so that its paths are below this one
      return parsed;
    }
  } catch {
    // told below
  }
  throw wrong("hub", String(url), "the whole address of a hub, such as https://hub.example.com");
}

/** Reports whether the hub has refused something for good. */
export function lasting(error: unknown): boolean {
  return error instanceof WeirError && !["limit", "draining", "unavailable", "unauthorized"].includes(error.code);
}
