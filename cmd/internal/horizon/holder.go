package horizon

import (
	"fmt"
	"slices"
	"time"
)

// Kind is a kind of holder.
type Kind string

// The kinds of holders.
const (
	Transaction Kind = "transaction"          // a session with an xid
	Snapshot    Kind = "snapshot"             // a session with a snapshot and no xid
	Prepared    Kind = "prepared transaction" //
	Slot        Kind = "replication slot"     // an unused one, or a logical one
	Standby     Kind = "standby"              // a standby with hot_standby_feedback
)

// Scope says which tables a holder affects.
type Scope string

// The scopes.
const (
	Here      Scope = "here"      // the tables of the queried database, and possibly others
	Through   Scope = "through"   // the same, although it has written in another database: snapshots taken here count it as running
	Elsewhere Scope = "elsewhere" // tables of another database, and shared catalogs
	Catalogs  Scope = "catalogs"  // only the system catalogs
)

// Holder is a session, prepared transaction, slot or standby that holds the horizon of a server.
type Holder struct {
	Kind  Kind
	Name  string // "pid 123", or the name of a prepared transaction, slot or standby
	By    string // xid, snapshot, slot, feedback
	Hold  XID    // rows deleted by this or a later transaction can't be removed
	Scope Scope

	PID                                                     int32 // of the session, or of the standby's walsender; 0 if none
	Role, Application, Database, Client, State, Wait, Query string
	Active                                                  bool       // the slot is in use
	Slot                                                    string     // through which the standby reports; "" for its walsender
	Started                                                 *time.Time // of the transaction; nil if unknown
	Since                                                   *time.Time // the hold has lasted at least since then; nil if unknown
	Session                                                 *Session   // nil if the holder is not a session
}

// Holders returns all holders, oldest hold first.
func (v *View) Holders() []Holder {
	var list []Holder
	for _, s := range v.Sessions {
		switch {
		case s.observes():
		case s.Backend == "walsender" && s.Database == "" && s.Xmin != nil: // reports for a standby; a walsender in a database has its own snapshot
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
		case a.By == "xid" && b.By != "xid": // new snapshots are as old as this xid, and advance when it ends
			return -1
		case b.By == "xid" && a.By != "xid":
			return 1
		}
		return 0
	})
	return list
}

// ofSession returns a session's hold. The xid counts if it is as old as the snapshot, or if the snapshot is in another database and so holds
// nothing here. A standby reports its oldest snapshot of any database, so all of them count there.
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

// standby returns the holder for a standby that reports to a walsender or a slot.
func standby(walsender int32, slot, application, client string, hold XID) Holder {
	h := Holder{Kind: Standby, Name: application, By: "feedback", Scope: Here, Hold: hold, PID: walsender, Application: application, Client: client, Slot: slot}
	if client != "" {
		h.Name += " at " + client
	}
	return h
}

// Same reports whether h and o are the same holder: for a session, in the same transaction with the same hold.
func (h *Holder) Same(o *Holder) bool {
	if h.Session != nil && o.Session != nil {
		return h.PID == o.PID && h.Session.Connected.Equal(o.Session.Connected) && same(h.Started, o.Started) && h.Hold == o.Hold
	}
	return h.Kind == o.Kind && h.Name == o.Name && h.Slot == o.Slot && (h.Kind != Standby || h.Slot != "" || h.PID == o.PID) && same(h.Started, o.Started)
}

func same(a, b *time.Time) bool { return a == nil && b == nil || a != nil && b != nil && a.Equal(*b) }
