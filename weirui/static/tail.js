// Shows messages as they come, newest first.
"use strict";
(() => {
  const most = 500; // rows
  const list = document.getElementById("tail");
  const state = document.getElementById("tail-state");
  const button = document.getElementById("tail-pause");
  const aloud = document.getElementById("tail-aloud");
  const address = weirAddress(list.dataset.events);
  const waiting = []; // while paused
  let paused = false;
  let source;

  const element = (name, text, kind) => {
    const e = document.createElement(name);
    e.textContent = text;
    if (kind) e.className = kind;
    return e;
  };

  const show = (row) => {
    if (!paused) list.prepend(row);
    else if (waiting.push(row) > most) waiting.shift();
    while (list.children.length > most) list.lastChild.remove();
    if (paused) button.textContent = `Continue (${waiting.length})`;
  };

  const remark = (text) => show(element("li", text, "none"));

  const message = ({ at, channel, payload, bytes, note }) => {
    const row = document.createElement("li");
    const time = element("time", weirTimes.full(new Date(at)));
    time.dateTime = at;
    row.append(time, " ", element("strong", channel), " ", element("span", `${bytes.toLocaleString()} bytes${note ? ", " + note : ""}`, "none"), element("pre", payload));
    show(row);
  };

  // An EventSource doesn't say why it was refused.
  const refused = async () => {
    const stop = new AbortController();
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" }, signal: stop.signal });
      state.textContent = answer.ok ? "Disconnected: reload the page." : (await answer.json()).error;
    } catch (error) {
      state.textContent = "Disconnected: " + error.message;
    }
    stop.abort();
  };

  const connect = () => {
    source = new EventSource(address);
    const on = (kind, what) => source.addEventListener(kind, (event) => what(JSON.parse(event.data)));
    on("ready", () => (state.textContent = "Connected."));
    on("message", message);
    on("left", ({ messages }) => remark(`${messages.toLocaleString()} more messages are not shown: there are too many.`));
    on("gap", ({ reason }) => remark(`Messages may be missing here (${reason}).`));
    on("problem", ({ error }) => remark(error));
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) refused();
      else state.textContent = "Connecting again …";
    };
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    if (!paused) for (const row of waiting.splice(0)) show(row);
  });
  aloud.addEventListener("change", () => list.setAttribute("aria-live", aloud.checked ? "polite" : "off"));
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => event.persisted && connect()); // it comes back from the browser's cache
  connect();
})();
