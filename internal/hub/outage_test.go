package hub

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAnOutageOfReadsIsLoggedWhenItBeginsAndWhenItIsOver: and at growing intervals in between; a single failure is not.
func TestAnOutageOfReadsIsLoggedWhenItBeginsAndWhenItIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, o := &pgtest.Log{}, unread{}
		logger, down := log.Logger(), errors.New("connection refused")
		o.failed(logger, down)
		o.over(logger)
		if text := log.String(); text != "" {
			t.Errorf("a single failure was logged: %s", text)
		}
		for range 200 { // seconds
			o.failed(logger, down)
			time.Sleep(time.Second)
		}
		o.over(logger)
		o.over(logger)
		for line, want := range map[string]int{"can't read ticks: it tries": 1, "still can't read ticks": 2, "reads ticks again": 1, "after=3m20s": 1} {
			if n := log.Count(line); n != want {
				t.Errorf("%d lines with %q, want %d, in:\n%s", n, line, want, log)
			}
		}
	})
}
