package horizon

import (
	"fmt"
	"slices"
	"time"
)

// Kind is how somebody holds the horizon.
type Kind string

// The kinds of holders.
const (
	Transaction Kind = "transaction"          // a session with an xid
	Snapshot    Kind = "snapshot"             // a session that only reads, as far as the horizon knows
	Prepared    Kind = "prepared transaction" //
	Slot        Kind = "replication slot"     // one that nobody uses, or of a logical consumer
	Standby     Kind = "standby"              // one that reports what it needs
)

// Scope is what a holder holds.
type Scope string

// The scopes.
const (
	Here      Scope = "here"      // the tables of the database that was asked, whatever else
	Through   Scope = "through"   // these, though it has written in another database: snapshots taken here count it as running
	Elsewhere Scope = "elsewhere" // tables of another database, and catalogs that all share
	Catalogs  Scope = "catalogs"  // the system catalogs alone
)

// Holder is somebody who holds the horizon of a server.
type Holder struct {
	Kind  Kind
	Name  string // "pid 123", or the name of a prepared transaction, slot or standby
	By    string // xid, snapshot, slot, feedback
	Hold  XID    // nothing that a transaction since this one deleted can be removed
	Scope Scope

	PID                                                     int32 // of a session, or of the walsender that a standby reports to; 0: none
	Role, Application, Database, Client, State, Wait, Query string
	Active                                                  bool       // of a slot: it is in use
	Slot                                                    string     // by which a standby reports; "": by its walsender
	Started                                                 *time.Time // the transaction; nil: not known
	Since                                                   *time.Time // has at least held since; nil: not known
	Session                                                 *Session   // nil: no session
}

// Holders returns everybody who holds something of the server's, the oldest hold first.
func (v *View) Holders() []Holder {
	var list []Holder
	for _, s := range v.Sessions {
		switch {
		case s.looks():
		case s.Backend == "walsender" && s.Database == "" && s.Xmin != nil: // a standby's: a walsender in a database holds a snapshot of its own
			list = append(list, standby(s.PID, "", s.Application, s.Client, *s.Xmin))
		default:
			list = append(list, v.ofSession(s))
		}
	}
	for _, p := range v.Prepared {
		h := Holder{
			Kind: Prepared, Name: p.GID, By: "xid", Hold: p.XID, Scope: Here, Role: p.Owner, Database: p.Database, Started: &p.Since, Since: &p.Since,
		}
		if p.Database != v.Database {
			h.Scope = Through
		}
		list = append(list, h)
	}
	for _, s := range v.Slots {
		if s.Xmin != nil && s.Active && !s.Logical {
			list = append(list, standby(s.PID, s.Name, s.Application, s.Client, *s.Xmin))
			continue
		}
		h := Holder{
			Kind: Slot, Name: s.Name, By: "slot", Scope: Here, PID: s.PID, Application: s.Application, Client: s.Client, Active: s.Active, Since: s.InactiveSince,
		}
		if s.Xmin != nil {
			h.Hold = *s.Xmin
		} else {
			h.Hold, h.Scope = *s.CatalogXmin, Catalogs
		}
		list = append(list, h)
	}
	slices.SortStableFunc(list, func(a, b Holder) int {
		switch {
		case a.Hold.Before(b.Hold):
			return -1
		case b.Hold.Before(a.Hold):
			return 1
		case a.By == "xid" && b.By != "xid": // new snapshots are as old as it, and end with it
			return -1
		case b.By == "xid" && a.By != "xid":
			return 1
		}
		return 0
	})
	return list
}

// ofSession is a session's hold: by its xid where that is as old as its snapshot, or where its snapshot is of another database's and so holds
// nothing here. A standby reports its oldest snapshot, whatever the database, so there all count.
func (v *View) ofSession(s *Session) Holder {
	h := Holder{
		Kind: Snapshot, Name: fmt.Sprintf("pid %d", s.PID), By: "snapshot", Scope: Here, PID: s.PID, Role: s.Role, Application: s.Application, Database: s.Database,
		Client: s.Client, State: s.State, Wait: s.Wait, Query: s.Query, Started: s.Started, Since: s.Quiet, Session: s,
	}
	elsewhere := !v.Standby && s.Database != "" && s.Database != v.Database
	switch {
	case s.XID != nil && (s.Xmin == nil || elsewhere || !s.Xmin.Before(*s.XID)):
		h.Kind, h.By, h.Hold = Transaction, "xid", *s.XID
	case s.XID != nil:
		h.Kind, h.Hold = Transaction, *s.Xmin
	default:
		h.Hold = *s.Xmin
	}
	switch {
	case elsewhere && s.XID != nil:
		h.Scope = Through
	case elsewhere:
		h.Scope = Elsewhere
	}
	return h
}

// standby is one that reports what it needs, to a walsender or a slot.
func standby(walsender int32, slot, application, client string, hold XID) Holder {
	h := Holder{Kind: Standby, Name: application, By: "feedback", Scope: Here, Hold: hold, PID: walsender, Application: application, Client: client, Slot: slot}
	if client != "" {
		h.Name += " at " + client
	}
	return h
}

// Same tells whether two views found the same holder, in the same transaction where it is one, with the same hold where that does not move by itself.
func (h *Holder) Same(o *Holder) bool {
	if h.Session != nil && o.Session != nil {
		return h.PID == o.PID && h.Session.Connected.Equal(o.Session.Connected) && same(h.Started, o.Started) && h.Hold == o.Hold
	}
	return h.Kind == o.Kind && h.Name == o.Name && h.Slot == o.Slot && (h.Kind != Standby || h.Slot != "" || h.PID == o.PID) && same(h.Started, o.Started)
}

func same(a, b *time.Time) bool { return a == nil && b == nil || a != nil && b != nil && a.Equal(*b) }
