// Package horizon finds what keeps VACUUM from removing dead rows: sessions, prepared transactions, replication slots, and standbys with
// hot_standby_feedback. One statement, SQL, reads them. This package interprets its rows, for the doctor, which names holders, and for the
// guard, which ends them.
//
// Which holders count, and for which tables, follows ComputeXidHorizons in PostgreSQL's procarray.c.
package horizon

import (
	_ "embed"
	"fmt"
	"strings"
	"time"
)

// SQL lists the possible holders of a server's horizon, as rows of Row. It runs on PostgreSQL 14 and later, on a primary or a standby. Only members
// of pg_read_all_stats see other roles' sessions.
//
//go:embed holders.sql
var SQL string

// Row is a row of SQL, with its columns by position.
type Row struct {
	Kind, Name                          string
	PID                                 *int32
	Connected, Started, Quiet           *time.Time
	Backend, Database, Role             string
	Superuser                           bool
	Application, Client, State, Wait    string
	Query                               string `text:"statement"`
	Active                              bool
	Running, Snapshot, CatalogsSnapshot *int64
}

// XID is a transaction id. Comparisons wrap around, as in PostgreSQL.
type XID uint32

// Before reports whether x is older than y.
func (x XID) Before(y XID) bool { return int32(x-y) < 0 }

// Since returns the number of transactions from y to x.
func (x XID) Since(y XID) int64 { return int64(int32(x - y)) }

// View contains the possible holders of one server's horizon, at one moment.
type View struct {
	At       time.Time // by the server's clock
	Standby  bool
	Database string // of the querying session
	Next     XID    // the next xid after the newest that has ended
	Sessions []*Session
	Prepared []PreparedXact
	Slots    []ReplicationSlot
	Stream   Stream // set by who reads StreamSQL, for Cluster
}

// Session is a session with an xid or a snapshot.
type Session struct {
	PID                              int32
	Connected                        time.Time
	Started                          *time.Time // of its transaction
	Quiet                            *time.Time // its last statement's start or end: it has held what it holds at least since then
	Backend                          string     // backend_type
	Database, Role                   string
	Superuser                        bool
	Application, Client, State, Wait string
	Query                            string
	XID, Xmin                        *XID
}

// PreparedXact is a prepared transaction.
type PreparedXact struct {
	GID             string
	XID             XID
	Since           time.Time
	Owner, Database string
}

// ReplicationSlot is a replication slot.
type ReplicationSlot struct {
	Name                string
	Logical, Active     bool
	PID                 int32      // of the walsender that uses it
	Application, Client string     // of that walsender
	Xmin, CatalogXmin   *XID       //
	InactiveSince       *time.Time // nil if unknown
}

// Application names of the doctor's and the guard's sessions, which are not holders.
const (
	Doctor = "weir doctor"
	Guard  = "weir guard"
)

// observes reports whether the session belongs to a doctor or a guard.
func (s *Session) observes() bool {
	return strings.HasPrefix(s.Application, Guard) || strings.HasPrefix(s.Application, Doctor)
}

// idleSince reports whether the session was idle in its transaction before a moment, and has been since, so that its snapshot is older. One that runs
// a statement may have taken its snapshot at any time.
func (s *Session) idleSince(at *time.Time) bool {
	return s != nil && at != nil && s.State == "idle in transaction" && s.Quiet != nil && s.Quiet.Before(*at)
}

// backsUp reports whether the session makes a backup. Its snapshot stays until the backup has ended, whoever else ends before, so it holds the horizon itself,
// even if it was taken while an older transaction ran.
func (s *Session) backsUp() bool {
	return s != nil && strings.Contains(Leave(s.Backend, s.Application, s.Query), "backup")
}

// From returns the view for rows of SQL.
func From(rows []Row) (*View, error) {
	v := &View{}
	for _, r := range rows {
		switch r.Kind {
		case "server":
			v.At, v.Standby, v.Database, v.Next = *r.Started, r.Active, r.Name, *xid(r.Running)
		case "session":
			v.Sessions = append(v.Sessions, &Session{
				PID: *r.PID, Connected: *r.Connected, Started: r.Started, Quiet: r.Quiet, Backend: r.Backend, Database: r.Database, Role: r.Role,
				Superuser: r.Superuser, Application: r.Application, Client: r.Client, State: r.State, Wait: r.Wait, Query: r.Query,
				XID: xid(r.Running), Xmin: xid(r.Snapshot),
			})
		case "prepared":
			v.Prepared = append(v.Prepared, PreparedXact{GID: r.Name, XID: *xid(r.Running), Since: *r.Started, Owner: r.Role, Database: r.Database})
		case "physical slot", "logical slot":
			s := ReplicationSlot{
				Name: r.Name, Logical: r.Kind == "logical slot", Active: r.Active, Application: r.Application, Client: r.Client,
				Xmin: xid(r.Snapshot), CatalogXmin: xid(r.CatalogsSnapshot), InactiveSince: r.Quiet,
			}
			if r.PID != nil {
				s.PID = *r.PID
			}
			v.Slots = append(v.Slots, s)
		default:
			return nil, fmt.Errorf("horizon: a row has the unknown kind %q", r.Kind)
		}
	}
	if v.Database == "" {
		return nil, fmt.Errorf("horizon: the server's own row is missing from %d rows", len(rows))
	}
	return v, nil
}

func xid(x *int64) *XID {
	if x == nil {
		return nil
	}
	id := XID(*x)
	return &id
}
