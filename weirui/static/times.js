// What the other scripts share.
"use strict";
// weirAddress is an address relative to the page's, without the name and the password that may be in it: scripts can ask for none that has them.
const weirAddress = (to) => {
  const at = new URL(to, location.href);
  at.username = at.password = "";
  return at.href;
};

// Times on the clock of whoever looks: in one form, whatever the browser's language.
const weirTimes = (() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";
  const part = (options) => new Intl.DateTimeFormat("en-GB", { hourCycle: "h23", ...options });
  const short = part({ timeZoneName: "short" });
  const minute = part({ hour: "2-digit", minute: "2-digit" });
  const second = part({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const weekday = part({ weekday: "short" });
  const two = (n) => String(n).padStart(2, "0");
  const named = (at) => short.formatToParts(at).find((p) => p.type === "timeZoneName").value; // differs in summer
  return {
    zone,
    minute: (at) => minute.format(at),
    second: (at) => second.format(at),
    weekday: (at) => `${weekday.format(at)} ${minute.format(at)}`,
    full: (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${second.format(at)} ${named(at)}`,
  };
})();
