package doctor

import "fmt"

// A session that waits for a synchronous standby has committed, and keeps its locks until the standby confirms. Ending or cancelling it would tell the
// client that the commit is done, while the standby may not have it: so nobody is told to do that.

// standbyWait is the event in which a commit waits for synchronous standbys.
var standbyWait = Event{"IPC", "SyncRep"}

// committed reports whether the session waits in it.
func (s Session) committed() bool { return Event{s.WaitType, s.Wait} == standbyWait }

// committed says what such a session is, and what to do instead.
const committed = "it has committed, and waits for a synchronous standby. Whoever cancels or ends it acknowledges a commit that the standby may not have. " +
	"Bring the standby back: see " + string(SyncReplicationStalled) + "."

// endUnseen says how to end a session of another role, of which this role does not see whether it has committed.
func endUnseen(pid uint32) string {
	return fmt.Sprintf("Have a member of pg_monitor look at pid %[1]d, for which the others wait: this role does not see what it does. If it waits in %[2]s, leave it alone (see %[3]s), and otherwise: "+
		"SELECT pg_terminate_backend(%[1]d);", pid, standbyWait, SyncReplicationStalled)
}

// leaveCommit says it of one for which others wait.
func leaveCommit(pid uint32) string {
	return fmt.Sprintf("Leave pid %d alone, for which the others wait: %s", pid, committed)
}
