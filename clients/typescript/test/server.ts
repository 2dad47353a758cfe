// What tests get from typescript_test.go, and what they share.

import { createHmac } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

function given(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run these tests by go test`);
  return value;
}

export const databaseUrl = given("DATABASE_URL");
export const bouncerUrl = () => given("BOUNCER_URL");
export const hubUrl = () => given("HUB_URL");

export const tokenHubUrl = () => given("TOKEN_HUB_URL");

/** A token to subscribe to everything, signed as the hub at tokenHubUrl wants it. */
export function tokenFor(user: string): string {
  const part = (what: object) => Buffer.from(JSON.stringify(what)).toString("base64url");
  const text = `${part({ alg: "HS256", typ: "JWT" })}.${part({ sub: user, exp: Math.floor(Date.now() / 1000) + 3600, weir: { subscribe: [">"], info: { is: user } } })}`;
  return `${text}.${createHmac("sha256", given("TOKEN_SECRET")).update(text).digest("base64url")}`;
}

export function pool(url = databaseUrl): pg.Pool {
  const made = new pg.Pool({ connectionString: url, max: 5 });
  made.on("error", () => {}); // tests end sessions
  return made;
}

/** Waits until something holds, and fails after a minute. */
export async function until<T>(what: string, holds: () => T | Promise<T>): Promise<NonNullable<T>> {
  for (const end = Date.now() + 60_000; Date.now() < end; await sleep(10)) {
    const value = await holds();
    if (value) return value;
  }
  throw new Error(`within a minute: ${what}`);
}
