package guard

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// Holder is a holder of the horizon, as found and judged by one poll.
type Holder struct {
	Server      string       `json:"server"`
	Kind        horizon.Kind `json:"kind"`
	Name        string       `json:"name"` // "pid 123", or the name of a prepared transaction, slot or standby
	PID         int32        `json:"pid,omitempty"`
	Role        string       `json:"role,omitempty"`
	Application string       `json:"application,omitempty"`
	Database    string       `json:"database,omitempty"`
	Client      string       `json:"client,omitempty"`
	State       string       `json:"state,omitempty"`
	Wait        string       `json:"wait,omitempty"`
	Started     time.Time    `json:"started,omitzero"` // the transaction
	Query       string       `json:"query,omitempty"`

	Xid     uint32        `json:"xid"`               // rows deleted by this or a later transaction can't be removed
	AgeXids int64         `json:"age_xids"`          // transactions since Xid
	Held    float64       `json:"held_seconds"`      // it has held for at least this long
	By      string        `json:"held_by"`           // xid, snapshot, slot, feedback; lock, if it is here only because of Blocks
	Scope   horizon.Scope `json:"scope"`             // tables here, tables here through snapshots, tables elsewhere, catalogs
	Rule    string        `json:"rule,omitempty"`    // the rule of the policy that applies
	Step    Action        `json:"step,omitempty"`    // what is due: report, cancel, terminate
	Why     string        `json:"why"`               // the reason for the step, or for taking none
	Command string        `json:"command,omitempty"` // what to do by hand, and when, for holders that the guard never ends

	// Set where the policy counts blocked sessions, and as many wait for its locks as that says, directly or behind one another.
	Blocks    int     `json:"blocks,omitempty"`
	BlocksFor float64 `json:"blocks_seconds,omitempty"` // how long the first of them has waited

	session  *horizon.Session // nil: not a session
	at       *view            // the server that it is on
	hold     horizon.XID      // as the primary sees it
	own      horizon.XID      // as its own server shows it, for the statement that ends it
	since    time.Time
	limits   Limits
	never    string  // why the guard must not end it
	derived  bool    // its snapshot is only as old as a transaction that still runs
	relevant bool    // it holds tables of the primary's database now
	waiters  []int32 // that wait directly for its locks
}

// key identifies a holder together with the xid or snapshot that it holds.
func (h *Holder) key() string { return h.identity() + fmt.Sprintf(" %d", h.own) }

// identity identifies a session in one transaction, or another holder by name.
func (h *Holder) identity() string {
	if h.session == nil {
		return h.Server + " " + string(h.Kind) + " " + h.Name
	}
	started := time.Time{}
	if h.session.Started != nil {
		started = *h.session.Started
	}
	return fmt.Sprintf("%s %d %d %d", h.Server, h.PID, h.session.Connected.UnixMicro(), started.UnixMicro())
}

func (h *Holder) held() time.Duration { return max(0, h.at.At.Sub(h.since)) }

// cancellable reports whether a cancel can have an effect: an idle session runs no statement, and one that waits for its client to read a
// result does not process the cancel.
func (h *Holder) cancellable() bool {
	return (h.session.State == "active" || h.session.State == "fastpath function call") && h.session.Wait != "Client:ClientWrite"
}

// of returns a holder on a server, not judged yet.
func of(v *view, x *horizon.Traced) *Holder {
	h := &Holder{
		Server: v.server.Name, Kind: x.Kind, Name: x.Name, Role: x.Role, Application: x.Application, Database: x.Database, Client: x.Client,
		State: x.State, Wait: x.Wait, Query: strings.Join(strings.Fields(x.Query), " "), By: x.By, Scope: x.Scope,
		session: x.Session, at: v, hold: x.Hold, own: x.Own, since: v.At, derived: x.Derived, relevant: x.Relevant,
	}
	if x.Session != nil {
		h.PID = x.PID
	}
	if x.Started != nil {
		h.Started = *x.Started
	}
	if x.Since != nil {
		h.since = *x.Since
	}
	switch x.Kind {
	case horizon.Prepared:
		h.never = "a prepared transaction must survive: only the application that prepared it knows whether to commit it"
		h.Command = "COMMIT PREPARED " + literal(x.Name) + " or ROLLBACK PREPARED " + literal(x.Name) + ", in its database, as its coordinator would"
	case horizon.Slot:
		h.never = "a slot keeps data for its consumer: only its owner knows whether the consumer will return"
		if x.Active {
			h.State = "active"
		} else {
			h.Command = "start its consumer again; only if that never comes back: SELECT pg_drop_replication_slot(" + literal(x.Name) +
				"); a standby or subscriber that used it must then be made anew"
		}
	case horizon.Standby:
		h.never = x.Untraced
	}
	return h
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
