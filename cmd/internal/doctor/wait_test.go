package doctor

import (
	"testing"
	"time"
)

func TestWaitsAreOneClassUnderAllTheirNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state, kind string
		events      []string
		want        Class
	}{
		{"active", "", []string{""}, CPU},
		// The names in 14 to 16, 17 and 18, with the suffix Lock as in 17.0 to 17.3, and before 13.
		{"active", "LWLock", []string{"MultiXactOffsetSLRU", "MultiXactMemberSLRU", "MultiXactOffsetBuffer", "MultiXactMemberBuffer", "MultiXactGen", "MultiXactGenLock",
			"MultiXactOffsetControlLock", "MultiXactTruncation"}, MultiXact},
		{"active", "LWLock", []string{"WALWrite", "WALWriteLock", "WALInsert"}, Commit},
		{"active", "IO", []string{"WALSync", "WalSync", "WALWrite", "WalWrite"}, Commit},
		{"active", "IPC", []string{"SyncRep"}, Commit},
		{"active", "Timeout", []string{"CommitDelay"}, Commit},
		{"active", "LWLock", []string{"NotifyQueue", "NotifyQueueLock", "NotifySLRU", "NotifyBuffer", "NotifyQueueTail"}, NotifyQueue},
		{"active", "LWLock", []string{"XactSLRU", "XactBuffer", "SubtransSLRU", "SubtransBuffer"}, TransactLog},
		{"active", "IO", []string{"SLRURead", "SlruRead"}, TransactLog},
		{"active", "LWLock", []string{"LockManager", "LockFastPath"}, LockTable},
		{"active", "LWLock", []string{"ProcArray", "ProcArrayLock", "XidGen"}, SnapshotList},
		{"active", "LWLock", []string{"BufferContent", "BufferMapping", "buffer_content"}, Buffer},
		{"active", "Lock", []string{"object"}, ObjectLock},
		{"active", "Lock", []string{"transactionid", "tuple"}, RowLock},
		{"active", "Lock", []string{"relation", "advisory", "virtualxid", "extend"}, OtherLock},
		{"active", "IO", []string{"DataFileRead"}, DataIO},
		{"active", "Client", []string{"ClientWrite"}, ClientWrite},
		{"active", "Client", []string{"ClientRead"}, notWaiting},
		{"active", "Timeout", []string{"PgSleep"}, notWaiting},
		{"active", "Activity", []string{"WalSenderMain"}, notWaiting},
		{"idle", "Client", []string{"ClientRead"}, notWaiting},
		{"idle", "", []string{""}, Woken},
		{"idle in transaction", "Client", []string{"ClientRead"}, notWaiting},
		{"idle in transaction", "Lock", []string{"relation"}, notWaiting},
		// track_activities = off leaves no state, and a login has none yet.
		{"disabled", "Lock", []string{"relation"}, OtherLock},
		{"disabled", "", []string{""}, CPU},
		{"disabled", "Client", []string{"ClientRead"}, notWaiting},
		{"starting", "Lock", []string{"relation"}, OtherLock},
		{"starting", "", []string{""}, notWaiting},
		{"", "Lock", []string{"relation"}, OtherLock},
		{"", "LWLock", []string{"WALWrite"}, Commit},
		{"", "Activity", []string{"CheckpointerMain"}, notWaiting},
		{"", "", []string{""}, notWaiting},
		{"active", "SomethingNew", []string{"Whatever"}, OtherWait},
	} {
		for _, event := range c.events {
			if got := classify(c.state, c.kind, event); got != c.want {
				t.Errorf("%s %s:%s is %q, want %q", c.state, c.kind, event, got, c.want)
			}
		}
	}
}

func TestEveryClassIsShown(t *testing.T) {
	t.Parallel()
	shown := map[Class]bool{}
	for _, c := range Classes() {
		shown[c] = true
	}
	for _, c := range []Class{CPU, Commit, ObjectLock, RowLock, OtherLock, MultiXact, NotifyQueue, TransactLog, LockTable, SnapshotList, Buffer, DataIO, ClientWrite, OtherWait, Woken} {
		if !shown[c] {
			t.Errorf("class %s is not shown", c)
		}
	}
}

// TestSamplesKeepNoStepWithALoad: the intervals between samples vary, by at least a tenth either way, and on average are as they should be.
func TestSamplesKeepNoStepWithALoad(t *testing.T) {
	t.Parallel()
	for busy, want := range map[bool]time.Duration{false: calmEvery, true: busyEvery} {
		least, most, sum := want, want, time.Duration(0)
		const n = 1000
		for range n {
			d := interval(busy)
			least, most, sum = min(least, d), max(most, d), sum+d
		}
		if average := sum / n; least > want*9/10 || most < want*11/10 || average < want*9/10 || average > want*11/10 {
			t.Errorf("intervals are %v to %v, on average %v, want about %v", least, most, average, want)
		}
	}
}

// TestTheLockOfNotifyExplainsNoWaitForAnotherObject, such as a type that is being dropped, although both are Lock:object.
func TestTheLockOfNotifyExplainsNoWaitForAnotherObject(t *testing.T) {
	t.Parallel()
	const pgDatabase, pgType = 1262, 1247
	locks := []Lock{{Type: "object", Class: pgDatabase, PID: 1}, {Type: "object", Database: 5, Class: pgType, Object: 16400, PID: 2}}
	l := &inspection{view: view{samples: []Sample{{HasLocks: true, Locks: locks}}}}
	for pid, want := range map[uint32]bool{1: true, 2: false, 3: true} {
		if got := l.explains(NotifyCommitLock, Session{PID: pid, Class: ObjectLock}); got != want {
			t.Errorf("the wait of pid %d is explained: %t, want %t", pid, got, want)
		}
	}
}
