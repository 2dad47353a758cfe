package worker

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

const (
	hubIdle = 3 * time.Second        // how often a worker that waits at a hub polls for itself, as a safety net
	hubBusy = 250 * time.Millisecond // how often it polls while its jobs run, which may be cancelled
)

// hubWait lets an idle worker wait at a hub, and poll for itself only now and then. Without a hub, or while none can be reached, the worker
// polls as usual. The fetcher owns it.
//
// Each token is received before the claim that follows it. So jobs which that claim did not see were committed after the hub issued the
// token, and the next wait reports them at once.
type hubWait struct {
	*session
	token    string
	result   chan error // of the wait in progress; nil: none
	waitsFor []string   // its queues
	cancel   context.CancelFunc
	next     string    // the token that it returned; read only after result
	silent   time.Time // the hub is not tried before this time
	lost     time.Time // when the loss of the hub was logged; zero: it is reachable
	tries    backoff
}

// rest waits until the hub reports work, or it is time to poll; false: there is no hub to wait at. When it returns true, the caller claims.
func (h *hubWait) rest(ctx context.Context, w *watch) bool {
	if h.Hub == nil || time.Now().Before(h.silent) {
		return false
	}
	if free := h.free(); h.result == nil || !slices.Equal(free, h.waitsFor) {
		h.stop()
		h.begin(ctx, free)
	}
	for {
		timer := time.NewTimer(h.pause())
		select {
		case err := <-h.result:
			timer.Stop()
			return h.ended(ctx, err)
		case <-h.room:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return true
		case <-timer.C:
		}
		changed, control, err := w.pollOn(ctx, 1, h.Poll)
		if err != nil {
			return ctx.Err() != nil // session.rest handles it, unless the worker stops, which has waited for the answer: rest would begin that anew
		}
		h.Outage.Worked("polls for work")
		if control {
			h.controlMoved()
		}
		if changed || h.Idle > 0 { // the caller finds out whether the worker has been idle for long enough; the wait goes on
			return true
		}
	}
}

// pause is the time until the next poll.
func (h *hubWait) pause() time.Duration {
	for _, q := range h.queues {
		if q.inFlight.Load() > 0 {
			return sleep.Jitter(hubBusy)
		}
	}
	if h.Idle > 0 {
		return min(h.slow(hubIdle), h.idleAfter())
	}
	return h.slow(hubIdle)
}

// free lists the queues with room: work in other queues should wake another worker instead of this one.
func (h *hubWait) free() []string {
	var names []string
	for _, q := range h.queues {
		if q.free() > 0 {
			names = append(names, q.name)
		}
	}
	return names
}

// begin starts a wait, which ends with its answer or stop.
func (h *hubWait) begin(ctx context.Context, queues []string) {
	ctx, h.cancel = context.WithCancel(ctx)
	result, since := make(chan error, 1), h.token
	h.result, h.waitsFor = result, queues
	go func() {
		next, err := h.Hub.Wait(ctx, queues, since)
		h.next = next
		result <- err
	}()
}

// ended handles the result of a wait.
func (h *hubWait) ended(ctx context.Context, err error) bool {
	h.cancel()
	h.result = nil
	if err == nil {
		// A different hub does not know the token, and answers at once. Behind a load balancer that sends each request to another hub, the
		// worker therefore soon polls for itself most of the time.
		if moved := h.token != "" && hubOf(h.token) != hubOf(h.next); moved {
			h.silent = time.Now().Add(h.tries.next())
		} else {
			h.tries.reset()
		}
		h.token = h.next
		if !h.lost.IsZero() {
			h.Log.Warn("weir: the hub can be reached again: the worker waits there for work", "worker", h.id, "after", time.Since(h.lost).Round(time.Millisecond))
			h.lost = time.Time{}
		}
		return true
	}
	wait := h.tries.next()
	if h.lost.IsZero() && ctx.Err() == nil {
		h.lost = time.Now()
		h.Log.Warn("weir: the hub can't be reached: the worker polls for itself until it can", "worker", h.id, "error", err)
	}
	h.silent = time.Now().Add(wait)
	return false
}

// hubOf returns the part of a token that identifies the hub that issued it.
func hubOf(token string) string {
	id, _, _ := strings.Cut(token, "-")
	return id
}

// stop ends the wait in progress, if any, so that the hub wakes other workers.
func (h *hubWait) stop() {
	if h.result == nil {
		return
	}
	h.cancel()
	<-h.result
	h.result = nil
}
