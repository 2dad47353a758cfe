// What the examples of README.md use without saying where it is from.

declare const pool: import("pg").Pool;
declare const sql: import("postgres").Sql;
declare const drizzle: import("drizzle-orm/node-postgres").NodePgDatabase;
declare const kysely: import("kysely").Kysely<unknown>;
declare const prisma: import("../prisma/generated/client.js").PrismaClient;
declare const tx: import("pg").PoolClient;
declare const id: string;
declare const shutdown: AbortSignal;
declare const request: Request;
declare const jobs: ReturnType<
  typeof import("@weir-pg/client").defineJobs<{
    welcome: import("zod").ZodType<{ account: number }>;
    remind: import("zod").ZodType<{ account: number; at: Date }>;
    digest: import("zod").ZodType<{ account: number }>;
    thumbnail: import("zod").ZodType<{ file: string; width: number }>;
  }>
>;
declare const weir: import("@weir-pg/client").Weir<typeof jobs>;
declare const Weir: typeof import("@weir-pg/client").Weir;
declare function freshToken(): Promise<string>;
declare function send(account: number): Promise<string>;
declare function render(file: string, page: number): Promise<boolean>;
declare function reload(): void;
declare function show(channel: string, payload: string, position?: string): void;
