// Package model is an executable model of what Weir relies on: the snapshot cursor; segments that are reclaimed with TRUNCATE; results and fences;
// recovery after faults; who is alive, by a session's lock or by heartbeats; the promotion of scheduled jobs; and ticks of messages with the positions
// of their readers; limits of queues; unique jobs; schedules; and the turns of a key. Its tests explore it: every interleaving of every small step, for few jobs and few workers, nearest states first. No other
// package imports it.
//
// The steps are named after the functions of the schema. A function that takes several snapshots, or waits for a lock, is several steps:
//
//	claim        begins (locks, fence, is anything ready) | has the lane, reads the newest batch, takes its snapshot | reads and inserts | commits, unflushed
//	record       begins (locks, fence, whose batch, ended already) | inserts, and logs the next attempt where there is one | commits, flushed
//	complete     like record, in a handler's transaction with its effect, which may stay open, and roll back
//	reclaim      finds what waits | finds what runs | carries and truncates, carries some of it (carry_waiting, carry_states), or gives up
//	fence, settle, reconcile, rotate, forget_ended, rebase    one step each, because they lock what they change
//	promote     begins (lock, the newest cursor, the time) | checks whether there is anything, takes its snapshot | reads, copies, moves the cursor | commits, unflushed
//	attend, heartbeat    begins (the last word's lock, fenced?, its word, and attend's lock for the session) | commits, unflushed
//	fence_silent    takes its snapshot | reads the locks, moves weir.watched | tries the last word's lock, checks again, records or fences | commits
//	rotate_later    opens a segment, or carries and truncates one
//	publish, cut, tick, read, reclaim_messages
//	claim, under a limit    begins (the gate's lock) | reads the gate, takes its snapshot | hands out, writes the gate's next row | the next lane, or commits, flushed
//	claim, of unique jobs    begins (locks, its snapshot) | picks, judges, logs again | commits, unflushed
//	enqueue_unique, set_schedule    reads and inserts | commits
//	promote, with schedules    begins | reads what is due, moves the cursor | fires | commits, unflushed
//
// and the environment has its own steps: a commit, a rollback, a crash that loses what was not flushed, a failover that loses any end of the log, a
// lost answer, a call that arrives after its client has given it up, a killed process, a restore into another cluster.
//
// PostgreSQL is modelled as far as Weir relies on it (postgres.go): transaction ids are assigned in one order and committed in another; a
// snapshot consists of the next id and the ids in progress; TRUNCATE removes rows for older snapshots too; the beginning of the log, in the
// order of commits, survives a fault; afterwards the lost ids of transactions, jobs, batches and workers are assigned again.
//
// A promise is broken in a state (check.go), or if nothing can mend a state: in every state without a call in flight, everyone does what they
// must, without further faults, and then every committed job must have ended. So "never" and "forever" are checked without waiting.
//
// Each guard (guard.go) is a switch. One test removes the guards one by one, and must find a broken promise. Another test takes random steps on a
// real server and in the model, and compares the results (replay_test.go).
package model
