import { atMost, now } from "./clock.js";
import { WeirError } from "./errors.js";
import type { Token } from "./hub.js";
import { Hub, lasting } from "./hub.js";
import { events } from "./event-stream.js";
import { knows, knowsSignal } from "./options.js";
import { Backoff, Bell, sleep } from "./time.js";
import { connect, type WebSocketConstructor, type WebSocketLike } from "./web-socket.js";

export type { Token, WebSocketConstructor };

export interface Message {
  type: "message";
  channel: string;
  payload: string;
  /** A payload that is not text. `payload` is empty then. */
  bytes?: Uint8Array;
  /** Where to go on after it: pass it as `after`. Messages that are passed on without being logged have none. */
  position?: string;
}

/** Messages between two positions may be missing: show the current state. */
export interface Gap {
  type: "gap";
  from: string;
  to: string;
  /** `truncated`: the log no longer reaches back so far. `slow`: skipped, see `slow`. `unknown`: the position is of another log. */
  reason: "truncated" | "slow" | "unknown";
}

/** A user on a channel, and what the user's token says that others may know. */
export interface Member {
  user: string;
  info?: unknown;
}

/** Who has joined and left a channel since the last one, and how many are there now. After very many changes it has only the count. */
export interface Presence {
  type: "presence";
  channel: string;
  joined: Member[];
  left: string[];
  count: number;
}

/** Members of a channel, by name, up to 1,000, and the count of all. `next`: pass it as `after` for more. */
export interface Members {
  users: Member[];
  count: number;
  next?: string;
}

export type SubscriptionEvent = Message | Gap;

export interface SubscribeOptions {
  /** A position after which to go on. Default: now. */
  after?: string | undefined;
  /** Begin with the last messages of each channel and pattern, this many, up to 1,000. Default: none. Not together with `after`. */
  last?: number;
  /** Gets these messages, together, instead of the loop. `complete`: there are as many as were asked for, or no older ones. */
  onHistory?: (messages: Message[], complete: boolean) => void;
  /** Hear who joins and leaves the channels, as far as they have presence. */
  presence?: boolean;
  /** Ends the subscription. */
  signal?: AbortSignal;
  /** What to do if the program does not keep up: receive everything all the same (`resume`, the default), or skip to the newest messages with a gap (`skip`). */
  slow?: "resume" | "skip";
  token?: Token;
  WebSocket?: WebSocketConstructor | false;
  /** Hears that the connection was lost, or could not be made, and why. It is made again. Default: a warning on the console if it can't be made. */
  onDisconnect?: (error: Error) => void;
  /** Hears that the hub has accepted the subscription: messages that are published from now on are received. */
  onSubscribed?: (position: string) => void;
}

/** Messages and gaps, in order: `for await (const event of subscription)`. */
export interface Subscription<Event = SubscriptionEvent> extends AsyncIterableIterator<Event> {
  /** The newest position that was received, also from heartbeats; undefined: none yet. */
  readonly position: string | undefined;
  /** Asks who is on a channel that has presence. Subscribe with `presence` first: what changes later is in the loop. */
  members(channel: string, after?: string): Promise<Members>;
}

type Raw = Message & { payload_base64?: string };

/** What a hub says on a stream. */
type Said =
  | Raw
  | Gap
  | Presence
  | { type: "subscribed" | "heartbeat"; position: string; history?: Raw[]; complete?: boolean }
  | { type: "end"; code: string; error?: string; hint?: string }
  | { type: "error"; code: string; error: string; hint?: string };

/** How much may wait for the program, in messages and in characters, before a socket is closed; then the stream goes on where it was. */
const MAX_WAITING = 1000;
const MAX_WAITING_SIZE = 4_000_000;
/** A hub says something every 25 seconds. */
const SILENCE = 60;
const MAX_LAST = 1000;

const knowsOptions = knows<SubscribeOptions>("subscribe", { after: 1, last: 1, onHistory: 1, presence: 1, signal: 1, slow: 1, token: 1, WebSocket: 1, onDisconnect: 1, onSubscribed: 1 });

/** Subscribes to channels and patterns of a hub. It connects when the first event is asked for, and ends with the loop. */
export function subscribe(hub: string | URL, channels: string | readonly string[], options: SubscribeOptions & { presence: true }): Subscription<SubscriptionEvent | Presence>;
export function subscribe(hub: string | URL, channels: string | readonly string[], options?: SubscribeOptions & { presence?: false }): Subscription;
export function subscribe(hub: string | URL, channels: string | readonly string[], options: SubscribeOptions = {}): Subscription<any> {
  knowsOptions(options);
  knowsSignal(options.signal);
  const { last = 0, after } = options;
  if (!(Number.isInteger(last) && last >= 0 && last <= MAX_LAST)) throw new RangeError(`weir: last is ${last}: begin with 0 to ${MAX_LAST} messages of each channel`);
  if (last > 0 && after !== undefined) throw new TypeError("weir: a subscription has after, from where it goes on, or last, with which it begins, not both");
  const stream = new Stream(new Hub(hub, options.token), typeof channels === "string" ? [channels] : [...channels], options);
  const iterator = stream.events();
  return {
    get position() {
      return stream.position;
    },
    members: (channel, after) => stream.members(channel, after),
    next: () => iterator.next(),
    return: () => {
      stream.end();
      return iterator.return(undefined);
    },
    throw: (error) => {
      stream.end();
      return iterator.throw(error);
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

class Stream {
  position: string | undefined;
  readonly #hub: Hub;
  readonly #channels: string[];
  readonly #options: SubscribeOptions;
  readonly #over = new AbortController();

  constructor(hub: Hub, channels: string[], options: SubscribeOptions) {
    this.#hub = hub;
    this.#channels = channels;
    this.#options = options;
    this.position = options.after;
  }

  end(): void {
    this.#over.abort();
  }

  /** Messages, each of which is the position when the program has it. */
  *#each(messages: readonly Message[]): Generator<Message> {
    for (const one of messages) {
      this.position = one.position ?? this.position;
      yield one;
      if (this.#over.signal.aborted) return;
    }
  }

  /** What goes on where it was does not begin again. */
  get #last(): number | undefined {
    return this.position === undefined ? this.#options.last || undefined : undefined;
  }

  async members(channel: string, after?: string): Promise<Members> {
    const asked = new URLSearchParams({ channel, ...(after !== undefined && { after }) });
    const { users, count, next } = (await this.#hub.call("GET", `/v1/presence?${asked}`)) as Members;
    return { users, count, ...(next && { next }) };
  }

  async *events(): AsyncGenerator<SubscriptionEvent | Presence, undefined, undefined> {
    const { signal, onDisconnect, onHistory, onSubscribed, WebSocket = globalThis.WebSocket as WebSocketConstructor | undefined } = this.#options;
    const stop = () => this.end();
    if (signal?.aborted) return;
    signal?.addEventListener("abort", stop);
    const over = this.#over.signal;
    const backoff = new Backoff(0.5, 15);
    let again = false;
    let warned = false;
    try {
      while (!over.aborted) {
        let opened = false;
        try {
          const token = await this.#hub.token(again);
          again = false;
          for await (const said of WebSocket ? this.#socket(WebSocket, token) : this.#fetched(token)) {
            if (over.aborted) return;
            if (said.type === "error" || said.type === "end") throw new WeirError(said.error ?? `the hub has ended the stream (${said.code})`, said.code, said.hint);
            if (said.type === "subscribed") {
              opened = true;
              warned = false;
              backoff.reset();
              const resumed = this.position !== undefined;
              const history = (said.history ?? []).map(message);
              if (onHistory && said.history) onHistory(history, said.complete === true);
              else yield* this.#each(history);
              if (over.aborted) return;
              if (!resumed) this.position = said.position; // one that goes on where it was is there still
              onSubscribed?.(said.position);
              continue;
            }
            // The position is where to go on when the program has this event.
            if (said.type !== "presence") this.position = (said.type === "gap" ? said.to : said.position) ?? this.position;
            if (said.type === "presence") {
              yield { type: "presence", channel: said.channel, joined: said.joined ?? [], left: said.left ?? [], count: said.count };
            } else if (said.type === "message") {
              yield message(said);
            } else if (said.type === "gap") {
              yield said;
            }
            if (over.aborted) return;
          }
          throw new Error("the stream ended");
        } catch (error) {
          if (over.aborted) return;
          const expired = error instanceof WeirError && (error.code === "expired" || error.code === "unauthorized");
          if (expired && !(this.#hub.renewable || (error as WeirError).code === "expired")) throw error;
          if (!expired && lasting(error) && (error as WeirError).code !== "slow") throw error;
          again = expired;
          if (!(opened && expired)) onDisconnect?.(error as Error);
          if (!opened && !warned && !onDisconnect) {
            warned = true; // once, until there is a connection
            console.warn(`weir: no subscription at ${this.#hub.url}, which is tried again: ${(error as Error).message}`);
          }
          if (!(opened && (error as Partial<WeirError>).code === "slow")) await sleep(backoff.next(), over);
        }
      }
    } finally {
      signal?.removeEventListener("abort", stop);
      this.end();
    }
  }

  /** Over a WebSocket, which can't be told to wait: if too much waits here, it is closed, and opened again when that has been used. */
  async *#socket(WebSocket: WebSocketConstructor, token: string): AsyncGenerator<Said> {
    const over = this.#over.signal;
    const waiting: Said[] = [];
    let size = 0;
    let full = false;
    let end: { code: number; reason: string } | undefined;
    let heardAt = now();
    let opened = false;
    const bell = new Bell();
    const url = this.#hub.at("/v1/ws");
    if (this.#options.slow === "skip") url.searchParams.set("slow", "skip");
    const { socket, closed } = connect(
      WebSocket,
      url,
      "weir.v1",
      token,
      (socket: WebSocketLike) => socket.send(JSON.stringify({ type: "subscribe", channels: this.#channels, position: this.position, last: this.#last, presence: this.#options.presence })),
      (said: Said) => {
        heardAt = now();
        if (full) return; // it will come again
        opened ||= said.type === "subscribed";
        waiting.push(said);
        size += "payload" in said ? (said.payload?.length ?? 0) + (said.payload_base64?.length ?? 0) : 0;
        if (waiting.length > MAX_WAITING || size > MAX_WAITING_SIZE) {
          full = true;
          socket.close();
        }
        bell.ring();
      },
    );
    void closed.then((why) => {
      end = why;
      bell.ring();
    });
    const stop = () => {
      bell.ring();
      socket.close(); // nobody may ask for another event, and an open socket keeps the process
    };
    over.addEventListener("abort", stop);
    try {
      for (;;) {
        if (over.aborted) return;
        const said = waiting.shift();
        if (said !== undefined) {
          size -= "payload" in said ? (said.payload?.length ?? 0) + (said.payload_base64?.length ?? 0) : 0;
          yield said;
        } else if (full) {
          throw new WeirError("too much waited for the program", "slow");
        } else if (end !== undefined) {
          if (end.code === 4401) throw new WeirError("the token has expired", "expired");
          if (end.code === 4408) throw new WeirError("the hub says that the program did not keep up", "slow");
          if (!opened) await this.#whyNot();
          throw new Error(end.reason);
        } else {
          await bell.wait(Math.max(0, SILENCE - atMost(heardAt)));
          if (atMost(heardAt) >= SILENCE && waiting.length === 0) throw new Error("the hub is silent");
        }
      }
    } finally {
      over.removeEventListener("abort", stop);
      socket.close();
    }
  }

  /** Throws the hub's reason to refuse the subscription, which platforms don't report of a WebSocket. */
  async #whyNot(): Promise<void> {
    for await (const said of this.#fetched(await this.#hub.token())) if (said.type === "subscribed") return;
  }

  /** As an event stream. Nothing is read before the program wants it, so the hub notices if it does not keep up. */
  async *#fetched(token: string): AsyncGenerator<Said> {
    const url = this.#hub.at("/v1/events");
    for (const channel of this.#channels) url.searchParams.append("channel", channel);
    if (this.position !== undefined) url.searchParams.set("position", this.position);
    if (this.#last !== undefined) url.searchParams.set("last", String(this.#last));
    if (this.#options.presence) url.searchParams.set("presence", "true");
    if (this.#options.slow === "skip") url.searchParams.set("slow", "skip");
    yield* events(url, token, SILENCE, this.#over.signal) as AsyncGenerator<Said>;
  }
}

function message({ type, channel, payload, payload_base64, position }: Raw): Message {
  const said: Message = { type, channel, payload: payload ?? "" };
  if (position !== undefined) said.position = position;
  if (payload_base64 !== undefined) said.bytes = Uint8Array.from(atob(payload_base64), (c) => c.charCodeAt(0));
  return said;
}
