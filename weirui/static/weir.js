// Weir's web UI works without this script. With it, pages stay up to date, times are local, and actions ask without another page.
"use strict";
(() => {
  const every = 2000; // ms between two looks at the server
  const longest = 30000; // ms between two looks after failures
  const longestSearch = 60000; // ms
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");
  let tag = "";
  let pause = every;
  let fresh = new Date(); // when the page was last up to date

  // Times are in UTC without the script.
  const localize = (root) => {
    for (const t of root.querySelectorAll("time[datetime]")) {
      const text = weirTimes.full(new Date(t.dateTime));
      if ("clock" in t.dataset) t.textContent = text;
      else t.title = text;
    }
  };

  // What somebody is working in is not replaced under their hands.
  const busy = (part) => {
    const at = document.activeElement;
    if (part.contains(at) && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName)) return true;
    const chosen = document.getSelection();
    return chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode);
  };

  // replace puts the live parts of a new version of the page in the place of the old ones.
  const replace = (html) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    let kept = false;
    for (const part of main.querySelectorAll("[data-live]")) {
      const now = page.getElementById(part.id);
      if (!now || now.innerHTML === part.dataset.was) continue;
      if (busy(part)) {
        kept = true;
        continue;
      }
      const was = now.innerHTML;
      const focused = part.contains(document.activeElement) ? document.activeElement.id || document.activeElement.getAttribute("href") : "";
      const open = [...part.querySelectorAll("details[open][id]")].map((d) => d.id);
      const scrolled = [...part.querySelectorAll(".wide")].map((w) => w.scrollLeft);
      part.replaceChildren(...now.childNodes);
      part.querySelectorAll(".wide").forEach((w, i) => (w.scrollLeft = scrolled[i] ?? 0));
      part.dataset.was = was;
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
      if (focused) (document.getElementById(focused) ?? part.querySelector(`[href="${CSS.escape(focused)}"]`))?.focus({ preventScroll: true });
      localize(part);
    }
    return !kept;
  };

  const ask = (address, headers = {}) =>
    fetch(address, { headers: { "Weir-Fragment": "1", Accept: "text/html", ...headers }, cache: "no-store", signal: AbortSignal.timeout(15000) });

  const look = async () => {
    try {
      const answer = await ask(weirAddress(""), tag ? { "If-None-Match": tag } : {});
      if (answer.redirected || answer.status === 401) {
        location.reload(); // to log in again
        return;
      }
      if (answer.status !== 304) {
        if (!answer.ok) {
          // The server says why. What is between may answer too, in pages of its own.
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          throw new Error(page.querySelector("body > .problem")?.textContent ?? `the server answers ${answer.status} ${answer.statusText}`);
        }
        tag = replace(await answer.text()) ? (answer.headers.get("ETag") ?? "") : "";
        document.dispatchEvent(new CustomEvent("weir:fresh"));
      }
      connection.textContent = "";
      pause = every;
      fresh = new Date();
    } catch (error) {
      pause = Math.min(pause * 2, longest);
      const reason = error instanceof TypeError ? "the server can't be reached" : error.message.replace(/\.$/, "");
      connection.textContent = `Not up to date since ${weirTimes.second(fresh)}: ${reason}. Tries again until it succeeds, next at ${weirTimes.second(new Date(Date.now() + pause))}.`;
    }
  };

  // lookOn goes on with a search that has found nothing so far, until it finds something or somebody leaves the page. The server looks for some 40 ms at a time,
  // and rests as long. After a failure, or very long, the link is left to whoever wants to know.
  const lookOn = async () => {
    const began = Date.now();
    for (;;) {
      const link = document.getElementById("look-on");
      if (!link || document.hidden || Date.now() - began > longestSearch) return;
      link.textContent = `looking on, for ${Math.round((Date.now() - began) / 1000)} s`;
      const asked = Date.now();
      const next = link.getAttribute("href");
      const answer = await ask(weirAddress(next)).catch(() => null);
      if (!answer?.ok || answer.redirected) break;
      const page = await answer.text();
      history.replaceState(null, "", next);
      tag = "";
      replace(page);
      await new Promise((done) => setTimeout(done, Math.min(Date.now() - asked, 1000)));
    }
    const link = document.getElementById("look-on");
    if (link) link.textContent = "look on";
  };

  const loop = async () => {
    for (;;) {
      await new Promise((done) => setTimeout(done, pause));
      if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
      if (main.querySelector("[data-live]")) await look();
    }
  };

  document.addEventListener("submit", (event) => {
    const ask = event.target.dataset.ask;
    if (ask && !confirm(ask)) {
      event.preventDefault();
      return;
    }
    // Who has answered here is not asked again by the server.
    if (ask && !event.target.elements.sure) {
      const sure = document.createElement("input");
      Object.assign(sure, { type: "hidden", name: "sure", value: "yes" });
      event.target.append(sure);
    }
    // Empty fields of a search don't belong in its address.
    if (event.target.method === "get") for (const field of event.target.elements) if (!field.value) field.disabled = true;
    // Twice the same is not meant twice.
    setTimeout(() => event.target.querySelectorAll("button").forEach((b) => (b.disabled = true)));
  });
  addEventListener("pageshow", () => document.querySelectorAll("form :disabled").forEach((f) => (f.disabled = false)));

  document.getElementById("zone").textContent = "Times in " + weirTimes.zone;
  localize(document);
  lookOn().finally(loop);
})();
