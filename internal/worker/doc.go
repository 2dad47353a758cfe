// Package worker claims jobs, runs them and records how they ended.
//
// A Worker runs one session at a time; a session is the life of one worker id in the database. Its
// goroutines, all started and waited for by session.run:
//
//	fetcher     claims while there is room, and waits for work otherwise     -> queue.push
//	growers     one a queue: start more runners where tasks wait
//	runners     at most a queue's concurrency, while tasks wait: run handlers -> completer.add
//	completer   records ends, a flush at a time
//	keeper      attends, or beats; hears of cancellations
//	maintainer  see package maintain
//
// A batch is in session.batches from its claim until all its ends are recorded. Only the fetcher adds
// batches and pushes tasks. Jobs in a batch go waiting -> running -> ended, or waiting -> ended when they are handed back.
//
// Stopping: the fetcher stops; what waits is handed back; runners finish until the deadline; then the
// contexts of jobs are cancelled, and what they leave unfinished is handed back; the completer flushes
// last; the worker's id is fenced.
//
// Fenced (or the log was moved to another cluster): everything is dropped, contexts are cancelled, and
// the Worker begins another session.
package worker
