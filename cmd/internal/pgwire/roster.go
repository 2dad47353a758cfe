package pgwire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Roster is an Auth that knows all users at once. So neither a storm of clients nor one of invented names makes it ask more often than once
// in a while, and nobody has to wait behind names that do not exist.
type Roster struct {
	load func(context.Context) (map[string]Login, error)

	mu      sync.Mutex
	users   map[string]Login
	until   time.Time     // they, or the error, are not asked for again
	err     error         // of the last time
	loading chan struct{} // closed when the asking that is under way has ended; nil: none is
}

const (
	rosterKeeps   = time.Second      // an answer, and
	rosterRests   = 10               // times as long as asking took
	rosterTimeout = 10 * time.Second // of a question
)

// NewRoster returns a Roster that asks load for all users, at most once a second, and for a tenth of the time if that takes long. Names that are
// among them and others are treated alike, so that nobody can tell one from the other by the time it takes.
func NewRoster(load func(context.Context) (map[string]Login, error)) *Roster {
	return &Roster{load: load}
}

// Login implements Auth.
func (r *Roster) Login(ctx context.Context, user string) (Login, error) {
	for {
		r.mu.Lock()
		if time.Now().Before(r.until) {
			login, known := r.users[user]
			err := r.err
			r.mu.Unlock()
			if err == nil && !known {
				err = ErrUnknownUser
			}
			return login, err
		}
		loading := r.refresh()
		r.mu.Unlock()
		select {
		case <-loading:
		case <-ctx.Done():
			return Login{}, ctx.Err()
		}
	}
}

// Check asks for the users, unless that was done a moment ago, and returns why it can't be done.
func (r *Roster) Check(ctx context.Context) error {
	if _, err := r.Login(ctx, ""); !errors.Is(err, ErrUnknownUser) {
		return err
	}
	return nil
}

// Err is why users could not be asked for when that was last tried; nil if they could.
func (r *Roster) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// refresh has the users asked for, by one at a time, and returns what is closed when it is done. The goroutine ends with the question. The
// caller holds mu.
func (r *Roster) refresh() chan struct{} {
	if r.loading != nil {
		return r.loading
	}
	done := make(chan struct{})
	r.loading = done
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), rosterTimeout)
		defer cancel()
		began := time.Now()
		users, err := r.load(ctx)
		took := time.Since(began)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.users, r.err, r.until, r.loading = users, err, time.Now().Add(max(rosterKeeps, rosterRests*took)), nil
		close(done)
	}()
	return done
}
