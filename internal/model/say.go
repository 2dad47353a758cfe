package model

import "fmt"

// say describes a step.
func (m *jobs) say(s *state, st step) string {
	i := int(st.a)
	var o op
	if i < int(s.ops.n) {
		o = s.ops.row[i]
	}
	by := func() string {
		if o.client == 0 {
			return fmt.Sprintf("a call of worker %d whose client no longer waits", o.worker)
		}
		return fmt.Sprintf("worker %d", o.worker)
	}
	attempt := func(h held) string { return fmt.Sprintf("attempt %d of job %d (batch %d)", h.attempt, h.tag, h.seq) }
	switch st.do {
	case begin:
		return fmt.Sprintf("a producer begins a transaction, which gets xid %d", max(s.next, 1))
	case enqueue:
		return fmt.Sprintf("enqueue: transaction %d logs job %d in segment %d", o.xid, s.tags+1, o.segment)
	case commitOp:
		switch o.call {
		case producing:
			return fmt.Sprintf("commit of producer's transaction %d", o.xid)
		case claiming:
			return fmt.Sprintf("claim by %s commits (transaction %d), without a flush", by(), o.xid)
		}
		return fmt.Sprintf("the result of %s, by %s, commits (transaction %d)", attempt(o.what), by(), o.xid)
	case rollback:
		return fmt.Sprintf("rollback of transaction %d", o.xid)
	case claim:
		return fmt.Sprintf("claim by worker %d begins", st.a)
	case claimLate:
		return fmt.Sprintf("worker %d sends a claim, loses its connection, and the claim is still in progress", s.process[i].worker)
	case claimLane:
		return fmt.Sprintf("claim by %s has the lane's lock, reads the newest batch and takes its snapshot", by())
	case claimBatch:
		return fmt.Sprintf("claim by %s reads its jobs and inserts their batch", by())
	case record, recordRetried, complete:
		p := s.process[i]
		return fmt.Sprintf("%s by worker %d of %s begins", map[action]string{record: "record", complete: "complete, in a handler's transaction,", recordRetried: "record as retried"}[st.do], p.worker, attempt(p.held[st.b]))
	case insert:
		return fmt.Sprintf("the result of %s, by %s, is inserted", attempt(o.what), by())
	case fence:
		return fmt.Sprintf("fence of worker %d", st.a)
	case settle:
		b, c, _, _ := m.toSettle(s, st.a)
		return fmt.Sprintf("settle logs job %d again, which worker %d held in batch %d", c.tag, b.worker, b.cursor.seq)
	case reconcile:
		return fmt.Sprintf("reconcile: worker %d reports what it holds, and the rest is released", s.process[i].worker)
	case reconcileLate:
		if i < 128 {
			return fmt.Sprintf("reconcile of worker %d, sent long ago, arrives", o.worker)
		}
		return fmt.Sprintf("worker %d sends reconcile, loses its connection, and the call is still in progress", s.process[255-i].worker)
	case forgetEnded:
		return "forget_ended makes the lane forget pending transactions that have ended"
	case rotate:
		return fmt.Sprintf("rotate opens segment %d", 3-s.active())
	case reclaim:
		return fmt.Sprintf("reclaim of segment %d begins its slow part: which jobs wait there?", 3-s.active())
	case reclaimLook:
		return fmt.Sprintf("reclaim of segment %d finds the lane's state and unfinished jobs", o.segment)
	case carryWaiting:
		return fmt.Sprintf("carry_waiting copies the last job that waits in segment %d, and deletes it there", o.segment)
	case carryStates:
		return fmt.Sprintf("carry_states copies the lane's state, which is in segment %d, into the active segment", o.segment)
	case reclaimCarry:
		return fmt.Sprintf("reclaim of segment %d carries unfinished jobs and truncates", o.segment)
	case reclaimGivesUp:
		return fmt.Sprintf("reclaim of segment %d gives up", o.segment)
	case crash:
		return fmt.Sprintf("the server crashes and starts again, without the last %d commits", s.tail.n-s.flushed)
	case failover:
		return fmt.Sprintf("failover to a standby that lacks the last %d commits", s.tail.n-st.a)
	case loseAnswer:
		return fmt.Sprintf("worker %d loses its connection and the answer", o.worker)
	case kill:
		return fmt.Sprintf("the process of worker %d is killed", s.process[i].worker)
	case workerStart:
		return "a process calls worker_start"
	case move:
		return "the database is restored into another cluster"
	case rebase:
		return fmt.Sprintf("rebase, in transaction %d", max(s.next, 1))
	}
	return "?"
}
