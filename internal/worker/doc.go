// Package worker claims jobs, runs them, and records how they ended.
//
// A Worker runs one session at a time; a session is the life of one worker id in the database. Its goroutines, all started and awaited by
// session.run:
//
//	fetcher     claims while there is room, and otherwise waits for work      -> queue.push
//	follower    finds queues that fit, if the worker takes up such          -> fetcher
//	growers     one per queue: start more runners while tasks wait
//	runners     up to a queue's concurrency, while tasks wait: run handlers   -> completer.add
//	completer   records ends, one flush at a time
//	overdue     logs handlers that do not return although their contexts have ended
//	reports     writes what attempts report while they run, at most once a second
//	keeper      attends, or sends heartbeats; receives cancellations
//	maintainer  see package maintain
//
// The queues of a session are fixed, but for those that the fetcher adds.
//
// A batch is in session.batches from its claim until all its ends are recorded. Only the fetcher adds batches and pushes tasks. The jobs of
// a batch go from waiting to running to ended, or from waiting directly to ended when they are released.
//
// To stop, the fetcher stops; waiting jobs are released; runners continue until the deadline; then the contexts of their jobs are
// cancelled, and unfinished jobs are released; the completer flushes once more; and the worker's id is fenced.
//
// If the worker is fenced, or the log was moved to another cluster, the session drops everything and cancels all contexts, and the Worker
// begins another session.
package worker
