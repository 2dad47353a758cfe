package web

import (
	"context"

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
