// Package horizon knows who keeps VACUUM from removing dead rows: sessions, prepared transactions, replication slots, and standbys that report what
// they need. It is read by one statement, SQL; what its rows mean is told here, once, for the doctor, who names holders, and for the
// guard, who ends them.
//
// Who counts, and for which tables, is as ComputeXidHorizons has it in PostgreSQL's procarray.c.
package horizon

import (
	_ "embed"
	"fmt"
	"strings"
	"time"
)

// SQL lists who may hold the horizon of a server, in rows of Row. It runs on PostgreSQL 14 and later, on a primary or a standby. Other roles' sessions
// are seen by members of pg_read_all_stats alone.
//
//go:embed holders.sql
var SQL string

// Row is one of SQL's, its fields by position.
type Row struct {
	Kind, Name                          string
	PID                                 *int32
	Connected, Started, Quiet           *time.Time
	Backend, Database, Role             string
	Superuser                           bool
	Application, Client, State, Wait    string
	Query                               string
	Active                              bool
	Running, Snapshot, CatalogsSnapshot *int64
}

// XID is a transaction id. They are compared as PostgreSQL does: on a circle.
type XID uint32

// Before tells whether x is the older.
func (x XID) Before(y XID) bool { return int32(x-y) < 0 }

// Since returns how many transactions y comes after x.
func (x XID) Since(y XID) int64 { return int64(int32(x - y)) }

// View is who may hold the horizon of one server, at one moment.
type View struct {
	At       time.Time // by the server's clock
	Standby  bool
	Database string // of the session that asked
	Next     XID    // comes next: the one after the newest that has ended
	Sessions []*Session
	Prepared []PreparedXact
	Slots    []ReplicationSlot
}

// Session is one that holds an xid or a snapshot.
type Session struct {
	PID                              int32
	Connected                        time.Time
	Started                          *time.Time // its transaction
	Quiet                            *time.Time // since when it has at least held what it holds: its last statement's start or end
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
	InactiveSince       *time.Time // nil: not known
}

// The names that the doctor's and the guard's sessions go by: who looks is no holder.
const (
	Doctor = "weir doctor"
	Guard  = "weir guard"
)

// looks tells a session of a doctor or a guard.
func (s *Session) looks() bool {
	return strings.HasPrefix(s.Application, Guard) || strings.HasPrefix(s.Application, Doctor)
}

// From makes a view of SQL's rows.
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
			return nil, fmt.Errorf("horizon: a row is of the unknown kind %q", r.Kind)
		}
	}
	if v.Database == "" {
		return nil, fmt.Errorf("horizon: none of %d rows is the server's", len(rows))
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
