package hub

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// CrowdSpec specifies subscribers. It is sent to child processes.
type CrowdSpec struct {
	Transport Transport
	Address   string // address of the hub, or of PostgreSQL
	Database  string // connection string, which contains the user and the password
	First     int    // number of the first client
	Count     int
	Channel   string
	Own       bool // each client has its own channel, with its number after the name
}

// crowd is a large number of subscribers that use as little CPU time as possible, so that the hub determines the result.
type crowd struct {
	frames framing
	heard  func(number int64) // called with mu held; nil: not called
	poller poller
	failed chan error // the error of the first connection that ended

	mu     sync.Mutex
	closed bool
}

// seat is the state of one subscriber.
type seat struct {
	rest []byte    // the start of an incomplete frame
	back io.Writer // for answers
}

const joining = 64 // subscribers that connect at once

// gather connects subscribers. heard is called for each message that one of them receives, never concurrently.
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

// take processes what a subscriber has received. The caller holds mu.
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

// fail records that a connection has ended unexpectedly. The caller holds mu.
func (c *crowd) fail(err error) {
	if c.closed {
		return
	}
	select {
	case c.failed <- fmt.Errorf("bench: a subscriber was disconnected: %w", err):
	default:
	}
}

// leave closes all connections, and waits until they are closed.
func (c *crowd) leave() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.poller.close()
}
