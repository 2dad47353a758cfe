package hub

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// CrowdSpec describes subscribers. It goes to child processes.
type CrowdSpec struct {
	Transport Transport
	Address   string // of the hub, or of PostgreSQL
	Database  string // connection string, for the user and the password
	First     int    // clients are numbered from here
	Count     int
	Channel   string
	Own       bool // each has a channel of its own: its number follows the name
}

// crowd is many subscribers that cost as little as they can, so that it is the hub that is measured.
type crowd struct {
	frames framing
	heard  func(number int64) // under mu; nil: nobody wants to know
	poller poller
	failed chan error // the first connection that ended

	mu     sync.Mutex
	closed bool
}

// seat is one subscriber's place in the crowd.
type seat struct {
	rest []byte    // the beginning of a frame
	back io.Writer // for answers
}

const joining = 64 // subscribers that connect at once

// gather makes subscribers. heard is called for each message that one of them gets, never twice at once.
func gather(ctx context.Context, spec CrowdSpec, heard func(number int64)) (c *crowd, err error) {
	if err := spec.Transport.check(); err != nil {
		return nil, err
	}
	a, err := accountOf(spec.Database)
	if err != nil {
		return nil, err
	}
	c = &crowd{frames: framings[spec.Transport], heard: heard, failed: make(chan error, 1)}
	if err := c.poller.open(c); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var clients sync.WaitGroup
	for range min(joining, spec.Count) {
		clients.Go(func() {
			for i := int(next.Add(1)) - 1; i < spec.Count && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				channel := spec.Channel
				if spec.Own {
					channel += strconv.Itoa(spec.First + i)
				}
				s, err := subscribe(ctx, spec.Transport, spec.Address, a, spec.First+i, channel)
				if err == nil {
					err = c.poller.add(s)
				}
				if err != nil {
					cancel(fmt.Errorf("bench: subscriber %d: %w", i+1, err))
				}
			}
		})
	}
	clients.Wait()
	if err := context.Cause(ctx); err != nil {
		c.leave()
		return nil, err
	}
	return c, nil
}

// take hears what has come in for a seat. The caller holds mu.
func (c *crowd) take(s *seat, b []byte) error {
	if len(s.rest) > 0 {
		s.rest = append(s.rest, b...)
		b = s.rest
	}
	for len(b) > 0 {
		f, n := c.frames(b)
		if n == 0 {
			break
		}
		b = b[n:]
		switch {
		case f.failure != nil:
			return f.failure
		case f.ping:
			if _, err := s.back.Write(wsPong); err != nil {
				return err
			}
		case f.message && c.heard != nil:
			c.heard(f.number)
		}
	}
	s.rest = append(s.rest[:0], b...)
	if cap(s.rest) > 4<<10 && len(s.rest) == 0 {
		s.rest = nil
	}
	return nil
}

// fail says that a connection has ended though nobody wanted it to. The caller holds mu.
func (c *crowd) fail(err error) {
	if c.closed {
		return
	}
	select {
	case c.failed <- fmt.Errorf("bench: a subscriber was cut off: %w", err):
	default:
	}
}

// leave closes all connections, and waits until they are.
func (c *crowd) leave() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.poller.close()
}
