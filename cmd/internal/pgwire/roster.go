package pgwire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Roster is an Auth that loads all users at once. So neither a storm of clients nor one of invented names makes it query more often than once
// per period, and no client waits behind names that do not exist.
type Roster struct {
	load func(context.Context) (map[string]Login, error)

	mu      sync.Mutex
	users   map[string]Login
	until   time.Time     // until then the users, or the error, are reused
	err     error         // of the last time
	loading chan struct{} // closed when the load in progress has ended; nil: none
}

const (
	rosterKeeps   = time.Second      // how long a result is reused, at least
	rosterRests   = 10               // and at least this many times as long as loading took
	rosterTimeout = 10 * time.Second // of a load
)

// NewRoster returns a Roster that calls load for all users at most once a second, and less often if that is slow, so that it runs for at most a tenth
// of the time. Existing and unknown names are treated alike, so that timing does not tell them apart.
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

// Check loads the users unless that was done recently, and returns the error if it fails.
func (r *Roster) Check(ctx context.Context) error {
	if _, err := r.Login(ctx, ""); !errors.Is(err, ErrUnknownUser) {
		return err
	}
	return nil
}

// Err returns the error of the last load; nil if it succeeded.
func (r *Roster) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// refresh starts a load, unless one is in progress, and returns a channel that is closed once it is done. The goroutine ends with the load. The
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
