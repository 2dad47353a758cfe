// Package web is the hub's HTTP side: WebSocket, Server-Sent Events, publishing, health and metrics. docs/websocket-sse.md is its protocol.
//
//	w, err := web.New(web.Config{Hub: h, Authorizer: a})
//	server := &http.Server{Handler: w}
//	…
//	w.Drain()       // no longer ready; then end the hub's Run, which tells streams to come back elsewhere
//	w.Shutdown(ctx) // waits for them; then the server's own Shutdown
//
//	GET  /v1/ws         WebSocket: subscribe, publish, resume
//	GET  /v1/events     Server-Sent Events: subscribe, resume
//	POST /v1/publish    publish
//	GET  /v1/jobs/wait  waits for work in queues
//	GET  /healthz       the process lives
//	GET  /readyz        it can serve
//	GET  /metrics       for Prometheus
//
// A stream is a client's connection, of either kind, and the hub's sink. It takes the connection from net/http, whose goroutine and
// buffers end there: an idle stream has one goroutine, which reads, and a timer for heartbeats. All its writes go through Stream.mu, so
// that what the client gets has positions that never go back, heartbeats included. Where a connection can't be taken (HTTP/2) the
// stream writes through net/http and the request's goroutine waits for its end.
//
// Messages are encoded once for all streams of a kind, WebSocket's frame included, and what the hub hands over together goes out with
// one write. coder/websocket does the rest of WebSocket: the handshake, reading, and what to say to a peer that breaks its rules.
//
// Goroutines: a stream's reader is started by its handler and ends with its connection; it starts one for each request of a WebSocket,
// and waits for it. Deliver and Close are called by the hub's. The hub's end ends all streams; Web.Shutdown waits for their readers.
package web
