// A worker of BullMQ, steered by lines on its standard input, that writes a line of JSON for whatever happens.
import { createInterface } from "node:readline";

const [module, port, name] = process.argv.slice(2);
const { Queue, Worker } = await import(module);
const connection = { host: "127.0.0.1", port: Number(port) };
const say = (what) => console.log(JSON.stringify(what));
const queue = new Queue(name, { connection });
await queue.waitUntilReady();
let worker;

const commands = {
  pause: () => queue.pause(),
  resume: () => queue.resume(),
  counts: async () => say({ counts: await queue.getJobCounts("wait", "paused", "completed", "failed") }),
  // While nothing is there it waits for five minutes, unless it is woken.
  work: () => {
    worker = new Worker(name, async (job) => {
      if (job.name === "failing" && job.attemptsMade === 0) throw new Error("it fails once");
      say({ id: job.id, name: job.name, data: job.data, attempts: job.opts.attempts ?? 0, made: job.attemptsMade, timestamp: job.timestamp });
    }, { connection, concurrency: 1, drainDelay: 300 });
    worker.on("error", (error) => console.error(error));
    return worker.waitUntilReady();
  },
};
say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  await commands[line]();
  say({ done: line });
}
await worker?.close(true);
await queue.close();
process.exit(0);
