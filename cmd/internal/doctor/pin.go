package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// pin is a holder that keeps VACUUM from removing rows of this database that died after a certain transaction.
type pin struct {
	horizon.Holder
	Age int64 // transactions since
}

func (p pin) held(now time.Time) time.Duration {
	if p.Started == nil {
		return 0
	}
	return now.Sub(*p.Started)
}

func (p pin) String() string {
	switch p.Kind {
	case horizon.Prepared:
		return fmt.Sprintf("the prepared transaction %q of %s in database %s", p.Name, p.Role, p.Database)
	case horizon.Slot:
		if p.Active {
			return fmt.Sprintf("the replication slot %s (active)", p.Name)
		}
		return fmt.Sprintf("the replication slot %s (not active)", p.Name)
	case horizon.Standby:
		at := p.Client
		if at == "" {
			at = "a socket"
		}
		if p.Slot != "" {
			at += " (slot " + p.Slot + ")"
		}
		return fmt.Sprintf("the standby %s at %s, through hot_standby_feedback", orUnnamed(p.Application), at)
	}
	what := "holds an old snapshot"
	if p.By == "xid" {
		what = "has written"
	}
	if p.Session.Backend != "client backend" {
		return fmt.Sprintf("pid %d, a process of the server (%s, database %s), which %s", p.PID, p.Session.Backend, orUnnamed(p.Database), what)
	}
	return fmt.Sprintf("pid %d of %s (%s, database %s), which is %s and %s", p.PID, p.Role, orUnnamed(p.Application), p.Database, p.State, what)
}

// quoted returns the pid, or the name, as written in a statement.
func (p pin) quoted() string {
	if p.Session != nil || p.Kind == horizon.Standby {
		return fmt.Sprint(p.PID)
	}
	return literal(p.Name)
}

// seeOnStandby shows what a standby reports through hot_standby_feedback, when run there.
const seeOnStandby = `SELECT pid, state, xact_start, query FROM pg_stat_activity WHERE backend_xmin IS NOT NULL ORDER BY age(backend_xmin) DESC`

// there is a holder on a standby.
type there struct {
	pin
	at string // the standby's address
}

// onStandbys returns the sessions behind a standby's report, oldest first, on the standbys that the doctor was given and on those that follow them.
func (l *inspection) onStandbys(p pin) []there {
	c := horizon.Cluster{Primary: l.primary}
	at := map[*horizon.View]string{}
	for _, s := range l.standbys {
		c.Standbys = append(c.Standbys, s.view)
		at[s.view] = s.at
	}
	var holders []there
	for _, h := range c.Behind(l.primary, p.Holder) {
		if h.Session != nil {
			holders = append(holders, there{pin{h.Holder, l.primary.Next.Since(h.Hold)}, at[h.At]})
		}
	}
	return holders
}

// startedThere returns when the transaction behind a standby's report began; nil if it is not seen.
func (l *inspection) startedThere(p pin) *time.Time {
	if holders := l.onStandbys(p); len(holders) > 0 {
		return holders[0].Started
	}
	return nil
}

// readPins lists the holders that affect this database, oldest first.
func readPins(ctx context.Context, s *session) ([]pin, error) {
	v, err := readHorizon(ctx, s)
	if err != nil {
		return nil, err
	}
	return pinsOf(v), nil
}

// readHorizon reads all that may hold the horizon of a server, and from where it streams.
func readHorizon(ctx context.Context, s *session) (*horizon.View, error) {
	rows, err := list[horizon.Row](ctx, s, horizon.SQL)
	if err != nil {
		return nil, err
	}
	v, err := horizon.From(rows)
	if err != nil {
		return nil, err
	}
	v.Stream, err = one[horizon.Stream](ctx, s, horizon.StreamSQL)
	return v, err
}

func pinsOf(v *horizon.View) []pin {
	var pins []pin
	for _, h := range v.Holders() {
		if h.Scope == horizon.Here || h.Scope == horizon.Through {
			pins = append(pins, pin{h, v.Next.Since(h.Hold)})
		}
	}
	return pins
}

// among returns the index of p among earlier pins; -1 if it was not among them.
func (p pin) among(before []pin) int {
	return slices.IndexFunc(before, func(o pin) bool { return p.Same(&o.Holder) })
}
