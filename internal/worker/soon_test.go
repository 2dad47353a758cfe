package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestEndsThatSomebodyWaitsForAreRecordedSoon: they do not wait for others for as long as ends do that nobody waits for.
func TestEndsThatSomebodyWaitsForAreRecordedSoon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		soon time.Duration // when the end comes that somebody waits for; negative: none does
		want time.Duration
	}{
		{"nobody waits", -1, flushEvery},
		{"it was there before", 0, flushSoon},
		{"it comes too soon", flushSoon / 2, flushSoon},
		{"it comes later", flushEvery / 2, flushEvery / 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newCompleter(&session{})
			if c.soon >= 0 {
				time.AfterFunc(c.soon, func() { k.add(&Task{batch: &batch{}}, Result{Outcome: "completed", Soon: true}) })
			}
			synctest.Wait()
			began := time.Now()
			if !k.gather(t.Context()) || time.Since(began) != c.want {
				t.Errorf("%s: ends gather for %v, want %v", c.what, time.Since(began), c.want)
			}
		})
	}
}
