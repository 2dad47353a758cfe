package web

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weir-pg/weir/internal/hub"
)

// follow subscribes to messages from now on, then sends the client its position, at which it can resume these channels and those that it had
// before. Events that arrive in the meantime wait.
func (s *stream) follow(ctx context.Context, answer outgoing, filters []hub.Filter) error {
	// Without filters this waits until the hub knows the end of the log, and until an earlier Resume has reached it.
	if err := s.sub.Subscribe(ctx); err != nil {
		return err
	}
	s.sub.Pause()
	defer s.sub.Continue()
	s.mu.Lock()
	// Before Subscribe: a message published in between is delivered now, or found by a client that resumes at this position.
	at := s.position()
	s.mu.Unlock()
	if err := s.sub.Subscribe(ctx, filters...); err != nil {
		return err
	}
	return s.standsAt(at, answer)
}

// history is the part of an answer with what was last published on the new channels.
type history struct {
	Messages []json.RawMessage `json:"history"`  // each as it would have been delivered
	Complete bool              `json:"complete"` // there are as many as were asked for, or no older ones
}

// followLast is follow with the last messages of each channel, and events about their members: the answer contains them, and everything later is delivered.
func (s *stream) followLast(ctx context.Context, answer outgoing, last int, filters, events []hub.Filter, granted *Terms) error {
	if last == 0 {
		return s.follow(ctx, answer, slices.Concat(filters, events))
	}
	defer s.sub.Continue()
	ns, less := s.web.historyOf(last, filters, granted)
	found, err := s.sub.SubscribeLast(ctx, append(ns, make([]int, len(events))...), slices.Concat(filters, events)...)
	if err != nil {
		return err
	}
	answer.history = &history{Messages: make([]json.RawMessage, len(found.Messages)), Complete: found.Complete && !less}
	for i, m := range found.Messages {
		answer.Messages[i] = messageJSON(m)
	}
	return s.standsAt(found.At, answer)
}

// checkLast checks how many messages of history a client asks for.
func (w *Web) checkLast(last int) error {
	if last < 0 || last > w.Limits.History {
		return badRequest(fmt.Sprintf("last is %d: a channel's history is from 0 to %d messages", last, w.Limits.History), "read more from your database")
	}
	return nil
}
