package guard

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// climb is how far the guard has gone with a session in one transaction. In a dry run the times are those at which it would have.
type climb struct {
	reported              string // the step and rule last reported
	cancelled, terminated time.Time
	spent                 bool // nothing is left to try
}

// Done is what the guard did, or in a dry run would have done, or what came of it.
type Done struct {
	At      time.Time `json:"at"`
	Server  string    `json:"server"`
	Name    string    `json:"name"`
	Action  Action    `json:"action"`
	Outcome string    `json:"outcome"`
	Why     string    `json:"why"`
}

// The outcomes of an action: what became of the signal, and later what came of it.
const (
	outcomeReported  = "reported"
	outcomeWould     = "dry run"
	outcomeSignalled = "signalled"
	outcomeSpared    = "spared"    // it was no longer the one, or held it no longer
	outcomeFailed    = "failed"    // the server refused
	outcomeMoved     = "moved"     // it let go, and the horizon moved
	outcomeNotMoved  = "not moved" // it let go, and the horizon did not move
	outcomeNoEffect  = "no effect" // it goes on
)

// climb takes the next step with each holder for whom one is due.
func (g *Guard) climb(ctx context.Context, holders []*Holder) []Done {
	var done []Done
	climbs := make(map[string]*climb, len(holders))
	for _, h := range holders {
		c := g.climbs[h.identity()]
		if c == nil {
			c = &climb{}
		}
		climbs[h.identity()] = c
		if h.Step == "" {
			continue
		}
		if as := string(h.Step) + h.Rule; c.reported != as {
			c.reported = as
			g.log.LogAttrs(ctx, slog.LevelWarn, "the horizon is held", evidence(h, "due", string(h.Step))...)
			done = append(done, g.did(h, Report, outcomeReported, h.Why))
			continue // the first rung; the next look takes the next
		}
		action := next(h, c, time.Now())
		if action == "" {
			continue
		}
		if !g.config.Act {
			c.took(action, time.Now())
			g.log.LogAttrs(ctx, slog.LevelWarn, "would "+string(action), evidence(h)...)
			done = append(done, g.did(h, action, outcomeWould, h.Why))
			continue
		}
		if wait := g.caution.wait(time.Now(), g.config.Policy.EndsPerMinute); wait > 0 {
			h.Why += fmt.Sprintf("; caution lets the next signal wait for %s", wait.Round(time.Second))
			continue
		}
		done = append(done, g.signal(ctx, h, c, action))
	}
	g.climbs = climbs
	return done
}

// next returns the rung to take now; "" is none.
func next(h *Holder, c *climb, now time.Time) Action {
	switch {
	case h.Step == Report || c.spent || !c.terminated.IsZero():
		return ""
	case c.cancelled.IsZero() && h.cancellable():
		return Cancel
	case !c.cancelled.IsZero() && now.Sub(c.cancelled) < h.limits.Patience.Duration:
		return ""
	case h.Step == Terminate:
		return Terminate
	}
	return ""
}

func (c *climb) took(action Action, now time.Time) {
	if action == Cancel {
		c.cancelled = now
	} else {
		c.terminated = now
	}
}

func (g *Guard) did(h *Holder, action Action, outcome, why string) Done {
	g.metrics.did(action, outcome)
	return Done{At: time.Now(), Server: h.Server, Name: h.Name, Action: action, Outcome: outcome, Why: why}
}

// evidence is what is logged of a holder with each action, and what came before it.
func evidence(h *Holder, more ...string) []slog.Attr {
	list := []slog.Attr{slog.String("server", h.Server), slog.String("kind", string(h.Kind)), slog.String("name", h.Name)}
	for i := 0; i+1 < len(more); i += 2 {
		list = append(list, slog.String(more[i], more[i+1]))
	}
	list = append(list, slog.String("why", h.Why), slog.Uint64("xid", uint64(h.Xid)), slog.Int64("age_xids", h.AgeXids),
		slog.Duration("held", h.held().Round(time.Millisecond)), slog.String("by", h.By))
	for _, a := range []slog.Attr{
		slog.String("role", h.Role), slog.String("application", h.Application), slog.String("database", h.Database),
		slog.String("client", h.Client), slog.String("state", h.State), slog.String("wait", h.Wait), slog.String("rule", h.Rule),
		slog.String("query", h.Query), slog.String("command", h.Command),
	} {
		if a.Value.String() != "" {
			list = append(list, a)
		}
	}
	if !h.Started.IsZero() {
		list = append(list, slog.Time("transaction_since", h.Started))
	}
	if h.session != nil {
		list = append(list, slog.Time("session_since", h.session.Connected))
	}
	return list
}
