package web

import (
	"context"

	"github.com/weir-pg/weir/internal/hub"
)

// follow subscribes to what comes from now on, and then says where the client stands: a position to resume at, with these channels and
// those that it had before. What comes meanwhile waits.
func (s *stream) follow(ctx context.Context, answer outgoing, filters []hub.Filter) error {
	// Without filters this waits until the hub knows where the log ends, and an earlier Resume has got there.
	if err := s.sub.Subscribe(ctx); err != nil {
		return err
	}
	s.sub.Pause()
	defer s.sub.Continue()
	s.mu.Lock()
	// Taken before the subscribing: what is published in between is delivered now, or else found by who resumes here.
	at := s.position()
	s.mu.Unlock()
	if err := s.sub.Subscribe(ctx, filters...); err != nil {
		return err
	}
	return s.standsAt(at, answer)
}
