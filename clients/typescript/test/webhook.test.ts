import assert from "node:assert/strict";
import { test } from "node:test";
import { verifyWebhook, WebhookError } from "@weir-pg/client/webhook";
import { Webhook } from "standardwebhooks";

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const other = "whsec_" + Buffer.from("another secret of 24 byte").toString("base64");
const body = JSON.stringify({ kind: "welcome", args: { name: "ü" } });

function signed(by: string, at = new Date(), id = "msg_1") {
  return { "webhook-id": id, "Webhook-Timestamp": String(Math.floor(at.getTime() / 1000)), "webhook-signature": new Webhook(by).sign(id, at, body) };
}

test("what the library of Standard Webhooks has signed is accepted, as text or bytes, with either secret of two", async () => {
  assert.equal(await verifyWebhook({ body, headers: signed(secret), secret }), "msg_1");
  assert.equal(await verifyWebhook({ body: Buffer.from(body), headers: new Headers(signed(secret)), secret: [other, secret] }), "msg_1");
  const two = signed(secret);
  two["webhook-signature"] = `${signed(other)["webhook-signature"]} v1a,abc ${two["webhook-signature"]}`;
  assert.equal(await verifyWebhook({ body, headers: two, secret }), "msg_1");
});

test("everything else is refused", async () => {
  const refused = (request: Partial<Parameters<typeof verifyWebhook>[0]>) => assert.rejects(verifyWebhook({ body, headers: signed(secret), secret, ...request }), WebhookError);
  await refused({ secret: other });
  await refused({ secret: [] });
  await refused({ body: body + " " });
  await refused({ headers: {} });
  await refused({ headers: signed(secret, new Date(Date.now() - 301_000)) });
  await refused({ headers: signed(secret, new Date(Date.now() + 302_000)) });
  await refused({ headers: { ...signed(secret), "webhook-id": "msg_2" } });
  await refused({ headers: { ...signed(secret), "webhook-signature": "v1,!" } });
});
