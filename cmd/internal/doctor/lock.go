package doctor

import (
	"context"
	"strings"
)

// Lock is one entry of pg_locks: a lock that a session waits for, or one whose holder others wait for.
type Lock struct {
	Type        string
	Database    uint32
	Relation    uint32
	Page        int32
	Tuple       int16
	Transaction uint32
	Class       uint32
	Object      uint32
	Sub         int16 // of an advisory lock: 1 for one bigint, 2 for two integers
	PID         uint32
	Mode        string
	Granted     bool
	WaitType    string // of a holder: its own wait
	Wait        string
	State       string
	Query       string
	Age         float64
	Idle        float64 // of a holder: seconds in its state
}

const maxLocks = 5000

// Holders are looked up after the locks were read, not before, because contended locks change hands within a
// millisecond. $1 are sessions whose table locks are read too, to find foreign keys and triggers. The lock of a prepared transaction has no pid,
// for which pg_stat_get_activity would return all sessions.
const lockSQL = `
WITH l AS MATERIALIZED (
  SELECT k.locktype, k.database, k.relation, k.page, k.tuple, k.transactionid, k.classid, k.objid, k.objsubid, k.pid, k.mode, k.granted FROM pg_lock_status() k
), kept AS MATERIALIZED (
  SELECT l.* FROM l WHERE NOT l.granted
  UNION ALL
  SELECT l.* FROM l WHERE l.granted AND (
    l.locktype = 'tuple'
    OR l.locktype = 'object' AND l.database = 0 AND l.classid = 1262 AND l.objid = 0
    OR l.locktype = 'transactionid' AND l.transactionid IN (SELECT w.transactionid FROM l w WHERE NOT w.granted AND w.locktype = 'transactionid')
    OR l.locktype = 'advisory' AND EXISTS (SELECT FROM l w WHERE NOT w.granted AND w.locktype = 'advisory'
       AND (w.database, w.classid, w.objid, w.objsubid) = (l.database, l.classid, l.objid, l.objsubid))
    OR l.locktype = 'relation' AND l.relation IN (SELECT w.relation FROM l w WHERE NOT w.granted AND w.locktype = 'relation')
    OR l.locktype = 'relation' AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.pid = ANY ($1::integer[]))
  LIMIT $2
)
SELECT k.locktype, coalesce(k.database, 0), coalesce(k.relation, 0), coalesce(k.page, 0), coalesce(k.tuple, 0), coalesce(k.transactionid::text::bigint, 0),
       coalesce(k.classid, 0), coalesce(k.objid, 0), coalesce(k.objsubid, 0), coalesce(k.pid, 0), k.mode, k.granted,
       coalesce(a.wait_event_type, ''), coalesce(a.wait_event, ''), coalesce(a.state, ''), coalesce(left(a.query, $3), ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8,
       coalesce(extract(epoch FROM clock_timestamp() - a.state_change), 0)::float8
FROM kept k
LEFT JOIN LATERAL (SELECT s.* FROM pg_stat_get_activity(k.pid) s WHERE k.pid IS NOT NULL) a ON k.granted AND k.locktype IN ('object', 'transactionid', 'relation', 'advisory')`

func takeLocks(ctx context.Context, s *session, of []int32) ([]Lock, error) {
	type row struct {
		Type                  string
		Database, Relation    uint32
		Page                  int32
		Tuple                 int16
		Transaction           int64
		Class, Object         uint32
		Sub                   int16
		PID                   int32
		Mode                  string
		Granted               bool
		WaitType, Wait, State string
		Query                 string `text:"statement"`
		Age, Idle             float64
	}
	if of == nil {
		of = []int32{}
	}
	rows, err := list[row](ctx, s, lockSQL, of, maxLocks, queryLength)
	if err != nil {
		return nil, err
	}
	locks := make([]Lock, len(rows))
	for i, r := range rows {
		locks[i] = Lock{
			Type: r.Type, Database: r.Database, Relation: r.Relation, Page: r.Page, Tuple: r.Tuple, Transaction: uint32(r.Transaction), Class: r.Class,
			Object: r.Object, Sub: r.Sub, PID: uint32(r.PID), Mode: r.Mode, Granted: r.Granted, WaitType: r.WaitType, Wait: r.Wait, State: r.State, Query: r.Query,
			Age: r.Age, Idle: r.Idle,
		}
	}
	return locks, nil
}

// notify reports whether it is the lock that PreCommit_Notify takes: object 0 of pg_database in no database.
func (l Lock) notify() bool {
	const pgDatabase = 1262
	return l.Type == "object" && l.Database == 0 && l.Class == pgDatabase && l.Object == 0
}

// holding returns the class of what a holder does.
func (l Lock) holding() Class {
	if l.State == "idle in transaction" || l.State == "idle in transaction (aborted)" {
		return notWaiting
	}
	return classify("active", l.WaitType, l.Wait)
}

// idles reports whether the holder is a transaction that does nothing, and not one between two statements.
func (l Lock) idles() bool {
	return l.PID == 0 || strings.HasPrefix(l.State, "idle in transaction") && l.Idle >= idleLong
}

// committed reports whether the holder has committed, and keeps its locks until a synchronous standby confirms.
func (l Lock) committed() bool { return Event{l.WaitType, l.Wait} == standbyWait }
