package pgwire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Cache returns an Auth that asks another one, and keeps its answers for a while. However many clients of one user connect at once,
// the database is asked once.
func Cache(auth Auth, keep time.Duration) Auth {
	return &cache{auth: auth, keep: keep, users: map[string]*cached{}}
}

type cache struct {
	auth Auth
	keep time.Duration

	mu    sync.Mutex
	users map[string]*cached
}

// cached is an answer, or, before done is closed, a question that is being asked.
type cached struct {
	done     chan struct{}
	verifier string
	err      error
	until    time.Time
}

const mostCached = 10_000 // users: names that do not exist are kept as well

func (c *cache) Verifier(ctx context.Context, user string) (string, error) {
	for {
		c.mu.Lock()
		known := c.users[user]
		if known == nil || known.over() {
			known = &cached{done: make(chan struct{})}
			if len(c.users) >= mostCached {
				clear(c.users)
			}
			c.users[user] = known
			c.mu.Unlock()
			c.ask(ctx, user, known)
			return known.verifier, known.err
		}
		c.mu.Unlock()
		select {
		case <-known.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		// Whoever asked may have given up; that is no answer for others.
		if !errors.Is(known.err, context.Canceled) && !errors.Is(known.err, context.DeadlineExceeded) {
			return known.verifier, known.err
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
}

// over tells whether the answer is too old. The caller holds mu.
func (c *cached) over() bool {
	select {
	case <-c.done:
		return time.Now().After(c.until)
	default:
		return false
	}
}

func (c *cache) ask(ctx context.Context, user string, answer *cached) {
	answer.verifier, answer.err = c.auth.Verifier(ctx, user)
	if answer.err == nil || errors.Is(answer.err, ErrUnknownUser) {
		answer.until = time.Now().Add(c.keep)
	}
	close(answer.done)
}
