package hub

import (
	"context"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// held is a source that blocks, even after its context has ended, while the test holds it.
type held struct {
	Source
	next, publish chan struct{} // receive to continue; nil: never blocks
}

func (s held) Next(ctx context.Context, after Position) ([]*Part, error) {
	if s.next != nil {
		<-s.next
	}
	return s.Source.Next(ctx, after)
}

func (s held) Publish(ctx context.Context, drafts []Draft) error {
	if s.publish != nil {
		<-s.publish
	}
	return s.Source.Publish(ctx, drafts)
}

// TestPartsThatStandStillAreNamed: a loop that neither works nor waits for work is reported; one that does is not.
func TestPartsThatStandStillAreNamed(t *testing.T) {
	pgtest.Alone(t, "a busy machine looks like a loop without progress")
	pool := pgtest.Pool(t, pgtest.Database(t))
	for _, part := range []string{"next", "publish"} {
		log, hold := NewLog(store.New(pool, 0), nil), make(chan struct{})
		s := held{Source: log, next: hold}
		if part == "publish" {
			s = held{Source: log, publish: hold}
		}
		h, _ := run(t, Config{Source: s})
		pulse := &h.ticking
		if part == "publish" {
			until(t, "the hub lives", h.Live)
			pulse = &h.publishing
			go func() { _ = h.Publish(t.Context(), Draft{Channel: "a"}) }()
		}
		until(t, "the step is seen to take long", func() bool { return pulse.Stuck(part, patience/1000) != nil })
		if err := h.Stuck(); err != nil {
			t.Errorf("%s has made no progress for a moment, and the hub reports %v", part, err)
		}
		close(hold)
		until(t, "the step is over", func() bool { return pulse.Stuck(part, patience/1000) == nil })
	}
}
