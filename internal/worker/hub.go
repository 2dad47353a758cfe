package worker

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

const (
	hubIdle = 3 * time.Second        // a worker that waits at a hub looks by itself every so often: a net under it
	hubBusy = 250 * time.Millisecond // and so often while jobs run here, which may be cancelled
)

// hubWait lets a worker that has nothing to do wait at a hub, and look by itself only now and then. Without a hub, or while it can't be
// reached, the worker looks as ever. The fetcher owns it.
//
// A token is got before the claim that follows it. So what that claim did not see was committed after the token was given out, and the
// next wait tells of it at once.
type hubWait struct {
	*session
	token    string
	result   chan error // of the wait under way; nil: none
	waitsFor []string   // that it is for
	cancel   context.CancelFunc
	next     string    // the token that the wait under way brought; read after result
	silent   time.Time // until then the hub is not tried
	lost     time.Time // since when it can't be reached, which was said
	tries    backoff
}

// rest waits until the hub says that there is work, or it is time to look; false: there is no hub to wait at. Then, or when it returns
// true, the caller claims.
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
		changed, control, err := w.look(context.WithoutCancel(ctx), 1, h.Poll)
		if err != nil {
			return false // rest, as ever, deals with it
		}
		h.Outage.Worked("looks for work")
		if control {
			select {
			case h.heard <- struct{}{}:
			default:
			}
		}
		if changed {
			return true
		}
	}
}

// pause is until the next look.
func (h *hubWait) pause() time.Duration {
	for _, q := range h.queues {
		if q.inFlight.Load() > 0 {
			return sleep.Jitter(hubBusy)
		}
	}
	return h.slow(hubIdle)
}

// free lists the queues that have room: the work of others is not to wake this worker in another's place.
func (h *hubWait) free() []string {
	var names []string
	for _, q := range h.queues {
		if q.free() > 0 {
			names = append(names, q.name)
		}
	}
	return names
}

// begin starts a wait, which stop or its answer ends.
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

// ended takes in how a wait has ended.
func (h *hubWait) ended(ctx context.Context, err error) bool {
	h.cancel()
	h.result = nil
	if err == nil {
		// Another hub than before knows nothing of the token, and answers at once. Behind a balancer that sends each request to another one
		// the worker soon looks by itself most of the time.
		if moved := h.token != "" && hubOf(h.token) != hubOf(h.next); moved {
			h.silent = time.Now().Add(h.tries.next())
		} else {
			h.tries.reset()
		}
		h.token = h.next
		if !h.lost.IsZero() {
			h.Log.Warn("weir: the hub can be reached again, and the worker waits there for work", "worker", h.id, "after", time.Since(h.lost).Round(time.Millisecond))
			h.lost = time.Time{}
		}
		return true
	}
	wait := h.tries.next()
	if h.lost.IsZero() && ctx.Err() == nil {
		h.lost = time.Now()
		h.Log.Warn("weir: the hub can't be reached, the worker looks for work by itself until it can", "worker", h.id, "error", err)
	}
	h.silent = time.Now().Add(wait)
	return false
}

// hubOf is the part of a token that says which hub gave it out.
func hubOf(token string) string {
	id, _, _ := strings.Cut(token, "-")
	return id
}

// stop ends the wait under way, if there is one: what the hub has to tell goes to others.
func (h *hubWait) stop() {
	if h.result == nil {
		return
	}
	h.cancel()
	<-h.result
	h.result = nil
}
