import { duration, type EnqueueOptions, knowsUnique, whole } from "./enqueue.js";
import { isPlain, knows, wrong } from "./options.js";

/** What is used of Standard Schema (https://standardschema.dev), which zod, valibot, arktype and others implement. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => Validated<Output> | Promise<Validated<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

export type Validated<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly Issue[] };

export interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** What is known of a job from its name: the shape of its payload, and options for `enqueue` and `work` that it has unless a call says otherwise. */
export interface JobDefinition<Schema extends StandardSchema<any, any> = StandardSchema<any, any>>
  extends Pick<EnqueueOptions, "queue" | "priority" | "maxAttempts" | "unique"> {
  readonly schema: Schema;
  /** For how many seconds an attempt may run. By default as the worker says. */
  readonly timeout?: number;
}

/** All jobs of a program, by name. A schema alone is a definition too. */
export type JobDefinitions = Readonly<Record<string, StandardSchema<any, any> | JobDefinition>>;

type SchemaOf<D> = D extends StandardSchema<any, any> ? D : D extends JobDefinition<infer Schema> ? Schema : never;

/** The payload that `enqueue` takes for a definition. */
export type Input<D> = SchemaOf<D> extends StandardSchema<infer I, any> ? I : never;

/** The payload that a handler gets: what the schema has made of it. */
export type Output<D> = SchemaOf<D> extends StandardSchema<any, infer O> ? O : never;

/** A schema that only TypeScript checks: `{ welcome: payload<{ account: number }>() }`. */
export function payload<T extends object>(): StandardSchema<T, T> {
  return { "~standard": { version: 1, vendor: "weir", validate: (value) => ({ value: value as T }) } };
}

/** Definitions without options that there are not. */
type Exact<Jobs> = { readonly [Kind in keyof Jobs]: Jobs[Kind] extends StandardSchema<any, any> ? Jobs[Kind] : { readonly [Name in keyof Jobs[Kind]]: Name extends keyof JobDefinition ? Jobs[Kind][Name] : never } };

/** Returns definitions as they are, for those that several modules share: `export const jobs = defineJobs({ … })`. */
export function defineJobs<const Jobs extends JobDefinitions>(jobs: Jobs & Exact<Jobs>): Jobs {
  knowsJobs(jobs);
  return jobs;
}

/** Returns the definition of a job, whichever way it is written; undefined: it has none. */
export function definitionOf(jobs: JobDefinitions, kind: string): JobDefinition | undefined {
  const given = Object.hasOwn(jobs, kind) ? jobs[kind] : undefined;
  return given === undefined || !isSchema(given) ? given : { schema: given };
}

const knowsDefinition = knows<JobDefinition>("a job's definition", { schema: 1, queue: 1, priority: 1, maxAttempts: 1, unique: 1, timeout: 1 });

/** Throws if a definition is none. */
export function knowsJobs(jobs: JobDefinitions): void {
  if (!isPlain(jobs)) throw wrong("jobs", jobs, "an object that has the definition of each job by its name");
  for (const [kind, given] of Object.entries(jobs)) {
    if (isSchema(given)) continue;
    knowsDefinition(given, `the definition of ${kind}`);
    const { schema, queue, priority, maxAttempts, unique, timeout } = given;
    if (!isSchema(schema)) throw wrong(`the schema of ${kind}`, schema, "a Standard Schema, such as one of zod's, or payload<T>()");
    if (queue !== undefined && (typeof queue !== "string" || queue === "")) throw wrong(`the queue of ${kind}`, queue, "the name of a queue");
    if (priority !== undefined) whole(priority, 1, 4, `the priority of ${kind}`);
    if (maxAttempts !== undefined) whole(maxAttempts, 1, 1000, `maxAttempts of ${kind}`);
    if (unique !== undefined && typeof unique !== "boolean") knowsUnique(unique, `unique of ${kind}`);
    if (timeout !== undefined) duration(timeout, `the timeout of ${kind}`);
  }
}

function isSchema(value: unknown): value is StandardSchema<any, any> {
  return ((typeof value === "object" && value !== null) || typeof value === "function") && "~standard" in value; // arktype's are functions
}

/** A payload that does not have the shape of its job. */
export class InvalidPayload extends TypeError {
  override name = "InvalidPayload";
  readonly issues: readonly Issue[];

  constructor(kind: string, issues: readonly Issue[]) {
    super(`the payload of ${kind} is invalid: ${issues.slice(0, 10).map(told).join("; ")}`);
    this.issues = issues;
  }
}

function told({ path, message }: Issue): string {
  const place = path?.map((step) => String(typeof step === "object" ? step.key : step)).join(".");
  return place ? `${place}: ${message}` : message;
}

export async function validated(definition: JobDefinition, kind: string, value: unknown): Promise<unknown> {
  let result = definition.schema["~standard"].validate(value);
  if (result instanceof Promise) result = await result;
  if (result.issues) throw new InvalidPayload(kind, result.issues);
  return result.value;
}
