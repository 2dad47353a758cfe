// Package hub takes ticks in and gives their messages to subscribers. It knows no socket: a transport joins with a Sink.
//
//	Source ──► Run ──► dispatch ──► index (channel → subscribers) ──► queue of each ──► Sink.Deliver
//	              └──► ring (the newest ticks, in memory) ──► replay, for who resumes
//
// One goroutine, Run's, reads ticks in order and dispatches them, so every subscriber sees messages in the log's order. A subscriber
// has a queue bounded in bytes. Nobody waits for a subscriber: who is slow is cut off, or skipped ahead with a gap event.
//
// A subscriber has no goroutine while it is idle. When its queue gets its first event, a goroutine is started that hands everything
// queued to the sink, and ends when the queue is empty; what is queued while the sink writes goes with the next call. So under load
// messages coalesce by themselves, and fifty thousand idle subscribers cost their structs alone.
//
// Locks, in this order: Hub.dispatching (one message or tick at a time), Hub.mu (who listens on what, and the ring),
// Subscriber.mu (its queue). A sink is never called with any of them held.
package hub
