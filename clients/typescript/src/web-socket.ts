/** What is used of a WebSocket: browsers, Bun, Deno and Node.js from 22 have one, and package `ws` is one. */
export interface WebSocketLike {
  send(text: string): void;
  close(code?: number, reason?: string): void;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
}

export type WebSocketConstructor = new (url: string, protocols?: string[]) => WebSocketLike;

/** What a socket's end says of itself. */
export interface Closed {
  code: number;
  reason: string;
}

/** Opens a socket at a hub. `heard` gets each frame; the promise resolves with the end, and never rejects. */
export function connect(WebSocket: WebSocketConstructor, url: URL, protocol: string, token: string, opened: (socket: WebSocketLike) => void, heard: (said: any) => void): { socket: WebSocketLike; closed: Promise<Closed> } {
  const address = new URL(url);
  address.protocol = address.protocol.replace("http", "ws");
  const socket = new WebSocket(address.href, token ? [protocol, `bearer.${token}`] : [protocol]);
  const closed = new Promise<Closed>((resolve) => {
    socket.onopen = () => opened(socket);
    socket.onmessage = ({ data }: { data: string }) => {
      try {
        heard(JSON.parse(data));
      } catch (error) {
        socket.close(4000, "a frame was not understood");
        resolve({ code: 0, reason: `a frame of the hub was not understood: ${error}` });
      }
    };
    socket.onclose = ({ code, reason }: Closed) => resolve({ code, reason: reason || (code ? `the connection ended (${code})` : "the connection failed") });
    socket.onerror = ({ message }: { message?: string }) => resolve({ code: 0, reason: message ?? "the connection failed" }); // not every platform fires close after error
  });
  return { socket, closed };
}
