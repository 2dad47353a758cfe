// Standard Webhooks (https://www.standardwebhooks.com): hubs sign the jobs that they push.

/** A request that is not from who knows the secret, or is too old. */
export class WebhookError extends Error {
  override name = "WebhookError";
}

export interface WebhookRequest {
  /** The body as it was received, byte by byte: parse it after it was verified. */
  body: string | Uint8Array;
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>;
  /** `whsec_…`; two while one replaces the other. */
  secret: string | readonly string[];
  /** How many seconds old, or ahead, the request may be. Default: 300. */
  tolerance?: number;
}

/** Throws a WebhookError unless the request is signed with a secret. Returns its id, which is the same when it is repeated. */
export async function verifyWebhook({ body, headers, secret, tolerance = 300 }: WebhookRequest): Promise<string> {
  const id = header(headers, "webhook-id");
  const timestamp = header(headers, "webhook-timestamp");
  const signatures = header(headers, "webhook-signature");
  const age = Date.now() / 1000 - Number(timestamp);
  if (!/^\d+$/.test(timestamp) || !(Math.abs(age) <= tolerance)) throw new WebhookError(`webhook-timestamp is ${timestamp}, which is not within ${tolerance} seconds of now`);
  const text = typeof body === "string" ? new TextEncoder().encode(body) : body;
  const prefix = new TextEncoder().encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(prefix.length + text.length);
  signed.set(prefix);
  signed.set(text, prefix.length);
  for (const one of typeof secret === "string" ? [secret] : secret) {
    const key = await crypto.subtle.importKey("raw", bytes(one.replace(/^whsec_/, "")), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const signature of signatures.split(" ")) {
      const [version, value] = signature.split(",", 2);
      if (version === "v1" && value && (await crypto.subtle.verify("HMAC", key, bytes(value), signed))) return id; // in constant time
    }
  }
  throw new WebhookError("no signature in webhook-signature is of a known secret");
}

function header(headers: WebhookRequest["headers"], name: string): string {
  const value = headers instanceof Headers ? headers.get(name) : Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  if (typeof value !== "string" || value === "") throw new WebhookError(`the request has no header ${name}`);
  return value;
}

function bytes(base64: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  } catch {
    throw new WebhookError("a secret or signature is not base64");
  }
}
