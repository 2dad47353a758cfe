// Not run: what must compile, and what must not.

import { defineJobs, payload, Weir } from "@weir-pg/client";
import type { Context, JobDefinitions } from "@weir-pg/client";
import pg from "pg";
import * as v from "valibot";
import { z } from "zod";

const jobs = defineJobs({
  welcome: { schema: z.object({ account: z.number() }), queue: "mail" },
  remind: v.object({ account: v.number(), at: v.pipe(v.string(), v.transform((text) => new Date(text))) }),
  report: payload<{ format: "pdf" }>(),
});
const weir = new Weir({ sql: new pg.Pool(), jobs });

// @ts-expect-error no such option of a definition
defineJobs({ welcome: { schema: z.object({ account: z.number() }), queu: "mail" } });
// @ts-expect-error no such priority
defineJobs({ welcome: { schema: payload<{ account: number }>(), priority: 9 } });
const given: JobDefinitions = jobs;
defineJobs(given);
export const made = <const Jobs extends JobDefinitions>(jobs: Jobs) => new Weir({ hub: "https://hub.example.com", jobs });

export async function enqueues() {
  await weir.enqueue("welcome", { account: 7 });
  await weir.enqueue("remind", { account: 7, at: "2026-11-26" });
  // @ts-expect-error the payload of another job
  await weir.enqueue("welcome", { format: "pdf" });
  // @ts-expect-error a field of another type
  await weir.enqueue("welcome", { account: "7" });
  // @ts-expect-error what the schema makes of it is not what it takes
  await weir.enqueue("remind", { account: 7, at: new Date() });
  // @ts-expect-error no job of this name
  await weir.enqueue("wellcome", { account: 7 });
  // @ts-expect-error no such option
  await weir.enqueue("welcome", { account: 7 }, { delay: 7 });
  // @ts-expect-error no such priority
  await weir.enqueue("welcome", { account: 7 }, { priority: 5 });
  // @ts-expect-error not what can run SQL
  await weir.enqueue("welcome", { account: 7 }, { tx: "BEGIN" });
  await weir.enqueueMany([{ kind: "welcome", payload: { account: 7 } }, { kind: "report", payload: { format: "pdf" }, priority: 1 }]);
  // @ts-expect-error the payload of another job
  await weir.enqueueMany([{ kind: "welcome", payload: { format: "pdf" } }]);
}

export async function works() {
  await weir.work({
    queues: { mail: 8 },
    handlers: {
      welcome: ({ account }, { signal }) => account.toFixed() + signal.aborted,
      remind: ({ at }) => at.getTime(),
      report: async ({ format }, context: Context) => context.progress(50, format satisfies "pdf"),
    },
  });
  // @ts-expect-error no job of this name
  await weir.work({ queues: { mail: 8 }, handlers: { wellcome: () => {} } });
  // @ts-expect-error a payload of another type
  await weir.work({ queues: { mail: 8 }, handlers: { welcome: ({ account }: { account: string }) => account } });
  // @ts-expect-error how many at once?
  await weir.work({ queues: ["mail"], handlers: { welcome: () => {} } });
}

export async function withoutDefinitions() {
  const weir = new Weir({ hub: "https://hub.example.com", token: async () => "…" });
  await weir.enqueue("anything", { goes: true });
  await weir.work({ queues: { default: 1 }, handlers: { anything: (payload) => payload.goes } });
}
