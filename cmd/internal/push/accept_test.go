package push

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/work"
)

// TestACancellationIsNotLostWhileAJobIsAccepted: whichever of both comes first, the attempt is given up.
func TestACancellationIsNotLostWhileAJobIsAccepted(t *testing.T) {
	t.Parallel()
	d := work.New(work.Config{Secret: "secret"})
	for range 1000 {
		e := newEndpoint(&Pusher{Config: Config{Dispatcher: d, Log: slog.New(slog.DiscardHandler)}}, &target{name: "e", accepted: time.Hour})
		asks, cancel := context.WithCancelCause(t.Context())
		a := &attempt{token: "t", cancel: cancel}
		e.attempts[a.token] = a
		interrupted := make(chan struct{})
		go func() {
			defer close(interrupted)
			e.interrupt(t.Context(), []work.Interrupted{{Token: a.token, Reason: work.Cancelled}})
		}()
		e.accept(t.Context(), asks, a, e.target)
		<-interrupted
		e.all.Wait()
		if !a.over {
			t.Fatal("it waits for its report")
		}
		cancel(nil)
	}
}
