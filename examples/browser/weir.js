// A browser client for hubs, as a module. Copy this file next to your page; it has no dependencies.
//
//   import { WeirSocket } from "./weir.js";
//   const stream = new WeirSocket("https://hub.example.com", { channels: ["orders.*"] });
//   stream.onmessage = ({ channel, payload, position }) => …;
//   stream.onhistory = ({ history, complete }) => …;     // with the option last; by default each message of it goes to onmessage
//   stream.onpresence = ({ channel, joined, left, count }) => …; // with the option presence: who joins and leaves
//   stream.onmembers = ({ channel, users, count }) => …; // the answer to stream.members(channel): ask in each state "open", because events say only what changes, and after an event with only a count
//   stream.ongap     = ({ from, to, reason }) => …;      // messages between them may be missing: reload what you show
//   stream.onstate   = (state, detail) => …;             // "connecting", "open", "waiting" (to try again) or "closed" (by you, or refused)
//   stream.publish("orders.new", "42");
//   stream.close();
//
// WeirEvents is the same over Server-Sent Events, and can't publish. Both reconnect automatically and resume at their position, so
// that no message is missed or delivered twice. Options: channels, token, position (where to start), last (begin with the last
// messages of each channel, this many), presence (who joins and leaves), skip (be skipped ahead instead of disconnected when the page is too slow). If tokens expire, pass a function that returns a token or a promise of one: it is called for
// each connection. If the token is refused and there is no function to get another, the stream closes and reports why.

// at returns the URL of one of a hub's paths. The hub may itself be below a path.
export function at(hub, path) {
  const { origin, pathname } = new URL(hub);
  return new URL(origin + pathname.replace(/\/*$/, path));
}

class WeirStream {
  constructor(hub, { channels, token = "", position = "", last = 0, presence = false, skip = false }) {
    Object.assign(this, { hub, channels, token, position, last, presence, skip, failures: 0, opened: false, over: false });
    this.onmessage = this.onpresence = this.onmembers = this.ongap = this.onheartbeat = this.onerror = this.onstate = () => {};
    this.onhistory = ({ history }) => history.forEach((message) => this.onmessage(message));
    queueMicrotask(() => this.over || this.open()); // after the page has set its handlers
  }

  // open gets a token, if one is needed, and connects.
  async open() {
    this.opened = false;
    this.onstate("connecting", "");
    try {
      this.shown = typeof this.token === "function" ? await this.token() : this.token;
    } catch (error) {
      return this.again(`there is no token: ${error.message}`);
    }
    if (!this.over) this.connect();
  }

  // ended opens the stream again, unless the hub has refused it for good.
  async ended(why, expired = false) {
    const renewable = typeof this.token === "function";
    const refusal = expired ? { status: 401, error: why } : this.opened ? undefined : await this.refusal();
    if (refusal && !(refusal.status === 401 && renewable)) this.close(refusal.error);
    else this.again(refusal?.error ?? why);
  }

  // refusal asks the hub why it refuses a stream, which browsers don't report.
  async refusal() {
    const stop = new AbortController();
    try {
      const { status, ...answer } = await fetch(this.events(), { signal: stop.signal }).then(async (response) =>
        response.ok ? { status: 200 } : { status: response.status, ...await response.json() });
      return status >= 400 && status < 500 && status !== 429 ? { status, error: answer.error } : undefined;
    } catch {
      return undefined; // the hub can't be reached now
    } finally {
      stop.abort();
    }
  }

  // events returns the URL of the event stream.
  events() {
    const url = at(this.hub, "/v1/events");
    for (const channel of this.channels) url.searchParams.append("channel", channel);
    if (this.shown) url.searchParams.set("access_token", this.shown);
    if (this.position) url.searchParams.set("position", this.position);
    else if (this.last) url.searchParams.set("last", this.last);
    if (this.presence) url.searchParams.set("presence", "true");
    if (this.skip) url.searchParams.set("slow", "skip");
    return url;
  }

  // hear handles what the hub sends, over either transport.
  hear(said) {
    for (const message of said.history ?? [said]) {
      if (message.type === "message" && !message.payload && message.payload_base64 !== undefined) {
        message.bytes = Uint8Array.from(atob(message.payload_base64), (c) => c.charCodeAt(0));
      }
    }
    this.position = said.to ?? said.position ?? this.position;
    switch (said.type) {
      case "subscribed": this.failures = 0; this.opened = true; this.onstate("open", ""); if (said.history) this.onhistory(said); break;
      case "message":    this.onmessage(said); break;
      case "gap":        this.ongap(said); break;
      case "heartbeat":  this.onheartbeat(said); break;
      case "presence":   this.onpresence(said); break;
      case "members":    this.onmembers(said); break;
      case "error":      this.onerror(said); break;
    }
  }

  // again reopens the stream after a random delay, which grows with each failure.
  again(why) {
    if (this.over) return;
    const wait = Math.min(500 * 2 ** this.failures++, 15000) * (0.5 + Math.random());
    this.onstate("waiting", why);
    this.timer = setTimeout(() => this.open(), wait);
  }

  close(why = "") {
    if (this.over) return;
    this.over = true;
    clearTimeout(this.timer);
    this.hangUp();
    this.onstate("closed", why);
  }
}

export class WeirSocket extends WeirStream {
  connect() {
    const url = at(this.hub, "/v1/ws");
    url.protocol = url.protocol.replace("http", "ws");
    if (this.skip) url.searchParams.set("slow", "skip");
    const socket = new WebSocket(url, this.shown ? ["weir.v1", "bearer." + this.shown] : ["weir.v1"]);
    this.socket = socket;
    socket.onopen = () => {
      this.say({ type: "subscribe", channels: this.channels, position: this.position, last: this.position ? 0 : this.last, presence: this.presence });
      this.alive();
    };
    socket.onmessage = ({ data }) => {
      this.alive();
      this.hear(JSON.parse(data));
    };
    const over = ({ code, reason }) => {
      if (socket !== this.socket) return;
      this.socket = undefined;
      clearTimeout(this.silence);
      this.ended(reason || (code ? `the connection ended (${code})` : "the connection failed"), code === 4401);
    };
    socket.onclose = over;
    socket.onerror = () => over({}); // not every browser fires close after error
  }

  // alive notes that the hub is alive: it sends something every 25 seconds, so after a minute of silence the connection is dead.
  alive() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => { this.hangUp(); this.again("the hub is silent"); }, 60000);
  }

  say(request) { this.socket.send(JSON.stringify(request)); }

  // members asks who is on a channel.
  members(channel, after = "") { this.say({ type: "presence", channel, after }); }

  publish(channel, payload) { this.say({ type: "publish", channel, payload }); }

  hangUp() {
    clearTimeout(this.silence);
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
  }
}

export class WeirEvents extends WeirStream {
  asking = 0; // questions without an answer
  held = []; // events that came in the meantime

  connect() {
    const events = this.source = new EventSource(this.events());
    for (const type of ["subscribed", "message", "gap", "heartbeat", "presence"]) {
      events.addEventListener(type, ({ data }) => {
        const said = JSON.parse(data);
        if (type === "presence" && this.asking) this.held.push(said);
        else this.hear(said);
      });
    }
    events.addEventListener("end", ({ data }) => {
      const said = JSON.parse(data);
      if (said.code !== "expired" || events !== this.source) return;
      this.hangUp();
      this.ended(said.error ?? "the token has expired", true);
    });
    events.onerror = () => {
      if (events !== this.source) return;
      // An EventSource resumes a broken stream by itself, with the same token, but gives up after a refused request.
      if (events.readyState === EventSource.CLOSED) {
        this.opened = false;
        this.ended("the hub can't be reached, or refuses the request");
      }
      else this.onstate("waiting", "the stream ended");
    };
  }

  // members asks who is on a channel. The answer comes apart from the stream, and may be older than events that come before it: these wait for it.
  async members(channel, after = "") {
    const url = at(this.hub, "/v1/presence");
    url.searchParams.set("channel", channel);
    if (after) url.searchParams.set("after", after);
    this.asking++;
    const said = await fetch(url, { headers: this.shown ? { authorization: `Bearer ${this.shown}` } : {} })
      .then(async (response) => ({ type: response.ok ? "members" : "error", ...await response.json() }))
      .catch(({ message }) => ({ type: "error", error: message }));
    this.asking--;
    if (this.over) return;
    for (const event of [said, ...this.asking ? [] : this.held.splice(0)]) this.hear(event);
  }

  hangUp() {
    this.source?.close();
    this.source = undefined;
  }
}
