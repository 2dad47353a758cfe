package guard

import (
	"fmt"
	"strings"
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
	Standby     Kind = "standby"              // one that reports what it needs, and can't be looked into
)

// Holder is somebody who holds the horizon, as one look found it and judged it.
type Holder struct {
	Server      string    `json:"server"`
	Kind        Kind      `json:"kind"`
	Name        string    `json:"name"` // "pid 123", or the name of a prepared transaction, slot or standby
	PID         int32     `json:"pid,omitempty"`
	Role        string    `json:"role,omitempty"`
	Application string    `json:"application,omitempty"`
	Database    string    `json:"database,omitempty"`
	Client      string    `json:"client,omitempty"`
	State       string    `json:"state,omitempty"`
	Wait        string    `json:"wait,omitempty"`
	Started     time.Time `json:"started,omitzero"` // the transaction
	Query       string    `json:"query,omitempty"`

	Xid     uint32  `json:"xid"`               // nothing that a transaction since this one deleted can be removed
	AgeXids int64   `json:"age_xids"`          // transactions since
	Held    float64 `json:"held_seconds"`      // for so long at least
	By      string  `json:"held_by"`           // xid, snapshot, slot, feedback
	Rule    string  `json:"rule,omitempty"`    // of the policy
	Step    Action  `json:"step,omitempty"`    // what is due: report, cancel, terminate
	Why     string  `json:"why"`               // the reason for the step, or for none
	Command string  `json:"command,omitempty"` // what to run by hand, for those whom the guard never ends

	session  *session // nil: no session
	at       *view    // the server that it is on
	hold     xid      // as the primary sees it
	own      xid      // as its server shows it, for the statement that ends it
	since    time.Time
	limits   Limits
	never    string // why it is not the guard's to end
	derived  bool   // its snapshot is as old as a transaction that still runs, not by its own age
	relevant bool
	catalogs bool // it holds the system catalogs alone
}

// key is the same for as long as the same session holds the same in the same transaction.
func (h *Holder) key() string { return h.identity() + fmt.Sprintf(" %d", h.own) }

// identity is the same for as long as the same session is in the same transaction.
func (h *Holder) identity() string {
	if h.session == nil {
		return h.Server + " " + string(h.Kind) + " " + h.Name
	}
	started := time.Time{}
	if h.session.xactStart != nil {
		started = *h.session.xactStart
	}
	return fmt.Sprintf("%s %d %d %d", h.Server, h.PID, h.session.backendStart.UnixMicro(), started.UnixMicro())
}

func (h *Holder) held() time.Duration { return max(0, h.at.at.Sub(h.since)) }

// cancellable tells whether a cancel can have an effect: an idle session runs nothing, and one that waits for its client to
// take an answer hears nothing.
func (h *Holder) cancellable() bool {
	return (h.session.state == "active" || h.session.state == "fastpath function call") && h.session.wait != "Client:ClientWrite"
}

// ofSession returns the holder for a session, by its xid where that holds as much as its snapshot.
func ofSession(v *view, s *session) *Holder {
	h := &Holder{
		Server: v.server.Name, Kind: Snapshot, Name: fmt.Sprintf("pid %d", s.pid), PID: s.pid, Role: s.role, Application: s.application,
		Database: s.database, Client: s.client, State: s.state, Wait: s.wait, Query: strings.Join(strings.Fields(s.query), " "),
		By: "snapshot", session: s, at: v, since: v.at, relevant: true,
	}
	if s.xactStart != nil {
		h.Started = *s.xactStart
	}
	if s.quietSince != nil {
		h.since = *s.quietSince
	}
	switch {
	case s.xid != nil && (s.xmin == nil || !xid(*s.xmin).before(xid(*s.xid))):
		h.Kind, h.By, h.own = Transaction, "xid", xid(*s.xid)
	case s.xid != nil:
		h.Kind, h.own = Transaction, xid(*s.xmin)
	default:
		h.own = xid(*s.xmin)
	}
	h.hold = h.own
	return h
}

func ofPrepared(v *view, p prepared) *Holder {
	return &Holder{
		Server: v.server.Name, Kind: Prepared, Name: p.gid, Role: p.owner, Database: p.database, Started: p.since, By: "xid",
		at: v, hold: xid(p.xid), own: xid(p.xid), since: p.since, relevant: true,
		never:   "a prepared transaction has promised to survive: only who prepared it knows whether it should be committed",
		Command: "ROLLBACK PREPARED " + literal(p.gid),
	}
}

func ofSlot(v *view, s slot, hold xid) *Holder {
	h := &Holder{
		Server: v.server.Name, Kind: Slot, Name: s.name, Application: s.application, Client: s.client, By: "slot",
		at: v, hold: hold, own: hold, since: v.at, relevant: true,
		never:   "a slot is a promise to a consumer: only who made it knows whether that comes back",
		Command: "SELECT pg_drop_replication_slot(" + literal(s.name) + ")",
	}
	if s.inactiveSince != nil {
		h.since = *s.inactiveSince
	}
	if s.active {
		h.State, h.Command = "active", ""
	}
	return h
}

// ofStandby is for a standby that reports what it needs and that none of its sessions accounts for.
func ofStandby(v *view, application, client string, hold xid, why string) *Holder {
	name := application
	if client != "" {
		name += " at " + client
	}
	return &Holder{
		Server: v.server.Name, Kind: Standby, Name: name, Application: application, Client: client, By: "feedback",
		at: v, hold: hold, own: hold, since: v.at, relevant: true, never: why,
	}
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
