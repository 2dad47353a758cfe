// Package hub reads ticks and delivers their messages to subscribers. It knows nothing of sockets: a transport joins with a Sink.
//
//	Source ──► Run ──► dispatch ──► index (channel → subscribers) ──► each subscriber's queue ──► Sink.Deliver
//	              └──► ring (the newest ticks, in memory) ──► replay, for subscribers that resume
//
// One goroutine, Run's, reads ticks in order and dispatches them, so every subscriber receives messages in the log's order. Each subscriber
// has a queue bounded in bytes. Nothing waits for a subscriber: a slow one is disconnected, or skipped ahead with a gap event.
//
// An idle subscriber has no goroutine. When its queue receives its first event, a goroutine starts that passes everything queued to the
// sink and ends once the queue is empty; events queued while the sink writes go with the next call. So under load messages are
// coalesced automatically, and fifty thousand idle subscribers cost only their structs.
//
// Locks, in this order: Hub.dispatching (one message or tick at a time), Hub.mu (filters and the ring),
// Subscriber.mu (its queue). A sink is never called with any of them held.
package hub
