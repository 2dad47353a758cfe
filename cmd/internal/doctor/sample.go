package doctor

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Sample contains the sessions and their waits at one moment. Idle sessions are only counted.
type Sample struct {
	At       time.Time
	Weight   time.Duration // the time it stands for: since the previous sample
	Sessions []Session
	Locks    []Lock // nil unless HasLocks
	HasLocks bool   // the locks were read

	Clients    int // client sessions, including idle ones
	Idle       int
	Hidden     int       // of other roles, which this role may not see
	NewestPID  uint32    // the client that connected last
	NewestFrom time.Time // when it connected
}

// Session is a session that is active, or idle but awake.
type Session struct {
	PID      uint32
	Database uint32 // its oid
	Kind     string // client backend, parallel worker, …
	State    string
	WaitType string
	Wait     string
	HasXID   bool
	Age      float64 // seconds since its transaction started
	Running  float64 // seconds since its statement started
	Quiet    float64 // seconds since its state changed
	Query    string  // its first characters

	Class Class
}

// timed reports whether Running is known: the server does not tell it of other roles' sessions, of those with track_activities = off, and of those that log in.
func (s Session) timed() bool {
	return s.Query != hiddenQuery && (s.State == "active" || s.State == "fastpath function call")
}

// waitsForWorkers reports whether a parallel query waits for its workers to start or to end.
func (s Session) waitsForWorkers() bool {
	return s.WaitType == "IPC" && strings.HasPrefix(strings.ToLower(s.Wait), "bgworker")
}

const (
	maxSessions = 2000
	queryLength = 300
	longIdle    = time.Second // a session is asleep by then, even on a busy machine
)

// The query reads the function instead of the view, which joins database and role names to each row. It reads it twice, which is cheaper than to keep all rows
// for two readings; both see the same, because PostgreSQL keeps what it shows to a transaction. Each row also contains the counts, so that one statement returns
// both; if no session is active, there is one row with only the counts.
const sampleSQL = `
SELECT c.clients, c.idle, c.hidden, coalesce(c.newest[2], 0)::integer, to_timestamp(c.newest[1]),
       coalesce(b.pid, 0), coalesce(b.datid, 0), coalesce(b.backend_type, ''), coalesce(b.state, ''), coalesce(b.wait_event_type, ''), coalesce(b.wait_event, ''),
       coalesce(b.has_xid, false), coalesce(b.age, 0), coalesce(b.running, 0), coalesce(b.quiet, 0), coalesce(b.query, '')
FROM (
  SELECT (count(*) FILTER (WHERE s.backend_type = 'client backend'))::integer AS clients,
         (count(*) FILTER (WHERE s.backend_type = 'client backend' AND s.state = 'idle'))::integer AS idle,
         (count(*) FILTER (WHERE s.query = '` + hiddenQuery + `' AND s.datid IS NOT NULL AND s.usesysid IS NOT NULL))::integer AS hidden,
         max(ARRAY[date_part('epoch', s.backend_start), s.pid]) FILTER (WHERE s.backend_type = 'client backend') AS newest
  FROM pg_stat_get_activity(NULL) s
  WHERE ` + sampled + `
) c LEFT JOIN (
  SELECT s.pid, s.datid, s.backend_type, s.state, s.wait_event_type, s.wait_event, s.backend_xid IS NOT NULL AS has_xid,
         date_part('epoch', clock_timestamp() - s.xact_start) AS age, date_part('epoch', clock_timestamp() - s.query_start) AS running,
         date_part('epoch', clock_timestamp() - s.state_change) AS quiet, left(s.query, $2) AS query
  FROM pg_stat_get_activity(NULL) s
  WHERE ` + sampled + `
    AND (s.state <> 'idle' OR s.wait_event_type IS DISTINCT FROM 'Client' AND s.state = 'idle'
         OR s.state IS NULL AND s.backend_type = 'client backend' AND s.wait_event_type IN ('Lock', 'LWLock', 'BufferPin', 'IPC'))
  LIMIT $3
) b ON true`

const sampled = `s.application_name IS DISTINCT FROM '` + ApplicationName + `' AND s.pid <> ALL ($1::integer[])`

// takeSample takes one sample. own are pids to ignore.
func takeSample(ctx context.Context, s *session, own []int32) (Sample, error) {
	type row struct {
		Clients, Idle, Hidden       int32
		NewestPID                   int32
		Newest                      *time.Time
		PID                         int32
		Database                    uint32
		Kind, State, WaitType, Wait string
		HasXID                      bool
		Age, Running, Quiet         float64
		Query                       string `text:"statement"`
	}
	if own == nil {
		own = []int32{}
	}
	rows, err := list[row](ctx, s, sampleSQL, own, queryLength, maxSessions)
	if err != nil {
		return Sample{}, err
	}
	sample := Sample{At: s.now(), Sessions: make([]Session, 0, len(rows))}
	for _, r := range rows {
		sample.Clients, sample.Idle, sample.Hidden, sample.NewestPID = int(r.Clients), int(r.Idle), int(r.Hidden), uint32(r.NewestPID)
		if r.Newest != nil {
			sample.NewestFrom = *r.Newest
		}
		if r.PID == 0 {
			continue
		}
		class := classify(r.State, r.WaitType, r.Wait)
		// A session that has been idle for a while and is awake was woken, whatever its last statement is. One that has just become idle may be between a
		// statement and its sleep.
		if class == Woken && !listens.MatchString(r.Query) && seconds(r.Quiet) < longIdle && classify("active", r.WaitType, r.Wait) != NotifyQueue {
			class = notWaiting
		}
		sample.Sessions = append(sample.Sessions, Session{
			PID: uint32(r.PID), Database: r.Database, Kind: r.Kind, State: r.State, WaitType: r.WaitType, Wait: r.Wait, HasXID: r.HasXID,
			Age: r.Age, Running: r.Running, Quiet: r.Quiet, Query: r.Query, Class: class,
		})
	}
	return sample, nil
}

// addWaiting adds the sessions that wait for a lock and are not among those that the role may see.
func (s *Sample) addWaiting() {
	seen := map[uint32]bool{}
	for _, session := range s.Sessions {
		seen[session.PID] = true
	}
	for _, k := range s.Locks {
		if k.Granted || k.PID == 0 || seen[k.PID] {
			continue
		}
		seen[k.PID] = true
		s.Sessions = append(s.Sessions, Session{
			PID: k.PID, Database: k.Database, Kind: "client backend", State: "active", WaitType: "Lock", Wait: k.Type, Class: classify("active", "Lock", k.Type),
			Query: hiddenQuery,
		})
	}
}

// hiddenQuery is what PostgreSQL shows instead of the statement of a session that the role may not see.
const hiddenQuery = "<insufficient privilege>"

// anyLock reports whether a session waits for a lock.
func (s Sample) anyLock() bool {
	return slices.ContainsFunc(s.Sessions, func(session Session) bool { return session.WaitType == "Lock" })
}

// suspicious reports whether closer sampling is worthwhile. A few commits and reads in progress are normal.
func (s Sample) suspicious() bool {
	const manyAtOnce = 4
	usual := 0
	for _, session := range s.Sessions {
		switch {
		case session.Class == Commit || session.Class == DataIO || session.Class == ClientWrite:
			usual++
		case session.Class.lost() || session.Class == Woken || session.waitsForWorkers():
			return true
		}
	}
	return usual >= manyAtOnce
}

// writers returns some of the sessions that change rows, waiting ones first: their table locks are read with the
// other locks.
func (s Sample) writers() []int32 {
	const limit = 20
	pids := []int32{}
	for _, class := range []Class{MultiXact, ObjectLock, RowLock, LockTable, Commit, CPU, notWaiting} {
		for _, session := range s.Sessions {
			if session.Class == class && session.State != "idle" && (session.HasXID || class != CPU && class != notWaiting) && len(pids) < limit {
				pids = append(pids, int32(session.PID))
			}
		}
	}
	return pids
}
