// The ways to run a statement. Every parameter is a text, and so is every column: drivers differ in how they encode everything else, and
// programs change it (type parsers of pg, plugins of Kysely). Statements cast.

import { shown } from "./options.js";

export type Row = Record<string, string | null>;
export type Run = (text: string, values: readonly string[]) => Promise<Row[]>;

/** Runs a statement with `$1`-style parameters, all of them texts, and returns its rows. */
export type SqlFunction = (text: string, values: string[]) => PromiseLike<readonly object[] | { rows: readonly object[] }>;

/**
 * What SQL can be run with, a connection or a transaction: a Client or Pool of pg, postgres.js's and Bun's `sql`, a Drizzle or Kysely
 * database or transaction, a Prisma client or its `tx`, an EntityManager of TypeORM, or a function.
 */
export type Sql =
  | { query(text: string, values?: any[]): PromiseLike<any> }
  | { unsafe(text: string, values?: any[]): PromiseLike<any> }
  | { executeQuery(query: any): PromiseLike<any> }
  | { $queryRawUnsafe(text: string, ...values: any[]): PromiseLike<any> }
  | { execute(statement: string): PromiseLike<any> }
  | SqlFunction;

/** Returns a function that runs statements with what the caller has passed. */
export function runner(sql: Sql): Run {
  const run = way(sql);
  return async (text, values) => {
    const answer = await run(text, [...values]);
    return [...((Array.isArray(answer) ? answer : (answer as { rows: readonly object[] }).rows) as readonly Row[])];
  };
}

function way(sql: Sql): (text: string, values: string[]) => PromiseLike<unknown> {
  const its = (sql ?? {}) as unknown as Record<string, ((...args: unknown[]) => PromiseLike<unknown>) | undefined>;
  const has = (name: string) => typeof its[name] === "function";
  if (has("$queryRawUnsafe")) return (text, values) => its.$queryRawUnsafe!(text, ...values);
  if (has("executeQuery")) return (text, values) => its.executeQuery!(compiled(text, values));
  if (has("unsafe")) return (text, values) => its.unsafe!(text, values); // postgres.js's sql is a function as well
  if (has("query")) return (text, values) => its.query!(text, values);
  if (has("execute")) return (text, values) => its.execute!(inlined(text, values));
  if (typeof sql === "function") return sql;
  const what = typeof sql === "string" ? "a text" : shown(sql); // the address of a database has a password
  throw new TypeError(`weir: ${what} can't run SQL: pass a Client or Pool of pg, such as new pg.Pool({ connectionString }), sql of postgres.js, a database or transaction of Drizzle, Kysely, Prisma or TypeORM, or a function (text, values) => rows`);
}

/** A CompiledQuery of Kysely's. */
function compiled(sql: string, parameters: string[]) {
  return { sql, parameters, query: { kind: "RawNode", sqlFragments: [sql], parameters: [] }, queryId: { queryId: "weir" } };
}

/**
 * Drizzle runs texts without parameters, so these become literals. Written as E'…', with quotes and backslashes doubled, they mean the same
 * whatever standard_conforming_strings is.
 */
export function inlined(text: string, values: readonly string[]): string {
  return text.replace(/\$(\d+)/g, (_, n: string) => literal(values[Number(n) - 1]!));
}

function literal(value: string): string {
  if (value.includes("\0")) throw new TypeError("weir: a text contains the character NUL, which PostgreSQL can't store");
  return ` E'${value.replace(/['\\]/g, "$&$&")}'`;
}

/** Writes an array as PostgreSQL does, for a parameter that is cast to an array. */
export function arrayText(items: Iterable<string | number | null>): string {
  let text = "";
  for (const item of items) text += (text && ",") + (typeof item === "string" ? `"${item.replace(/["\\]/g, "\\$&")}"` : String(item));
  return `{${text}}`;
}
