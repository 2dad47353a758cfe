// Sends jobs as standard input says, a line of JSON each.
import { text } from "node:stream/consumers";
import { boss } from "./boss.mjs";

const jobs = (await text(process.stdin)).trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
const retry = { retryDelay: 1, retryBackoff: true };
await boss.insert("welcome", jobs.map((j) => ({ data: { account: j.account }, startAfter: j.at, retryLimit: j.attempts - 1, priority: j.first ? 5 : 0, ...retry })));
await boss.stop();
process.exit();
