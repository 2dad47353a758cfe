package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// usersChannel is where weir.disconnect and weir.revoke ring. What they have done is in a table, so a message that somebody else publishes there makes
// hubs read it, and nothing else.
const usersChannel = hub.Internal + "users"

const (
	readUsersEvery = 30 * time.Second       // even if nobody rings
	readUsersPause = 100 * time.Millisecond // between two reads
	readUsersAgain = time.Second            // after a failure
)

// users are those whose tokens were revoked, as last read from the database, whose clock decides when that is over: a hub whose clock is ahead lets nobody in early, and one that
// can't read goes on to refuse them.
type users struct {
	mu      sync.Mutex
	known   map[int64]struct{} // revocations that have been carried out
	revoked map[string]revoked
}

// revoked is a user's newest revocation.
type revoked struct{ at time.Time }

// has reports whether a user's token that was issued at a time is refused. The clocks that it compares are the application's, which issued the token, and the database's: if the
// application's is late, a new token may be refused for as long; if it is early, a token from just before the revocation may be accepted.
func (u *users) has(user string, issued time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	r, ok := u.revoked[user]
	return ok && issued.Before(r.at)
}

// set replaces what is known, and returns what is new.
func (u *users) set(all []store.Revocation) (news []store.Revocation) {
	u.mu.Lock()
	defer u.mu.Unlock()
	known, now := make(map[int64]struct{}, len(all)), map[string]revoked{}
	for _, r := range all {
		known[r.ID] = struct{}{}
		if _, old := u.known[r.ID]; !old {
			news = append(news, r)
		}
		if r.Until == nil {
			continue
		}
		was := now[r.User]
		if r.At.After(was.at) {
			was.at = r.At
		}
		now[r.User] = was
	}
	u.known, u.revoked = known, now
	return news
}

// readUsers reads which users have been disconnected and revoked, and ends their connections.
func (s *Server) readUsers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := s.primary.Revocations(ctx)
	if err != nil {
		return fmt.Errorf("read which users' tokens are revoked: %w", err)
	}
	for _, r := range s.users.set(all) {
		n := 0
		if s.web != nil {
			n += s.web.EndUser(r.User, r.Until != nil)
		}
		if s.pg != nil {
			n += s.pg.EndUser(r.User)
		}
		if n > 0 {
			s.log.Info("weir: a user was disconnected", "user", r.User, "connections", n, "revoked", r.Until != nil)
		}
	}
	return nil
}

// watchUsers carries out disconnections and revocations until ctx ends.
func (s *Server) watchUsers(ctx context.Context) {
	rings := make(bell, 1)
	sub, err := s.hub.Join(rings, hub.Options{Slow: hub.SkipAhead, Internal: true})
	if err == nil {
		defer sub.Leave()
		err = sub.Subscribe(ctx, hub.Channel(usersChannel))
	}
	if err != nil && !errors.Is(err, hub.ErrClosed) && ctx.Err() == nil {
		s.log.Warn("weir: disconnected users are noticed late", "error", err)
	}
	wait := time.Duration(0) // once now: somebody may have rung before the subscription
	var said time.Time       // when it was last logged that they can't be read; zero: they can
	for {
		timer := time.NewTimer(wait)
		select {
		case <-rings:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		wait = readUsersEvery
		switch err := s.readUsers(ctx); {
		case ctx.Err() != nil:
		case err == nil:
			said = time.Time{}
		default:
			if time.Since(said) >= sayEvery {
				s.log.Warn("weir: users can't be disconnected now: the hub tries until they can", "error", err)
				said = time.Now()
			}
			wait = readUsersAgain
		}
		sleep.For(ctx, readUsersPause)
	}
}

// bell is a sink that only says that something has arrived.
type bell chan struct{}

// Deliver implements hub.Sink.
func (b bell) Deliver([]hub.Event) error {
	select {
	case b <- struct{}{}:
	default:
	}
	return nil
}

// Close implements hub.Sink.
func (bell) Close(error) {}
