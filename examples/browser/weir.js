// A hub's streams, for browsers. Copy this file into your page; it needs nothing else.
//
//   const stream = new WeirSocket("https://hub.example.com", { channels: ["orders.*"] });
//   stream.onmessage = ({ channel, payload, position }) => …;
//   stream.ongap     = ({ from, to, reason }) => …;      // messages between them may be missing: load what you show anew
//   stream.onstate   = (state, detail) => …;             // "connecting", "open", "waiting" (to try again) or "closed"
//   stream.publish("orders.new", "42");
//   stream.close();
//
// WeirEvents is the same over Server-Sent Events, and can't publish. Both come back by themselves, at the position they had got to, so
// that nothing is missed and nothing comes twice. Options: channels, token, position (where to resume at first), skip (be skipped ahead
// rather than cut off when the page is too slow).

class WeirStream {
  constructor(hub, { channels, token = "", position = "", skip = false }) {
    Object.assign(this, { hub, channels, token, position, skip, failures: 0, over: false });
    this.onmessage = this.ongap = this.onheartbeat = this.onerror = this.onstate = () => {};
    queueMicrotask(() => this.over || this.open()); // after the page has set its handlers
  }

  // hear takes what the hub says, whichever way it came.
  hear(said) {
    if (said.type === "message" && !said.payload && said.payload_base64 !== undefined) {
      said.bytes = Uint8Array.from(atob(said.payload_base64), (c) => c.charCodeAt(0));
    }
    this.position = said.to ?? said.position ?? this.position;
    switch (said.type) {
      case "subscribed": this.failures = 0; this.onstate("open", ""); break;
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

  close() {
    this.over = true;
    clearTimeout(this.timer);
    this.hangUp();
    this.onstate("closed", "");
  }
}

class WeirSocket extends WeirStream {
  open() {
    this.onstate("connecting", "");
    const url = new URL("/v1/ws", this.hub);
    url.protocol = url.protocol.replace("http", "ws");
    if (this.skip) url.searchParams.set("slow", "skip");
    const socket = new WebSocket(url, this.token ? ["weir.v1", "bearer." + this.token] : ["weir.v1"]);
    this.socket = socket;
    socket.onopen = () => {
      this.say({ type: "subscribe", channels: this.channels, position: this.position });
      this.alive();
    };
    socket.onmessage = ({ data }) => {
      this.alive();
      this.hear(JSON.parse(data));
    };
    socket.onclose = ({ code, reason }) => {
      if (socket === this.socket) {
        clearTimeout(this.silence);
        this.again(reason || `the connection ended (${code})`);
      }
    };
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

class WeirEvents extends WeirStream {
  open() {
    this.onstate("connecting", "");
    const url = new URL("/v1/events", this.hub);
    for (const channel of this.channels) url.searchParams.append("channel", channel);
    if (this.token) url.searchParams.set("access_token", this.token);
    if (this.position) url.searchParams.set("position", this.position);
    if (this.skip) url.searchParams.set("slow", "skip");
    const events = new EventSource(url);
    this.events = events;
    for (const type of ["subscribed", "message", "gap", "heartbeat"]) {
      events.addEventListener(type, ({ data }) => this.hear(JSON.parse(data)));
    }
    events.onerror = () => {
      if (events !== this.events) return;
      // A broken stream an EventSource resumes itself; a refused request it gives up.
      if (events.readyState === EventSource.CLOSED) this.again("the hub can't be reached, or refuses the request");
      else this.onstate("waiting", "the stream ended");
    };
  }

  hangUp() {
    this.events?.close();
    this.events = undefined;
  }
}
