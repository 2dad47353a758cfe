package server

import (
	"context"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// beats sends a heartbeat to the database every few seconds, with the hub's position and what it does.
func (s *Server) beats(ctx context.Context) {
	address := ""
	at := &s.listeners
	if s.config.many != nil {
		at = &s.config.many.many.listeners
	}
	if a := at.HTTPAddr(); a != nil {
		address = a.String()
	} else if a := at.PGAddr(); a != nil {
		address = a.String()
	}
	wait, seen := time.Duration(0), false
	defer func() {
		if !seen {
			return
		}
		// So that the hub is not reported as missing.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if err := s.primary.Leave(bounded, s.config.Name, address); err != nil {
			s.log.Warn("weir: the hub can't report that it stops, and will be listed for five more minutes", "error", err)
		}
	}()
	for sleep.For(ctx, wait) {
		if !s.hub.Live() {
			wait = beatSoon // to be listed as soon as it serves
			continue
		}
		wait = beatEvery
		stats := s.hub.Stats()
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		figures := s.Figures()
		err := s.primary.Beat(bounded, store.HubBeat{
			Hub: s.config.Name, Address: address, Tick: stats.Position.Tick - 1, Subscribers: stats.Subscribers, Channels: figures.Channels,
			Messages: figures.Messages, Deliveries: figures.Deliveries,
		})
		cancel()
		seen = seen || err == nil
		if err != nil && ctx.Err() == nil {
			s.log.Warn("weir: the hub can't send its heartbeat", "error", err)
		}
	}
}

// chores reclaims segments of messages. All hubs and workers do it, without an election.
func (s *Server) chores(ctx context.Context) {
	for sleep.For(ctx, sleep.Jitter(choresEvery)) {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		did, err := s.primary.RotateMessages(bounded)
		cancel()
		if s.roster != nil && s.roster.Err() != nil { // no clients are sent to a hub that is not ready, so it has to check itself
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

// recheck removes from connected clients the rights that their roles have lost.
func (s *Server) recheck(ctx context.Context) {
	for sleep.For(ctx, recheckEvery) {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		if err := s.pg.Recheck(bounded); err != nil && ctx.Err() == nil {
			s.log.Debug("weir: can't look up the rights of clients", "error", err) // the roster logs it once
		}
		cancel()
	}
}
