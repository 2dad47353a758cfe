package worker

import (
	"context"
	"testing"
	"time"
)

// TestAThousandAttemptsShareFewDeadlines: the cost of timeouts does not grow with the number of running jobs. No attempt ends early, and
// none more than a thirtieth late.
func TestAThousandAttemptsShareFewDeadlines(t *testing.T) {
	t.Parallel()
	all := newTimeouts(t.Context(), t.Context())
	distinct := map[context.Context]bool{}
	begin := time.Now()
	const limit = time.Hour
	for i := range 1000 { // spread over the time that one may take
		now := begin.Add(time.Duration(i) * limit / 1000)
		ctx := all.context(limit, now)
		distinct[ctx] = true
		if at, ok := ctx.Deadline(); !ok || at.Before(now.Add(limit)) || at.After(now.Add(limit+limit/30)) {
			t.Fatalf("an attempt that starts at %v ends at %v", now, at)
		}
	}
	if len(distinct) > timeoutParts+1 {
		t.Errorf("%d deadlines, want at most %d", len(distinct), timeoutParts+1)
	}
	if _, ok := all.context(-1, begin).Deadline(); ok {
		t.Error("an attempt without a timeout has a deadline")
	}
}

// BenchmarkContextOfAnAttempt measures an attempt's context: with a shared deadline, with a deadline of its own, and without one.
func BenchmarkContextOfAnAttempt(b *testing.B) {
	all := newTimeouts(context.WithoutCancel(b.Context()), b.Context())
	cases := map[string]func() (context.Context, context.CancelFunc){
		"shared": func() (context.Context, context.CancelFunc) { return all.context(time.Hour, time.Now()), func() {} },
		"own":    func() (context.Context, context.CancelFunc) { return context.WithTimeout(b.Context(), time.Hour) },
		"none":   func() (context.Context, context.CancelFunc) { return all.context(0, time.Now()), func() {} },
	}
	for name, of := range cases {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					parent, cancel := of()
					_, stop := context.WithCancelCause(parent)
					stop(nil)
					cancel()
				}
			})
		})
	}
}
