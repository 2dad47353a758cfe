// A hub's streams, for browsers: a module. Copy this file beside your page; it needs nothing else.
//
//   import { WeirSocket } from "./weir.js";
//   const stream = new WeirSocket("https://hub.example.com", { channels: ["orders.*"] });
//   stream.onmessage = ({ channel, payload, position }) => …;
//   stream.ongap     = ({ from, to, reason }) => …;      // messages between them may be missing: load what you show anew
//   stream.onstate   = (state, detail) => …;             // "connecting", "open", "waiting" (to try again) or "closed" (by you, or refused)
//   stream.publish("orders.new", "42");
//   stream.close();
//
// WeirEvents is the same over Server-Sent Events, and can't publish. Both come back by themselves, at the position they had got to, so
// that nothing is missed and nothing comes twice. Options: channels, token, position (where to resume at first), skip (be skipped ahead
// rather than cut off when the page is too slow). A token that does not live for ever is given as a function that fetches one, or promises
// to: it is called for each connection. With a token that is refused, and no function to get another, the stream closes and says why.

class WeirStream {
  constructor(hub, { channels, token = "", position = "", skip = false }) {
    Object.assign(this, { hub, channels, token, position, skip, failures: 0, opened: false, over: false });
    this.onmessage = this.ongap = this.onheartbeat = this.onerror = this.onstate = () => {};
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

  // ended opens the stream anew, unless that is no use.
  async ended(why, expired = false) {
    const renewable = typeof this.token === "function";
    const refusal = expired ? { status: 401, error: why } : this.opened ? undefined : await this.refusal();
    if (refusal && !(refusal.status === 401 && renewable)) this.close(refusal.error);
    else this.again(refusal?.error ?? why);
  }

  // refusal asks the hub why it refuses a stream, which a browser does not tell.
  async refusal() {
    const stop = new AbortController();
    try {
      const { status, ...answer } = await fetch(this.events(), { signal: stop.signal }).then(async (response) =>
        response.ok ? { status: 200 } : { status: response.status, ...await response.json() });
      return status >= 400 && status < 500 && status !== 429 ? { status, error: answer.error } : undefined;
    } catch {
      return undefined; // it can't be reached, and may be soon
    } finally {
      stop.abort();
    }
  }

  // events is the address of the event stream.
  events() {
    const url = new URL("/v1/events", this.hub);
    for (const channel of this.channels) url.searchParams.append("channel", channel);
    if (this.shown) url.searchParams.set("access_token", this.shown);
    if (this.position) url.searchParams.set("position", this.position);
    if (this.skip) url.searchParams.set("slow", "skip");
    return url;
  }

  // hear takes what the hub says, whichever way it came.
  hear(said) {
    if (said.type === "message" && !said.payload && said.payload_base64 !== undefined) {
      said.bytes = Uint8Array.from(atob(said.payload_base64), (c) => c.charCodeAt(0));
    }
    this.position = said.to ?? said.position ?? this.position;
    switch (said.type) {
      case "subscribed": this.failures = 0; this.opened = true; this.onstate("open", ""); break;
      case "message":    this.onmessage(said); break;
      case "gap":        this.ongap(said); break;
      case "heartbeat":  this.onheartbeat(said); break;
      case "error":      this.onerror(said); break;
    }
  }

  // again opens the stream anew after a while: the longer the more often it failed, and never all pages at once.
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
    const url = new URL("/v1/ws", this.hub);
    url.protocol = url.protocol.replace("http", "ws");
    if (this.skip) url.searchParams.set("slow", "skip");
    const socket = new WebSocket(url, this.shown ? ["weir.v1", "bearer." + this.shown] : ["weir.v1"]);
    this.socket = socket;
    socket.onopen = () => {
      this.say({ type: "subscribe", channels: this.channels, position: this.position });
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
    socket.onerror = () => over({}); // not everywhere is it followed by the other
  }

  // alive notes that the hub lives: it speaks every 25 seconds, so a minute's silence means that the network has gone.
  alive() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => { this.hangUp(); this.again("the hub is silent"); }, 60000);
  }

  say(request) { this.socket.send(JSON.stringify(request)); }

  publish(channel, payload) { this.say({ type: "publish", channel, payload }); }

  hangUp() {
    clearTimeout(this.silence);
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
  }
}

export class WeirEvents extends WeirStream {
  connect() {
    const events = this.source = new EventSource(this.events());
    for (const type of ["subscribed", "message", "gap", "heartbeat"]) {
      events.addEventListener(type, ({ data }) => this.hear(JSON.parse(data)));
    }
    events.addEventListener("end", ({ data }) => {
      const said = JSON.parse(data);
      if (said.code !== "expired" || events !== this.source) return;
      this.hangUp();
      this.ended(said.error ?? "the token has expired", true);
    });
    events.onerror = () => {
      if (events !== this.source) return;
      // A broken stream an EventSource resumes itself, with the same token; a refused request it gives up.
      if (events.readyState === EventSource.CLOSED) {
        this.opened = false;
        this.ended("the hub can't be reached, or refuses the request");
      }
      else this.onstate("waiting", "the stream ended");
    };
  }

  hangUp() {
    this.source?.close();
    this.source = undefined;
  }
}
