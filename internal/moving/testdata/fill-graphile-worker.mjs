// Adds jobs as standard input says, a line of JSON each.
import { makeWorkerUtils } from "graphile-worker";
import { text } from "node:stream/consumers";

const utils = await makeWorkerUtils({ connectionString: process.env.DATABASE_URL });
await utils.migrate();
const jobs = (await text(process.stdin)).trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
await utils.addJobs(jobs.map((j) => ({ identifier: "welcome", payload: { account: j.account }, runAt: j.at && new Date(j.at), maxAttempts: j.attempts, priority: j.first ? -5 : 0 })));
process.exit();
