package sleep_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/sleep"
)

// TestAPauseEndsWithItsContext: a pause whose context has ended, or ends, returns false immediately.
func TestAPauseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool, 1)
	go func() { ended <- sleep.For(ctx, time.Hour) }()
	cancel()
	if <-ended {
		t.Error("a pause that was cut short returned true")
	}
	for _, d := range []time.Duration{-1, 0, time.Nanosecond, time.Hour} {
		if sleep.For(ctx, d) {
			t.Errorf("a pause of %s returned true although its context had ended", d)
		}
	}
}

// TestAPauseEndsEarly: a pause that is ended early returns true, as one that lasts its whole time does.
func TestAPauseEndsEarly(t *testing.T) {
	t.Parallel()
	early := make(chan struct{}, 1)
	early <- struct{}{}
	if !sleep.Until(t.Context(), time.Hour, early) {
		t.Error("a pause that was ended early returned false although its context had not ended")
	}
	if !sleep.For(t.Context(), 0) {
		t.Error("a pause of zero returned false")
	}
}

// TestJitterStaysWithinAQuarter: jitter changes an interval by up to a quarter, and makes use of that range.
func TestJitterStaysWithinAQuarter(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{1, 2, 3, 4, 7, time.Second, time.Hour} {
		least, most := d, d
		for range 10_000 {
			got := sleep.Jitter(d)
			least, most = min(least, got), max(most, got)
		}
		if least < d-d/4 || most > d+d/4+1 || d > 7 && (least > d-d/5 || most < d+d/5) {
			t.Errorf("%s with jitter is between %s and %s, want a quarter less and more", d, least, most)
		}
	}
	for _, d := range []time.Duration{0, -time.Second} {
		if got := sleep.Jitter(d); got != 0 {
			t.Errorf("%s with jitter is %s, want 0", d, got)
		}
	}
}
