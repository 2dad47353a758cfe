package clock_test

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/clock"
)

// TestLastSaysHowLongAgoSomethingHappened: what never has happened, long ago.
func TestLastSaysHowLongAgoSomethingHappened(t *testing.T) {
	t.Parallel()
	var last clock.Last
	if ago := last.Ago(); ago < 100*365*24*time.Hour {
		t.Errorf("never: %v ago", ago)
	}
	before := time.Now()
	last.Now()
	if ago := last.Ago(); ago < 0 || ago > time.Since(before) {
		t.Errorf("just now: %v ago", ago)
	}
}
