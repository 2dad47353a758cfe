// Says, a line each, what becomes of streams with tokens: node tokens.mjs HUB VALID EXPIRED
import { WeirSocket } from "../../../../examples/browser/weir.js";

const [hub, valid, expired] = process.argv.slice(2);

// follow resolves when the stream is open, or closed for good.
function follow(name, token, channels) {
  return new Promise((resolve) => {
    const stream = new WeirSocket(hub, { channels, token });
    stream.onstate = (state, detail) => {
      if (state !== "open" && state !== "closed") return;
      console.log(`${name}: ${state} ${detail}`.trim());
      stream.onstate = () => {};
      stream.close();
      resolve();
    };
  });
}

let asked = 0;
await follow("a function's second token", async () => (asked++ ? valid : expired), ["a"]);
await follow("a token that stays", valid, ["a"]);
await follow("an expired token that stays", expired, ["a"]);
console.log(`asked ${asked} times`);
process.exit(0);
