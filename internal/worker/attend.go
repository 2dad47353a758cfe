package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// A worker whose session has ended is soon fenced where nothing follows: so for a while it tries again and again, unless the server is down,
// for then nobody is.
const (
	granted  = 3 * time.Second     // by the rescuer, as weir._fence_silent has it
	haste    = granted - granted/4 // a clock that steps takes half a second of it, and there is to be some left
	hurryFor = 5 * time.Second
	hurry    = 100 * time.Millisecond // from one try to the next, or twice that
)

// keeper keeps the session's lease: by a session of the server that speaks for it where that can be, by heartbeats otherwise. The keeper's
// goroutine owns it.
type keeper struct {
	*session
	held      *store.Attendance // nil: it does not attend
	mayAttend bool              // it is worth trying
	lost      time.Time         // when it last ceased to
	unsure    time.Time         // until then a session that was given up may come to attend, or say so still; zero: none
}

// gone is closed when the session that attends has ended.
func (k *keeper) gone() <-chan struct{} {
	if k.held == nil {
		return nil
	}
	return k.held.Gone()
}

func (k *keeper) leave() {
	if k.held != nil {
		k.held.Close()
		k.held = nil
		k.attends.Store(false)
	}
}

func (k *keeper) lose() {
	k.leave()
	k.lost = time.Now()
	k.lease.shorten(k.lost.Add(haste))
}

// giveUp: nobody knows what becomes of a call by which a session would attend, or does. Whatever it says arrives late, after other words of this
// worker's, and then that session ends: so for a lease no heartbeat without a session is good for longer than is granted then.
func (k *keeper) giveUp(err error) {
	if store.IsUnanswered(err) {
		k.unsure = time.Now().Add(k.Lease)
		k.lease.shorten(time.Now().Add(haste))
	}
}

// call has f make calls by the session that attends, or by the keeper's connection.
func (k *keeper) call(f func(by *store.Store) error) error {
	if k.held != nil {
		return k.held.Call(f)
	}
	return f(k.Keep)
}

// beat renews the lease, and has a session attend where none does and one can.
func (k *keeper) beat(ctx context.Context) error {
	err := k.attend(ctx, k.hurries())
	speaks := err != nil || k.held != nil // the call is one by which a session attends
	if err == nil {
		err = k.call(func(by *store.Store) error { return k.heartbeat(ctx, by) })
	}
	if err == nil {
		return nil
	}
	k.mayAttend = true
	if k.held != nil {
		k.lose()
	}
	if speaks && ctx.Err() == nil {
		k.giveUp(err)
	}
	if store.IsDown(err) {
		k.unsure = time.Time{}
		k.lease.shorten(time.Time{}) // what it knew of who attends went with it
		return err
	}
	if k.heartbeat(ctx, k.Store) == nil {
		return nil // by another of its connections
	}
	return err
}

func (k *keeper) attend(ctx context.Context, hurries bool) (err error) {
	if k.held != nil || !k.mayAttend {
		return nil
	}
	ctx, cancel := k.briefly(ctx)
	defer cancel()
	if hurries {
		ctx, cancel = context.WithTimeout(ctx, granted/2) // so that a heartbeat by another connection still comes in time
		defer cancel()
	}
	k.held, err = k.Keep.Attend(ctx, k.id)
	k.mayAttend = err == nil && k.held != nil
	k.attends.Store(k.mayAttend)
	if err != nil {
		k.endedBy(err)
	}
	return err
}

// heartbeat makes one.
func (k *keeper) heartbeat(ctx context.Context, by *store.Store) error {
	sent := time.Now()
	err := k.session.heartbeat(ctx, by)
	if err == nil && k.held == nil && sent.Before(k.unsure) {
		k.lease.shorten(sent.Add(haste))
	}
	return err
}

func (s *session) heartbeat(ctx context.Context, by *store.Store) error {
	ctx, cancel := s.briefly(ctx)
	defer cancel()
	sent := time.Now()
	fenced, workers, sharing, err := by.Heartbeat(ctx, s.id, s.unrecorded())
	if err != nil {
		s.endedBy(err)
		return err
	}
	if fenced {
		s.over(ErrFenced)
		return nil
	}
	s.lease.renew(sent)
	s.fleet.Store(int32(workers))
	s.sharing.Store(int32(sharing))
	if s.Maintainer != nil {
		s.Maintainer.Share(workers)
	}
	return nil
}

// soon is how long to wait before the first try to attend again: a large fleet is spread out a little.
func (k *keeper) soon() time.Duration {
	return time.Duration(rand.Int64N(int64(min(max(k.fleet.Load(), 1), 500)))) * time.Millisecond
}

// hurries tells whether the session that attended has ended just now, or one that was given up may attend.
func (k *keeper) hurries() bool { return time.Since(k.lost) < hurryFor || time.Now().Before(k.unsure) }

func hurriedly() time.Duration { return hurry + rand.N(hurry) }

// rest is how long to wait after a heartbeat: a fleet that came back together does not beat together. One that was made by another
// connection, for the session that attended has ended, is not to be the last.
func (k *keeper) rest(every time.Duration) time.Duration {
	if k.held == nil && (k.mayAttend && k.hurries() || time.Now().Before(k.unsure)) {
		return hurriedly()
	}
	return sleep.Jitter(every)
}

// pause is how long to wait after a failure.
func (k *keeper) pause(err error, wait *backoff) time.Duration {
	if k.hurries() && !store.IsDown(err) {
		return hurriedly()
	}
	return wait.next()
}
