package worker

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-pg/weir/internal/store"
)

var errNotCommitted = errors.New("the handler succeeded, but the transaction it completed the job in was not committed")

// hearEvery is how often a worker that is too busy to poll for work checks whether its jobs were cancelled.
const hearEvery = 500 * time.Millisecond

// keep renews the lease and receives cancellations until ctx ends.
func (s *session) keep(ctx context.Context) {
	k := &keeper{session: s, mayAttend: true}
	defer k.leave()
	every := s.Lease / 3
	beat := time.NewTimer(0)
	defer beat.Stop()
	hear := time.NewTicker(hearEvery)
	defer hear.Stop()
	watch := &watch{}
	wait := s.backoff()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.fenced:
			return
		case <-k.gone():
			k.lose()
			beat.Reset(k.soon())
		case <-beat.C:
			if err := k.beat(ctx); err != nil && ctx.Err() == nil {
				s.Outage.Failed("heartbeats", err)
				beat.Reset(min(k.pause(err, &wait), every))
				continue
			}
			s.Outage.Worked("heartbeats")
			wait.reset()
			beat.Reset(k.rest(every))
		case <-s.lease.asks:
			beat.Reset(0)
		case <-s.heard:
			_ = k.call(func(by *store.Store) error { s.hearCancellations(ctx, by); return nil })
		case <-hear.C:
			if ids := s.running(); len(ids) == 0 {
				continue
			}
			// After an error, the next poll is soon enough.
			brief, cancel := s.briefly(ctx)
			_ = k.call(func(by *store.Store) error {
				watch.store = by
				_, control, err := watch.poll(brief, 1, hearEvery)
				if err == nil && control {
					s.mayHaveBegun()
					s.hearCancellations(ctx, by)
				}
				return err
			})
			cancel()
		}
	}
}

// briefly limits a call of the keeper: it gives up a silent connection while there is still time to use another.
func (s *session) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(s.Lease/3, time.Second))
}

// unrecorded returns the number of attempts whose end is not recorded.
func (s *session) unrecorded() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		n += b.left
	}
	return n
}

// running returns the ids of jobs that have not ended.
func (s *session) running() (ids []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		for _, t := range b.tasks {
			if t.state != ended {
				ids = append(ids, t.ID)
			}
		}
	}
	return ids
}

// controlMoved signals that weir.control has moved, or a transaction has ended that may have moved it before: jobs may have been cancelled, and bulk
// operations begun.
func (s *session) controlMoved() {
	select {
	case s.heard <- struct{}{}:
	default:
	}
	s.mayHaveBegun()
}

// mayHaveBegun signals the maintainer that a bulk operation may have begun.
func (s *session) mayHaveBegun() {
	if s.Maintainer != nil {
		s.Maintainer.Begun()
	}
}

// hearCancellations cancels the contexts of cancelled jobs.
func (s *session) hearCancellations(ctx context.Context, by *store.Store) {
	ids := s.running()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := s.briefly(ctx)
	defer cancel()
	cancelled, err := by.CancelledAmong(ctx, ids)
	if err != nil || len(cancelled) == 0 {
		return // after an error, the next call is soon enough
	}
	is := map[int64]bool{}
	for _, id := range cancelled {
		is[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		for _, t := range b.tasks {
			switch {
			case !is[t.ID] || t.state == ended:
			case t.state == running && t.stop != nil:
				t.stop(ErrCancelled)
			default:
				t.Dropped = new(string)
			}
		}
	}
}

// The longest error and output that are stored, in bytes; longer text is truncated.
const (
	maxError  = 64 << 10
	maxOutput = 1 << 20
)

// clean makes a text storable in PostgreSQL: limited in size, and without NUL and invalid UTF-8.
func clean(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	if strings.IndexByte(text, 0) >= 0 {
		text = strings.ReplaceAll(text, "\x00", "\uFFFD")
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}
