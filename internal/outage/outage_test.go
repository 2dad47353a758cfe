package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

var errDown = errors.New("connection refused")

// lines returns a logger, and a function that returns what was logged: a line per record, without the time.
func lines() (*slog.Logger, func() []string) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return log, func() []string { return strings.Split(strings.TrimSpace(text.String()), "\n") }
}

// TestAnOutageIsSaidWhenItBeginsAndWhenItIsOver: an outage is logged in two lines, whatever the number of calls that fail during it.
func TestAnOutageIsSaidWhenItBeginsAndWhenItIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, said := lines()
		l := New(log)
		for range 45 {
			for _, what := range []string{"claims", "heartbeats", "results"} {
				l.Failed(what, errDown)
			}
			l.Chore("rotate", errDown, true)
			time.Sleep(time.Second)
		}
		for _, what := range []string{"results", "heartbeats", "claims", "claims"} {
			l.Worked(what)
		}
		l.Chore("rotate", errDown, true) // it started before the outage was over
		l.Chore("rotate", nil, true)
		got := said()
		if len(got) != 2 || !strings.Contains(got[0], `waiting="claims, heartbeats, results"`) || !strings.Contains(got[0], errDown.Error()) || !strings.Contains(got[1], "after=45s") {
			t.Errorf("logged:\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestWhatTheNextTryCuresIsNotSaid: a failure that is followed by a success, or by nothing, is not logged.
func TestWhatTheNextTryCuresIsNotSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, said := lines()
		l := New(log)
		for range 44 { // each poll is killed, and repeated
			l.Failed("polls for work", errDown)
			time.Sleep(10 * time.Millisecond)
			l.Worked("polls for work")
		}
		l.Failed("results", errDown) // there are no more results to record
		time.Sleep(time.Hour)
		l.Failed("results", errDown)
		l.Reset()
		if got := said(); got[0] != "" {
			t.Errorf("logged:\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestACallThatGetsNoAnswerIsSaidAtOnce: a call that timed out has lasted long enough for its first failure to be logged.
func TestACallThatGetsNoAnswerIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	for _, err := range []error{context.DeadlineExceeded, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}} {
		log, said := lines()
		New(log).Failed("claims", fmt.Errorf("claim: %w", err))
		if got := said(); len(got) != 1 || got[0] == "" {
			t.Errorf("logged:\n%s", strings.Join(got, "\n"))
		}
	}
}

// TestWhatFailsForLongIsSaidAtGrowingIntervals: a chore that fails every second for a day is logged some 20 to 35 times.
func TestWhatFailsForLongIsSaidAtGrowingIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, said := lines()
		l := New(log)
		for range 24 * 60 * 60 {
			l.Chore("rotate", errors.New("permission denied"), false)
			l.Chore("promote", nil, false)
			time.Sleep(time.Second)
		}
		l.Chore("rotate", nil, false)
		got := said()
		if n := len(got); n < 20 || n > 35 || !strings.Contains(got[n-1], "after=24h0m0s") {
			t.Errorf("logged %d times in a day, want 20 to 35:\n%s", n, strings.Join(got, "\n"))
		}
	})
}

// TestTroublesAreToldWhileTheLogStandsStill: Troubles does not wait for a log whose output is blocked.
func TestTroublesAreToldWhileTheLogStandsStill(t *testing.T) {
	t.Parallel()
	entered, release := make(chan bool), make(chan bool)
	l := New(slog.New(slog.NewTextHandler(blocked{entered, release}, nil)))
	done := make(chan bool)
	go func() { // ends when the log is released
		defer close(done)
		l.Failed("claims", errors.New("refused"))
		l.Failed("claims", errors.New("refused"))
	}()
	pgtest.Receive(t, entered, "the log is written")
	if all := l.Troubles(); len(all) != 1 || all[0].What != "claims" || all[0].Tries != 2 || all[0].Err == nil {
		t.Errorf("troubles: %+v", all)
	}
	close(release)
	pgtest.Receive(t, done, "both were logged")
	l.Worked("claims")
	if all := l.Troubles(); len(all) != 0 {
		t.Errorf("troubles after a success: %+v", all)
	}
}

type blocked struct{ entered, release chan bool }

func (b blocked) Write(p []byte) (int, error) {
	select {
	case b.entered <- true:
	case <-b.release:
	}
	<-b.release
	return len(p), nil
}
