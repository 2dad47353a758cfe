// Package web is the hub's HTTP side: WebSocket, Server-Sent Events, publishing, health and metrics. docs/websocket-sse.md describes its protocol.
//
//	w, err := web.New(web.Config{Hub: h, Authorizer: a})
//	server := &http.Server{Handler: w}
//	…
//	w.Drain()       // /readyz fails from now on; then end the hub's Run, which tells streams to reconnect elsewhere
//	w.Shutdown(ctx) // waits for the streams; then call the server's own Shutdown
//
//	GET  /v1/ws         WebSocket: subscribe, publish, resume
//	GET  /v1/events     Server-Sent Events: subscribe, resume
//	POST /v1/publish    publish
//	GET  /v1/jobs/wait  wait for work in queues
//	…                   what Config.Endpoints add
//	GET  /healthz       the process is alive, and no part of it is stuck
//	GET  /readyz        the process can serve
//	GET  /metrics       for Prometheus
//
// A stream is a client's connection, of either kind, and the hub's sink for that client. It takes the connection over from net/http, which
// releases its goroutine and buffers: an idle stream has one goroutine, which reads, and a timer for heartbeats. All its writes go
// through stream.mu, so the positions that a client receives never go back, those in heartbeats included. Where a connection can't be
// taken over (HTTP/2), the stream writes through net/http, and the request's goroutine waits until the stream ends.
//
// Messages are encoded once for all streams of a kind, including the WebSocket frame, and events that the hub delivers together leave in
// one write. coder/websocket does the rest of WebSocket: the handshake, reading, and the answers to a peer that violates the protocol.
//
// Goroutines: a stream's reader is started by its handler and ends with its connection. A WebSocket's reader starts a goroutine for each
// request and waits for it. Deliver and Close are called from the hub's goroutines. When the hub ends, all streams end; Web.Shutdown
// waits for their readers.
package web
