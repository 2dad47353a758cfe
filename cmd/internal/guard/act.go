package guard

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// settleBound limits how long the effect of a signal may take to show on the primary. A standby reports every wal_receiver_status_interval,
// by default 10 s.
const settleBound = 30 * time.Second

// signal is a signal that was sent and whose effect is not known yet.
type signal struct {
	holder *Holder
	climb  *climb
	action Action
	at     time.Time
}

// signal cancels or terminates a session if it is still the one that was judged.
func (g *Guard) signal(ctx context.Context, h *Holder, c *climb, action Action) Done {
	now := time.Now()
	c.took(action, now)
	sql := terminateSQL
	if action == Cancel {
		sql = cancelSQL
	}
	if h.Blocks > 0 {
		sql = terminateBlockerSQL
		if action == Cancel {
			sql = cancelBlockerSQL
		}
	}
	sent, err := send(ctx, sql, h)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		*c = climb{reported: c.reported} // it is judged again if it still exists
		why := "it has released the horizon, or is no longer the same"
		if h.Blocks > 0 {
			why = "nobody waits for its locks any more, or it is no longer the same"
		}
		g.log.LogAttrs(ctx, slog.LevelInfo, "spared: "+why, evidence(h, "action", string(action))...)
		return g.did(h, action, outcomeSpared, why)
	case err != nil:
		c.spent = true
		g.turns.caution.failed(now)
		g.log.LogAttrs(ctx, slog.LevelError, "cannot "+string(action), evidence(h, "error", err.Error())...)
		return g.did(h, action, outcomeFailed, err.Error())
	case !sent:
		g.log.LogAttrs(ctx, slog.LevelInfo, "spared: it has ended", evidence(h, "action", string(action))...)
		return g.did(h, action, outcomeSpared, "it has ended")
	}
	g.turns.caution.signalled(now)
	g.pending = append(g.pending, &signal{holder: h, climb: c, action: action, at: now})
	text := "terminated a session"
	if action == Cancel {
		text = "cancelled a statement"
	}
	g.log.LogAttrs(ctx, slog.LevelWarn, text, evidence(h)...)
	return g.did(h, action, outcomeSignalled, h.Why)
}

// send finds the session again and signals it, in one statement. It returns pgx.ErrNoRows if the session was not found.
func send(ctx context.Context, sql string, h *Holder) (sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	s := h.session
	if s.Started == nil {
		return false, pgx.ErrNoRows
	}
	if h.Blocks > 0 {
		err = h.at.server.DB.QueryRow(ctx, sql, s.PID, s.Connected, *s.Started, h.waiters).Scan(&sent)
		return sent, err
	}
	holdsXid, holdsXmin := number(s.XID), number(s.Xmin)
	if h.By == "xid" {
		holdsXmin = nil
	} else {
		holdsXid = nil
	}
	err = h.at.server.DB.QueryRow(ctx, sql, s.PID, s.Connected, *s.Started, holdsXid, holdsXmin).Scan(&sent)
	return sent, err
}

// verify checks the effects of earlier signals. holders are the judged holders of this poll.
func (g *Guard) verify(c *cluster, holders []*Holder) []Done {
	var done []Done
	waiting := g.pending[:0]
	for _, s := range g.pending {
		outcome, why := c.effect(s, holders)
		if outcome == "" {
			waiting = append(waiting, s)
			continue
		}
		level := slog.LevelWarn
		switch outcome {
		case outcomeMoved, outcomeFreed:
			level = slog.LevelInfo
			g.turns.caution.helped()
		case outcomeNotMoved:
			g.turns.caution.failed(time.Now())
		case outcomeNoEffect:
			// A cancel without effect is followed by a terminate if the limits allow it.
			if s.action == Terminate || s.holder.limits.Action == Cancel {
				s.climb.spent = true
				level = slog.LevelError
				g.turns.caution.failed(time.Now())
			}
		}
		g.log.Log(context.Background(), level, "effect of the signal", "server", s.holder.Server, "name", s.holder.Name, "action", s.action,
			"effect", outcome, "why", why, "after_seconds", seconds(time.Since(s.at)))
		done = append(done, g.did(s.holder, s.action, outcome, why))
	}
	g.pending = waiting
	return done
}

// effect returns the outcome of a signal, or "" if it is not known yet.
func (c *cluster) effect(s *signal, holders []*Holder) (outcome, why string) {
	passed := time.Since(s.at)
	v := c.find(s.holder.Server)
	if v == nil {
		if passed < settleBound {
			return "", ""
		}
		return outcomeNoEffect, "its server can't be reached"
	}
	still, what := v.holds(s.holder), "the session still holds the horizon"
	if s.holder.Blocks > 0 {
		still, what = c.blocks(s.holder), "others still wait for the session's locks"
	}
	if still {
		patience := settleBound
		if s.action == Cancel {
			patience = s.holder.limits.Patience.Duration
		}
		if passed < patience {
			return "", ""
		}
		return outcomeNoEffect, what
	}
	if s.holder.Blocks > 0 {
		return outcomeFreed, "nobody waits for the session's locks any more"
	}
	front := (*Holder)(nil)
	for _, h := range holders {
		if h.relevant && !s.holder.hold.Before(h.hold) {
			front = h
			break
		}
	}
	switch {
	case front == nil:
		return outcomeMoved, "the session released the horizon, which moved"
	case front.Step == Cancel || front.Step == Terminate:
		return outcomeMoved, "the session released the horizon; " + front.Name + " is as old, and is next"
	case passed < settleBound:
		return "", ""
	}
	return outcomeNotMoved, "the session released the horizon, but " + front.Name + " still holds it at the same age (" + front.Why + ")"
}

// find returns the view of a server by its name, or nil.
func (c *cluster) find(name string) *view {
	for _, v := range append([]*view{c.primary}, c.standbys...) {
		if v.server.Name == name {
			return v
		}
	}
	return nil
}

// number converts an xid to a query parameter.
func number(x *horizon.XID) *int64 {
	if x == nil {
		return nil
	}
	n := int64(*x)
	return &n
}

// holds reports whether a session still holds, in the same transaction, what it held when it was judged.
func (v *view) holds(h *Holder) bool {
	for _, s := range v.Sessions {
		same := s.PID == h.PID && s.Connected.Equal(h.session.Connected) && s.Started != nil && s.Started.Equal(*h.session.Started)
		if same && (s.XID != nil && *s.XID == h.own || s.Xmin != nil && *s.Xmin == h.own) {
			return true
		}
	}
	return false
}
