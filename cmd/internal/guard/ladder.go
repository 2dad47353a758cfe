package guard

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// climb records the steps taken with a session in one transaction; in a dry run, the steps that would have been taken.
type climb struct {
	reported              string // step and rule last reported
	cancelled, terminated time.Time
	spent                 bool // nothing is left to try
}

// Done is an action that the guard took, or in a dry run would have taken, or the outcome of one.
type Done struct {
	At      time.Time `json:"at"`
	Server  string    `json:"server"`
	Name    string    `json:"name"`
	Action  Action    `json:"action"`
	Outcome string    `json:"outcome"`
	Why     string    `json:"why"`
}

// Outcomes of an action: first whether the signal was sent, later its effect.
const (
	outcomeReported  = "reported"
	outcomeWould     = "dry run"
	outcomeSignalled = "signalled"
	outcomeSpared    = "spared"    // it was no longer the same, or no longer held the horizon
	outcomeFailed    = "failed"    // the server refused
	outcomeMoved     = "moved"     // it released the horizon, which moved
	outcomeNotMoved  = "not moved" // it released the horizon, which did not move
	outcomeFreed     = "freed"     // nobody waits for its locks any more
	outcomeNoEffect  = "no effect" // it still holds the horizon, or others still wait for its locks
)

// climb takes the next step with each holder that is due.
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
			what := "the horizon is held"
			if h.Blocks > 0 {
				what = "sessions wait for locks"
			}
			g.log.LogAttrs(ctx, slog.LevelWarn, what, evidence(h, "due", string(h.Step))...)
			done = append(done, g.did(h, Report, outcomeReported, h.Why))
			continue // the first step; the next poll takes the next one
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
		if wait := g.turns.caution.wait(time.Now(), g.config.Policy.EndsPerMinute); wait > 0 {
			h.Why += fmt.Sprintf("; the limit on signals delays the next one by %s", wait.Round(time.Second))
			continue
		}
		done = append(done, g.signal(ctx, h, c, action))
	}
	g.climbs = climbs
	return done
}

// next returns the step to take now, or "".
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

// evidence returns what is logged about a holder with each action: the given attributes, then the holder's.
func evidence(h *Holder, more ...string) []slog.Attr {
	list := []slog.Attr{slog.String("server", h.Server), slog.String("kind", string(h.Kind)), slog.String("name", h.Name)}
	for i := 0; i+1 < len(more); i += 2 {
		list = append(list, slog.String(more[i], more[i+1]))
	}
	list = append(list, slog.String("why", h.Why), slog.Uint64("xid", uint64(h.Xid)), slog.Int64("age_xids", h.AgeXids),
		slog.Float64("held_seconds", seconds(h.held())), slog.String("by", h.By))
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

// seconds returns a duration as the log and the JSON have it, to the millisecond.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}
