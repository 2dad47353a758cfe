import { now } from "./clock.js";
import { WeirError } from "./errors.js";
import type { Hub } from "./hub.js";
import { AtHub, given, type HubJob, MOST, refusals, type Results, warn, within } from "./hub-link.js";
import { type Cancel, type End, Fatal, type Feed, type Link, type Refusal, type Report } from "./protocol.js";
import { Backoff, Bell, sleep } from "./time.js";
import { connect, type WebSocketConstructor, type WebSocketLike } from "./web-socket.js";

const PING = 5; // seconds between two pings, at most; and at most a third of the lease
const PATIENCE = 15; // seconds to wait for an answer
const HANDOVER = 10; // seconds that jobs have to end at a hub that is stopping, before they are taken along to another

type Answer = { type: string; id?: number; worker: string; lease: number; jobs: HubJob[]; attempts: Cancel[]; warnings: string[]; code: string; error: string; hint?: string } & Results;

/** The way to the jobs over a WebSocket, on which many jobs and ends share a frame: docs/work-http.md. */
export class SocketLink extends AtHub implements Link {
  readonly #WebSocket: WebSocketConstructor;
  readonly #opened = new Bell();
  readonly #answers = new Map<number, { resolve(answer: Answer): void; reject(error: unknown): void }>();
  #socket: WebSocketLike | undefined; // of an open session
  #leave: ((reason: string) => void) | undefined; // ends it, or a connection whose session is not open yet
  #last = 0;
  #over = false;

  constructor(hub: Hub, WebSocket: WebSocketConstructor) {
    super(hub);
    this.#WebSocket = WebSocket;
  }

  async feed(feed: Feed): Promise<void> {
    const backoff = new Backoff();
    let again = false; // the token was refused
    while (!feed.over) {
      try {
        const { code, reason } = await this.#session(feed, await this.hub.token(again), backoff);
        if (feed.over) break;
        again = code === 4401 || again;
        if (code !== 4401) feed.failed(new Error(`weir: ${reason}`));
      } catch (error) {
        const judged = this.judged(error);
        if (judged instanceof Fatal) {
          this.#over = true;
          this.#opened.ring();
          throw judged;
        }
        again = error instanceof WeirError && error.code === "unauthorized";
        feed.failed(error);
      }
      await sleep(backoff.next());
    }
    this.#over = true;
    this.#opened.ring();
  }

  /** One connection, from its beginning to its end. */
  async #session(feed: Feed, token: string, backoff: Backoff): Promise<{ code: number; reason: string }> {
    let quiet = 0; // when the hub began to stop
    let opened = false;
    let lease = 30;
    let askedAt = now();
    let told = false; // that the worker is stopping
    const hello = new Bell();
    const heard: Answer[] = []; // and not yet passed on
    const pass = () => {
      for (let said = heard.shift(); said !== undefined; said = heard.shift()) {
        if (said.type === "cancel") feed.interrupt(said.attempts);
        else if (feed.give(said.jobs.map(given))) {
          heard.unshift(said); // the hub won't give them again: until an answer shows that the lease is not over
          return;
        }
      }
    };
    let refused: WeirError | undefined;
    const { socket, closed, leave } = connect(
      this.#WebSocket,
      this.hub.at("/v1/work/ws"),
      "weir.work.v1",
      token,
      (socket) => {
        askedAt = now();
        told = feed.stopping;
        socket.send(JSON.stringify({ type: "open", ...this.opening(feed, Object.entries(slots(feed))) }));
      },
      (said: Answer) => {
        switch (said.type) {
          case "opened":
            this.worker = said.worker;
            lease = said.lease;
            opened = true;
            this.#socket = socket;
            backoff.reset();
            feed.renewed(askedAt, lease);
            hello.ring();
            this.#opened.ring();
            break;
          case "jobs":
          case "cancel":
            heard.push(said);
            pass();
            break;
          case "warning":
            warn(feed, said.warnings);
            break;
          case "quiet":
            quiet = performance.now();
            feed.wake();
            break;
          case "error": {
            const error = new WeirError(said.error, said.code, said.hint);
            const asked = said.id === undefined ? undefined : this.#answers.get(said.id);
            if (asked) asked.reject(error);
            else if (opened) feed.failed(error);
            else refused = error;
            hello.ring();
            break;
          }
          default:
            if (said.id !== undefined) this.#answers.get(said.id)?.resolve(said);
        }
      },
    );
    let over = false;
    const end = closed.then((why) => {
      over = true;
      this.#socket = this.#leave = undefined;
      const lost = new Error(`weir: ${why.reason}`);
      for (const { reject } of this.#answers.values()) reject(lost);
      hello.ring();
      feed.wake();
      return why;
    });
    this.#leave = leave;
    await hello.wait(PATIENCE);
    if (!opened) {
      leave(`the hub did not answer within ${PATIENCE} seconds`);
      if (refused) throw refused;
      // Platforms don't say why a request was refused: a call does.
      const { reason } = await end;
      await this.#whyNot(feed);
      throw new Error(`weir: ${reason}`);
    }
    const ping = Math.min(PING, lease / 3) * 1000;
    let pingAt = performance.now() + ping;
    let unsure = false;
    while (!over && !feed.over) {
      if (feed.stopping && !told) {
        told = true;
        socket.send(JSON.stringify({ type: "slots", queues: slots(feed) }));
      }
      if (quiet > 0 && (feed.held().length === 0 || performance.now() > quiet + HANDOVER * 1000)) break;
      if (performance.now() >= pingAt || (feed.unsure && !unsure)) {
        pingAt = performance.now() + ping;
        const sentAt = now();
        this.#ask({ type: "ping" }).then(
          () => {
            feed.renewed(sentAt, lease);
            pass();
          },
          () => leave("the hub does not answer"),
        );
      }
      unsure = feed.unsure;
      await feed.changed(Math.min(1, lease / 6));
    }
    if (over) return end;
    if (!feed.over) leave("the hub is stopping");
    return { code: 1012, reason: "the hub is stopping" };
  }

  /** Throws the hub's reason to refuse this worker, if it has one. */
  async #whyNot(feed: Feed): Promise<void> {
    const queues = [...feed.queues.keys()].map((queue): [string, number] => [queue, 0]);
    const answer = (await this.hub.call("POST", "/v1/work/take", JSON.stringify({ ...this.opening(feed, queues), wait: 0 }))) as Answer;
    this.worker = answer.worker;
  }

  async record(ends: readonly End[]): Promise<Refusal[]> {
    return refusals(await this.#ask({ type: "record", ends }));
  }

  async report(entries: readonly Report[]): Promise<Refusal[]> {
    return refusals(await this.#ask({ type: "progress", entries }));
  }

  /** Sends a request as soon as there is a session, and waits for the answer. */
  async #ask(request: object): Promise<Answer> {
    while (this.#socket === undefined) {
      if (this.#over) throw new Fatal(new Error("weir: there is no session at the hub"));
      await this.#opened.wait();
    }
    const id = ++this.#last;
    const socket = this.#socket;
    const leave = this.#leave!;
    const answer = new Promise<Answer>((resolve, reject) => this.#answers.set(id, { resolve, reject }));
    const timer = setTimeout(() => leave(`the hub did not answer within ${PATIENCE} seconds`), PATIENCE * 1000);
    try {
      socket.send(JSON.stringify({ ...request, id }));
      return await answer;
    } finally {
      clearTimeout(timer);
      this.#answers.delete(id);
    }
  }

  /** What a session has named is renewed for as long as it is open, also one that is still being opened. */
  lapse(): void {
    this.#leave?.("the lease is over");
    this.#socket = this.#leave = undefined;
  }

  override async stop(): Promise<void> {
    const socket = this.#socket;
    try {
      if (socket === undefined) await super.stop();
      else await this.#ask({ type: "stop" });
    } finally {
      socket?.close();
    }
  }
}

function slots(feed: Feed): Record<string, number> {
  if (feed.stopping) return Object.fromEntries([...feed.queues.keys()].map((queue) => [queue, 0]));
  return Object.fromEntries(within(feed.queues, MOST));
}
