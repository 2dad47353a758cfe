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

/** A connection to a hub. */
export interface Connection {
  socket: WebSocketLike;
  /** Resolves with the end, and never rejects. */
  closed: Promise<Closed>;
  /** Ends it at once, however long the other end takes to agree: what it still brings is not heard. */
  leave(reason: string): void;
}

/** Opens a socket at a hub. `heard` gets each frame. */
export function connect(WebSocket: WebSocketConstructor, url: URL, protocol: string, token: string, opened: (socket: WebSocketLike) => void, heard: (said: any) => void): Connection {
  const address = new URL(url);
  address.protocol = address.protocol.replace("http", "ws");
  const socket = new WebSocket(address.href, token ? [protocol, `bearer.${token}`] : [protocol]);
  let end = (_: Closed) => {};
  const closed = new Promise<Closed>((resolve) => (end = resolve));
  const leave = (reason: string) => {
    socket.onmessage = null;
    socket.close();
    end({ code: 0, reason });
  };
  socket.onopen = () => opened(socket);
  socket.onmessage = ({ data }: { data: string }) => {
    try {
      heard(JSON.parse(data));
    } catch (error) {
      leave(`a frame of the hub was not understood: ${error}`);
    }
  };
  socket.onclose = ({ code, reason }: Closed) => end({ code, reason: reason || (code ? `the connection ended (${code})` : "the connection failed") });
  socket.onerror = ({ message }: { message?: string }) => end({ code: 0, reason: message ?? "the connection failed" }); // not every platform fires close after error
  return { socket, closed, leave };
}
