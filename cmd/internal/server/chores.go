package server

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// beats tells the database every few seconds that this hub lives, and where it stands.
func (s *Server) beats(ctx context.Context) {
	address := ""
	if a := s.HTTPAddr(); a != nil {
		address = a.String()
	} else if a := s.PGAddr(); a != nil {
		address = a.String()
	}
	wait, seen := time.Duration(0), false
	defer func() {
		if !seen {
			return
		}
		// So that nobody misses it.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if err := s.primary.Leave(bounded, s.config.Name, address); err != nil {
			s.log.Warn("weir: the hub can't say that it stops, and will be missed for five minutes", "error", err)
		}
	}()
	for sleep.For(ctx, wait) {
		if !s.hub.Live() {
			wait = beatSoon // to be seen as soon as it serves
			continue
		}
		wait = beatEvery
		stats := s.hub.Stats()
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		err := s.primary.Beat(bounded, s.config.Name, address, stats.Position.Tick-1, stats.Subscribers)
		cancel()
		seen = seen || err == nil
		if err != nil && ctx.Err() == nil {
			s.log.Warn("weir: the hub can't give its sign of life", "error", err)
		}
	}
}

// chores gives segments of messages back. All hubs do it, and workers too, without election.
func (s *Server) chores(ctx context.Context) {
	for sleep.For(ctx, sleep.Jitter(choresEvery)) {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		did, err := s.primary.RotateMessages(bounded)
		cancel()
		if s.roster != nil && s.roster.Err() != nil { // nobody is sent to a hub that is not ready, so it has to find out by itself
			_ = s.roster.Check(ctx)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			s.log.Warn("weir: maintenance of messages failed, trying again", "error", err)
		case did != "":
			s.log.Debug("weir: maintenance", "step", "rotate messages", "did", did)
		}
	}
}

// recheck takes from clients that are connected what was taken from their roles.
func (s *Server) recheck(ctx context.Context) {
	for sleep.For(ctx, recheckEvery) {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		if err := s.pg.Recheck(bounded); err != nil && ctx.Err() == nil {
			s.log.Debug("weir: can't look up what clients may do", "error", err) // whoever looks up says so once
		}
		cancel()
	}
}
