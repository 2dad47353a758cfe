package model

import "fmt"

// say tells a step.
func (m *attendances) say(s *attendState, st step) string {
	i := int(st.a)
	switch st.do {
	case timePasses:
		return "a second passes"
	case attend:
		return "the worker sends attend, by a new session"
	case heartbeat:
		switch {
		case !s.w.held:
			return "the worker sends a heartbeat by a connection that does not attend"
		case m.busy || m.off.holds(attendsAgain) && s.lastWord().says != attends:
			return "the worker sends a heartbeat by the session that attends, with something to be noted"
		}
		return "the worker makes a heartbeat by the session that attends, which writes nothing"
	case attendClaim:
		return "the worker sends a claim"
	case attendRecord:
		return "the worker sends the result of its job"
	case callGoesOn:
		return s.calls.row[i].say(s)
	case callGivenUp:
		return fmt.Sprintf("the worker gives up its %s, which is on the way still", s.calls.row[i].kind)
	case fenceSilent:
		return fmt.Sprintf("fence_silent takes its snapshot: the last word is that the worker %s", s.lastWord().says)
	case settleLost:
		return "settle logs the job again, which the fenced worker had"
	case claimByOther:
		return "claim: another worker runs the job"
	case handBack:
		return "the worker hands the job back"
	case sessionEnds:
		if s.lines.row[i].attached {
			return "the session by which the worker attends ends"
		}
		return "a session of the worker's ends, at whose other end nobody is"
	case lineIsCut:
		return "the line of the session that attends is cut: nothing arrives any more, and nobody is told"
	case notices:
		return "the worker notices that its session has ended"
	case noticesDown:
		return "the worker notices that the server was down"
	case givesUpLine:
		return "the worker, whose heartbeat gets no answer, gives its session up"
	case interrupts:
		return "the worker interrupts its job"
	case attendKill:
		return "the process is killed"
	case standsStill:
		return "the process stands still"
	case goesOn:
		return "the process goes on"
	case serverFills:
		return "the server has no connection left"
	case serverEmpties:
		return "the server has room again"
	case attendCrash:
		return "the server crashes and starts again, without the words that were not on disk"
	case attendRestart:
		return "the server is stopped and started"
	case attendFailover:
		return fmt.Sprintf("failover to a standby that has %d of %d last words", i, s.words.n)
	}
	return "?"
}

func (k attendCall) String() string {
	return [...]string{"", "attend", "heartbeat", "heartbeat by the session that attends", "claim", "result", "fence_silent"}[k]
}

func (c *acall) say(s *attendState) string {
	of := c.kind.String()
	if !c.client && c.kind != fencesSilent {
		of += ", for which nobody waits,"
	}
	switch {
	case c.kind != fencesSilent && c.phase == 0 && s.fenced:
		return of + " is refused, for the worker is fenced"
	case c.kind != fencesSilent && c.phase == 0:
		return of + " begins: it has its locks, and has written"
	case c.kind != fencesSilent:
		return of + " commits"
	case c.phase == 0:
		return "fence_silent reads the locks, and moves weir.watched on"
	case c.phase == 1 && c.fences:
		return "fence_silent tries the last word's lock, looks again, and fences the worker"
	case c.phase == 1:
		return "fence_silent tries the last word's lock, looks again, and notes that the worker is missed"
	}
	return "the rescue commits"
}
