package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// quoted returns the name as written in a statement.
func (p pin) quoted() string {
	if p.Session != nil || p.Kind == horizon.Standby {
		return fmt.Sprint(p.PID)
	}
	return strings.ReplaceAll(p.Name, "'", "''")
}

// readPins lists the holders that affect this database, oldest first.
func readPins(ctx context.Context, s *session) ([]pin, error) {
	rows, err := list[horizon.Row](ctx, s, horizon.SQL)
	if err != nil {
		return nil, err
	}
	v, err := horizon.From(rows)
	if err != nil {
		return nil, err
	}
	var pins []pin
	for _, h := range v.Holders() {
		if h.Scope == horizon.Here || h.Scope == horizon.Through {
			pins = append(pins, pin{h, v.Next.Since(h.Hold)})
		}
	}
	return pins, nil
}

// among returns the index of p among earlier pins; -1 if it was not among them.
func (p pin) among(before []pin) int {
	return slices.IndexFunc(before, func(o pin) bool { return p.Same(&o.Holder) })
}
