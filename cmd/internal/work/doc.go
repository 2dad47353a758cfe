// Package work hands out jobs to workers that have no connection to the database: those of /v1/work (docs/work-http.md).
//
// One Dispatcher serves all of them. To the database it is a single worker (package worker) with as many slots as its sessions have free: it claims for all of
// them together, keeps one lease, and records what they report in common transactions. A Session is one remote worker, known by its name for as long as it is heard of.
//
//	worker.Worker ──► generation.handle ──► queue: sessions with a free slot, or jobs that wait for one ──► Session.outbox ──► take | WebSocket
//	              ◄── attempt.ended     ◄── Dispatcher.Record  ◄────────────────────────────────────────────────────────────── record
//
// An attempt is leased to its session: if nothing was heard of it for the lease, it ends as failed. Its token is signed and names the hub's worker in the database, so that any hub
// can record it: one that does not know the attempt asks the database, and tells the hub that gave it out (peers.go).
//
// The queues of a worker are fixed when it is started. When a session asks for another queue, a new generation takes over: a worker with all queues, beside the one before, which
// claims nothing more and ends with its last attempt.
//
// Dispatcher.mu guards sessions, queues and attempts. Nothing is waited for, and no database is called, while it is held.
package work
