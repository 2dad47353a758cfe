// Package model is an executable model of what Weir rests on: the snapshot cursor, segments that are given back by TRUNCATE, results and
// fences, recovery after faults; who lives, by a lock of its session or by heartbeats; the promotion of jobs whose time comes; and, for messages, ticks and the positions of their readers. Its tests explore it: every interleaving of
// every small step, for few jobs and few workers, nearest first. Nothing of Weir imports it.
//
// The steps are named as the functions of the schema are. Where a function takes several snapshots or waits for a lock, it is several steps:
//
//	claim        begins (locks, fence, is anything ready) | has the lane, reads the newest batch, takes its snapshot | reads and inserts | commits, unflushed
//	record       begins (locks, fence, whose batch, ended already) | inserts, and logs the next attempt where there is one | commits, flushed
//	complete     as record, in a handler's transaction with its effect, which may stay open, and roll back
//	reclaim      looks what waits | looks what runs | carries and truncates, carries some of it (carry_waiting, carry_states), or gives up
//	fence, settle, reconcile, rotate, forget_ended, rebase    one step each: they have to themselves what they change
//	promote     begins (lock, the newest cursor, what time it is) | looks whether there is anything, takes its snapshot | reads, copies, moves the cursor | commits, unflushed
//	attend, heartbeat    begins (the last word's lock, fenced?, its word, and attend's lock for the session) | commits, unflushed
//	fence_silent    takes its snapshot | reads the locks, moves weir.watched | tries the last word's lock, looks again, notes or fences | commits
//	rotate_later    opens a segment, or carries and truncates one
//	publish, cut, tick, read, reclaim_messages
//
// and the world takes its own: a commit, a rollback, a crash that loses what was not flushed, a failover that loses any end of the log, a lost
// answer, a call that arrives after its client has given it up, a killed process, a restore into another cluster.
//
// PostgreSQL is modelled as far as Weir relies on it (postgres.go): ids of transactions are handed out in one order and committed in another; a
// snapshot is the next id and what was in progress; TRUNCATE takes rows from older snapshots too; what survives a fault is the beginning of
// the log, in the order of commits; after it, ids of transactions, jobs, batches and workers that were lost are handed out again.
//
// A promise is broken in a state (check.go), or where it can be seen that nothing will mend it: in every state without a call in flight, all do
// what they have to, with no further fault, and then every committed job must have ended. So "never" and "for ever" are looked at, not waited for.
//
// Each guard (guard.go) is a switch. A test takes them out one by one, and must find a promise broken. Another test takes random steps on a real
// server and in the model, and compares (replay_test.go).
package model
