package doctor

import "strings"

// Class is a class of waits that is the same in all versions of PostgreSQL.
type Class string

// Classes of waits.
const (
	CPU          Class = "cpu"          // no wait: it computes, or waits for a CPU
	Commit       Class = "commit"       // the flush of the WAL, or a standby's confirmation
	ObjectLock   Class = "object-lock"  // including the lock of NOTIFY
	RowLock      Class = "row-lock"     // another transaction's row
	OtherLock    Class = "other-lock"   // a table, an advisory lock, …
	MultiXact    Class = "multixact"    // the log of rows locked by several transactions
	NotifyQueue  Class = "notify-queue" // the queue of notifications
	TransactLog  Class = "transaction"  // status of transactions and subtransactions
	LockTable    Class = "lock-table"   // the shared table of locks itself
	SnapshotList Class = "snapshot"     // the list of running transactions
	Buffer       Class = "buffer"       // a page in memory
	DataIO       Class = "io"           // files of data
	ClientWrite  Class = "client-write" // a client that does not read
	OtherWait    Class = "other"        // anything else
	Woken        Class = "woken"        // an idle session that is awake: a listener reading notifications
	notWaiting   Class = ""             // idle, sleeping on purpose, or between two statements
)

// Classes returns the classes in display order.
func Classes() []Class {
	return []Class{
		ObjectLock, RowLock, OtherLock, MultiXact, NotifyQueue, Woken, Commit, TransactLog, LockTable, SnapshotList, Buffer, DataIO, ClientWrite,
		OtherWait, CPU,
	}
}

// classify returns the class of a session's wait.
//
// Names differ between versions, so they are compared without case and without suffixes: 17 spells WALSync as WalSync and SLRURead as
// SlruRead; 17.0 to 17.3 show LWLocks with the suffix Lock, which all other versions omit; the locks of SLRUs are …SLRU for the
// whole SLRU until 16 and for a bank from 17 on, …Buffer for one page, and …ControlLock in old versions.
func classify(state, kind, event string) Class {
	name := strings.ToLower(event)
	if state == "idle" {
		// Between statements a session waits for its client. One that does not is processing notifications.
		if kind == "Client" {
			return notWaiting
		}
		return Woken
	}
	switch state {
	case "active", "fastpath function call":
	case "disabled": // with track_activities = off the server tells what a session waits for, and nothing else
	case "", "starting": // it logs in, or has no state to tell
		switch kind {
		case "Lock", "LWLock", "BufferPin", "IPC":
		default:
			return notWaiting
		}
	default:
		return notWaiting // between two statements of a transaction
	}
	switch kind {
	case "":
		return CPU
	case "Lock":
		switch name {
		case "object":
			return ObjectLock
		case "transactionid", "tuple", "speculative token", "spectoken":
			return RowLock
		}
		return OtherLock
	case "LWLock":
		return classifyLWLock(strings.TrimSuffix(name, "lock"))
	case "IO":
		switch {
		case name == "walsync" || name == "walwrite" || name == "walsyncmethodassign":
			return Commit
		case strings.HasPrefix(name, "slru"):
			return TransactLog
		}
		return DataIO
	case "IPC":
		switch name {
		case "syncrep":
			return Commit
		case "procarraygroupupdate":
			return SnapshotList
		case "xactgroupupdate":
			return TransactLog
		case "parallelfinish", "executegather", "bgworkerstartup", "bgworkershutdown":
			return notWaiting // its workers wait, and are sessions themselves
		}
		return OtherWait
	case "Client":
		if name == "clientwrite" {
			return ClientWrite
		}
		return notWaiting
	case "Timeout":
		if name == "commitdelay" {
			return Commit
		}
		if name == "spindelay" {
			return OtherWait
		}
		return notWaiting
	case "Activity", "Extension", "InjectionPoint":
		return notWaiting
	}
	return OtherWait // BufferPin, and types of future versions
}

func classifyLWLock(name string) Class {
	switch {
	case strings.HasPrefix(name, "multixact"):
		return MultiXact
	case strings.HasPrefix(name, "notify"):
		return NotifyQueue
	case strings.HasPrefix(name, "wal"):
		return Commit
	case strings.HasPrefix(name, "xact"), strings.HasPrefix(name, "subtrans"), strings.HasPrefix(name, "committs"):
		return TransactLog
	case name == "lockmanager", name == "lockfastpath":
		return LockTable
	case name == "procarray", name == "xidgen":
		return SnapshotList
	case strings.HasPrefix(name, "buffer"):
		return Buffer
	}
	return OtherWait
}

// lost reports whether a session in this class is waiting, rather than computing.
func (c Class) lost() bool { return c != CPU && c != notWaiting && c != Woken }
