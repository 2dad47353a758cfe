import { hubError, unreached } from "./errors.js";

/** Reads Server-Sent Events whose data is JSON. Ends with the stream; throws if it is refused, or silent for some seconds. */
export async function* events(url: URL, token: string, silence: number, signal: AbortSignal): AsyncGenerator<unknown> {
  const over = new AbortController();
  const end = () => over.abort();
  signal.addEventListener("abort", end);
  if (signal.aborted) end();
  const quiet = () => over.abort(new Error(`the hub was silent for ${silence} seconds`));
  let timer = setTimeout(quiet, silence * 1000);
  try {
    const response = await fetch(url, { signal: over.signal, headers: { accept: "text/event-stream", ...(token && { authorization: `Bearer ${token}` }) } });
    if (!response.ok) throw hubError(response.status, await response.text());
    const reader = response.body!.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array<ArrayBuffer>>).getReader();
    let text = "";
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(quiet, silence * 1000); // only while it waits: the program takes as long as it likes
      const { done, value } = await reader.read();
      clearTimeout(timer);
      if (done) return;
      text += value;
      const parts = text.split(/\r?\n\r?\n/);
      text = parts.pop()!;
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (data) yield JSON.parse(data);
      }
    }
  } catch (error) {
    throw over.signal.aborted ? error : unreached(error, `GET ${url.origin}${url.pathname}`);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
    over.abort();
  }
}
