package model

import "fmt"

// say describes a step.
func (m *attendances) say(s *attendState, st step) string {
	i := int(st.a)
	switch st.do {
	case timePasses:
		return "a second passes"
	case attend:
		return "the worker sends attend on a new session"
	case heartbeat:
		switch {
		case !s.w.held:
			return "the worker sends a heartbeat on a connection that does not attend"
		case m.busy || m.off.holds(attendsAgain) && s.lastWord().says != attends:
			return "the worker sends a heartbeat on the session that attends, which has something to write"
		}
		return "the worker makes a heartbeat on the session that attends, which writes nothing"
	case attendClaim:
		return "the worker sends a claim"
	case attendRecord:
		return "the worker sends the result of its job"
	case callGoesOn:
		return s.calls.row[i].say(s)
	case callGivenUp:
		return fmt.Sprintf("the worker gives up its %s, which is still in progress", s.calls.row[i].kind)
	case fenceSilent:
		return fmt.Sprintf("fence_silent takes its snapshot: the last word is that the worker %s", s.lastWord().says)
	case settleLost:
		return "settle logs the job of the fenced worker again"
	case claimByOther:
		return "claim: another worker runs the job"
	case handBack:
		return "the worker releases the job"
	case sessionEnds:
		if s.lines.row[i].attached {
			return "the session that attends ends"
		}
		return "a session of the worker ends to which the process is no longer connected"
	case lineIsCut:
		return "the connection of the session that attends is cut: nothing arrives any more, without an error"
	case notices:
		return "the worker notices that its session has ended"
	case noticesDown:
		return "the worker notices that the server was down"
	case givesUpLine:
		return "the worker gives up its session, because its heartbeat got no answer"
	case interrupts:
		return "the worker interrupts its job"
	case attendKill:
		return "the process is killed"
	case standsStill:
		return "the process is suspended"
	case goesOn:
		return "the process is resumed"
	case serverFills:
		return "the server has no free connection"
	case serverEmpties:
		return "the server has free connections again"
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
	return [...]string{"", "attend", "heartbeat", "heartbeat on the session that attends", "claim", "result", "fence_silent"}[k]
}

func (c *acall) say(s *attendState) string {
	of := c.kind.String()
	if !c.client && c.kind != fencesSilent {
		of += ", whose client no longer waits,"
	}
	switch {
	case c.kind != fencesSilent && c.phase == 0 && s.fenced:
		return of + " is refused, because the worker is fenced"
	case c.kind != fencesSilent && c.phase == 0:
		return of + " begins: it has its locks, and has written"
	case c.kind != fencesSilent:
		return of + " commits"
	case c.phase == 0:
		return "fence_silent reads the locks, and advances weir.watched"
	case c.phase == 1 && c.fences:
		return "fence_silent tries the last word's lock, checks again, and fences the worker"
	case c.phase == 1:
		return "fence_silent tries the last word's lock, checks again, and records that the worker is missed"
	}
	return "the rescue commits"
}
