// Says, a line each, what streams receive that begin with the last two messages: node history.mjs HUB
import { WeirSocket } from "../../../../examples/browser/weir.js";

const [hub] = process.argv.slice(2);

// follow resolves when the stream has received n messages.
function follow(n, opened, options) {
  return new Promise((resolve) => {
    const stream = new WeirSocket(hub, { channels: ["room.*"], last: 2, ...options });
    const received = [];
    stream.onstate = (state) => state === "open" && opened(stream);
    stream.onmessage = ({ payload }) => {
      received.push(payload);
      if (received.length < n) return;
      stream.close();
      resolve([received.join(" "), stream.position]);
    };
  });
}

const [first, position] = await follow(3, (stream) => stream.publish("room.1", "live"));
console.log(`begins: ${first}`);
const [second] = await follow(1, (stream) => stream.publish("room.1", "later"), { position });
console.log(`continues: ${second}`);
process.exit(0);
