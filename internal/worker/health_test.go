package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/outage"
)

// TestHealthDoesNotFlap: health does not change for one call that is slow or fails, for several within a moment, or for one that failed
// long ago. It does for a kind of call that keeps failing, until it succeeds.
func TestHealthDoesNotFlap(t *testing.T) {
	t.Parallel()
	h, o := &Health{}, outage.New(slog.New(slog.NewTextHandler(io.Discard, nil)))
	end := h.begin(t.Context(), 30*time.Second, o)
	now := time.Now()
	h.works()
	h.heard.Store(&now)
	const grace = 10 * time.Second
	want := func(what string, after time.Duration, want Reason) {
		t.Helper()
		if why, _, err := h.ill(time.Now().Add(after), grace, stuckAfter); why != want {
			t.Errorf("%s: %q (%v), want %q", what, why, err, want)
		}
	}
	want("it works", 0, "")
	o.Failed("claims", context.DeadlineExceeded)
	want("one call took too long", 20*time.Second, "")
	o.Failed("claims", errors.New("refused"))
	want("two failed in a moment", 0, "")
	want("two failed, and none succeeds", 11*time.Second, Unreachable)
	if _, since, err := h.ill(time.Now().Add(11*time.Second), grace, stuckAfter); err == nil || time.Since(since) > time.Minute {
		t.Errorf("since %v: %v", since, err)
	}
	if why, _, _ := h.ill(time.Now().Add(3*time.Second), patience, stuckAfter); why != Unreachable {
		t.Errorf("two failed, and none succeeds for longer than patience: %q", why)
	}
	o.Worked("heartbeats")
	want("others succeed, these do not", 11*time.Second, Unreachable)
	o.Worked("claims")
	want("they succeed again", 11*time.Second, "")
	o.Failed("claims", errors.New("refused"))
	o.Failed("claims", errors.New("refused"))
	now = time.Now().Add(2 * time.Minute)
	h.heard.Store(&now)
	want("none was made for a while", 2*time.Minute, "")
	want("no heartbeat was answered for nearly the lease", 2*time.Minute+26*time.Second, Unreachable)

	h.claims.Beat()
	if why, _, _ := h.ill(time.Now().Add(time.Hour), grace, 0); why != Stuck {
		t.Errorf("claiming is stuck: %q, want %q", why, Stuck)
	}
	h.claims.Rest()
	end(nil)
	want("it has ended", 0, NotRunning)
}
