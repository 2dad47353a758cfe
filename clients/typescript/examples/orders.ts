// A shop in plain Node.js: orders are packed by a job, and a page sees it happen. It needs a database, and a hub that accepts the page's address:
//
//     weir dev --hub-http-port 0
//     weir serve --database "$(cat .weir/url)" --listen-pg "" --anonymous --origin http://127.0.0.1:3000
//     DATABASE_URL=$(cat .weir/url) node orders.js                # and open http://127.0.0.1:3000, or with /?after=0.0.0 to see what has happened before

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { defineJobs, payload, terminated, Weir } from "@weir-pg/client";
import pg from "pg";

const { DATABASE_URL, HUB_URL = "http://127.0.0.1:8080", PORT = "3000" } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE_URL });
const weir = new Weir({ sql: pool, jobs: defineJobs({ pack: { schema: payload<{ order: string }>(), queue: "packing" } }) });
await pool.query("CREATE TABLE IF NOT EXISTS shop_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, packed boolean NOT NULL DEFAULT false)");

/** Runs something in a transaction. */
async function transaction<T>(work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  const tx = await pool.connect();
  try {
    await tx.query("BEGIN");
    const result = await work(tx);
    await tx.query("COMMIT");
    return result;
  } catch (error) {
    await tx.query("ROLLBACK").catch(() => {});
    throw error;
  } finally {
    tx.release();
  }
}

/** The order, and the job that packs it, are there together or not at all. */
const order = (item: string) =>
  transaction(async (tx) => {
    const { rows } = await tx.query<{ id: string }>("INSERT INTO shop_order (item) VALUES ($1) RETURNING id", [item]);
    await weir.enqueue("pack", { order: rows[0]!.id }, { tx });
    return rows[0]!.id;
  });

const page = `<!DOCTYPE html>
<title>Orders</title>
<button>Order a book</button>
<ul></ul>
<script type="module">
  import { subscribe } from "/client/subscribe.js";
  const show = (text) => document.querySelector("ul").append(Object.assign(document.createElement("li"), { textContent: text }));
  document.querySelector("button").onclick = () => fetch("/orders", { method: "POST", body: "a book" });
  for await (const event of subscribe(${JSON.stringify(HUB_URL)}, "shop.orders", { after: new URLSearchParams(location.search).get("after") ?? undefined })) {
    if (event.type === "message") show(event.payload);
  }
</script>
`;

const server = createServer(async (request, response) => {
  try {
    const { pathname } = new URL(request.url ?? "/", "http://localhost");
    const module = /^\/client\/([a-z-]+\.js)$/.exec(pathname)?.[1];
    if (request.method === "POST" && pathname === "/orders") {
      let item = "";
      for await (const part of request) if ((item += part).length > 1000) throw new Error("an item's name has up to 1000 characters");
      response.writeHead(201).end(await order(item));
    } else if (module !== undefined) {
      response.writeHead(200, { "content-type": "text/javascript" }).end(await readFile(new URL(module, import.meta.resolve("@weir-pg/client"))));
    } else {
      response.writeHead(pathname === "/" ? 200 : 404, { "content-type": "text/html" }).end(pathname === "/" ? page : "");
    }
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
});
server.listen(Number(PORT), "127.0.0.1", () => console.log(`http://127.0.0.1:${(server.address() as { port: number }).port}`));

await weir.work({
  queues: { packing: 4 },
  handlers: {
    pack: ({ order }, { complete }) =>
      transaction(async (tx) => {
        const { rows } = await tx.query<{ item: string }>("UPDATE shop_order SET packed = true WHERE id = $1 RETURNING item", [order]);
        await weir.publish("shop.orders", `order ${order} is packed: ${rows[0]!.item}`, { tx });
        await complete(tx); // the update, the message and the job's end are committed together
      }),
  },
  signal: terminated(),
});
server.close();
server.closeAllConnections();
await pool.end();
