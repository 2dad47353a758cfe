package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weir-pg/weir/internal/clock"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

// After the attending session of a worker has ended, the rescuer fences the worker soon unless something else follows. So the worker keeps
// trying for a while, unless the server is down: then nobody is fenced.
const (
	granted  = 3 * time.Second     // by the rescuer: see weir._fence_silent
	haste    = granted - granted/4 // leaves room for a clock step of half a second
	hurryFor = 5 * time.Second
	hurry    = 100 * time.Millisecond // least pause between tries; the greatest is twice that
)

// keeper keeps the session's lease. If possible, a session of the server attends: while that session exists, it proves that the worker is
// alive. Otherwise the keeper sends heartbeats. It is owned by the keeper's goroutine.
type keeper struct {
	*session
	held      *store.Attendance // nil: no session attends
	mayAttend bool              // attending is worth trying
	lost      time.Time         // when a session last ceased to attend
	unsure    time.Time         // until then, a session that was given up may still attend, or send a heartbeat; zero: none may
}

// gone returns a channel that is closed when the attending session has ended.
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
	now := clock.Now()
	k.lost = now.Steady
	k.lease.shorten(now.Add(haste))
}

// giveUp handles the error of a call by the attending session, or by one that was to attend. If the call is unanswered, it may still
// arrive, after later heartbeats of this worker, and then that session ends. So for the length of a lease, a heartbeat without an attending
// session extends the lease only by what the rescuer grants in that case.
func (k *keeper) giveUp(err error) {
	if store.IsUnanswered(err) {
		k.unsure = time.Now().Add(k.Lease)
		k.lease.shorten(clock.Now().Add(haste))
	}
}

// call runs f with the attending session, or with the keeper's connection if there is none.
func (k *keeper) call(f func(by *store.Store) error) error {
	if k.held != nil {
		return k.held.Call(f)
	}
	return f(k.Keep)
}

// beat renews the lease, and makes a session attend if none does and one can.
func (k *keeper) beat(ctx context.Context) error {
	err := k.attend(ctx, k.hurries())
	speaks := err != nil || k.held != nil // the call was made by an attending session, or by one that was to attend
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
		k.lease.shorten(clock.Moment{}) // the server's knowledge of attending sessions is lost with it
		return err
	}
	if k.heartbeat(ctx, k.Store) == nil {
		return nil // another of the worker's connections works
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
		ctx, cancel = context.WithTimeout(ctx, granted/2) // leaves time for a heartbeat on another connection
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

// heartbeat sends one heartbeat, and shortens the lease while it is unsure which session attends.
func (k *keeper) heartbeat(ctx context.Context, by *store.Store) error {
	sent := clock.Now()
	err := k.session.heartbeat(ctx, by)
	if err == nil && k.held == nil && sent.Steady.Before(k.unsure) {
		k.lease.shorten(sent.Add(haste))
	}
	return err
}

func (s *session) heartbeat(ctx context.Context, by *store.Store) error {
	ctx, cancel := s.briefly(ctx)
	defer cancel()
	sent := clock.Now()
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

// soon is the pause before the first try to attend again; it spreads out the tries of a large fleet.
func (k *keeper) soon() time.Duration {
	return time.Duration(rand.Int64N(int64(min(max(k.fleet.Load(), 1), 500)))) * time.Millisecond
}

// hurries reports whether the attending session ended just now, or a session that was given up may still attend.
func (k *keeper) hurries() bool { return time.Since(k.lost) < hurryFor || time.Now().Before(k.unsure) }

func hurriedly() time.Duration { return hurry + rand.N(hurry) }

// rest is the pause after a heartbeat, with jitter, so that a fleet that reconnected at once does not send its heartbeats at once. A
// heartbeat sent by another connection, because the attending session ended, is soon followed by another.
func (k *keeper) rest(every time.Duration) time.Duration {
	if k.held == nil && (k.mayAttend && k.hurries() || time.Now().Before(k.unsure)) {
		return hurriedly()
	}
	return sleep.Jitter(every)
}

// pause is the pause after a failure.
func (k *keeper) pause(err error, wait *backoff) time.Duration {
	if k.hurries() && !store.IsDown(err) {
		return hurriedly()
	}
	return wait.next()
}
