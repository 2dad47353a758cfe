// How fast one Node.js process drains jobs that do nothing, beside graphile-worker and pg-boss, in turns on one server:
//
//     weir dev                                                            # in another directory, and terminal
//     npm install && npm --prefix .. run build
//     DATABASE_URL=$(cat …/.weir/url) HUB_URL=http://127.0.0.1:8080 node bench.mjs [jobs] [rounds] [concurrency]

import { connect, graphileWorker, pgBoss, weir } from "./engines.mjs";

const [n = 20_000, rounds = 3, concurrency = 500] = process.argv.slice(2).map(Number);
const url = process.env.DATABASE_URL;
const hub = process.env.HUB_URL;
const pool = connect(url);
const engines = {
  "Weir over SQL": (given) => weir(given),
  ...(hub && { "Weir over a WebSocket": (given) => weir({ ...given, hub }), "Weir by long polling": (given) => weir({ ...given, hub, polls: true }) }),
  "graphile-worker": graphileWorker,
  "pg-boss": pgBoss,
};

const rates = Object.fromEntries(Object.keys(engines).map((name) => [name, []]));
for (let round = 0; round < rounds; round++) {
  for (const [name, engine] of Object.entries(engines)) {
    const rate = n / (await engine({ url, pool, n, concurrency }));
    rates[name].push(rate);
    console.log(`round ${round + 1}: ${name}: ${Math.round(rate)} jobs/s`);
  }
}
const median = (all) => [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)];
console.log(`\nmedian of ${rounds} rounds of ${n} jobs, ${concurrency} at once:`);
for (const [name, all] of Object.entries(rates)) console.log(`${name.padEnd(24)} ${String(Math.round(median(all))).padStart(7)} jobs/s`);
await pool.end();
process.exit();
