package lab

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAPostmasterAnswersWithinItsBudget: also with one that it gets after another was lifted while it was used up.
func TestAPostmasterAnswersWithinItsBudget(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("budgets need root on Linux")
	}
	const rounds, clients, share = 12, 20, 0.02
	server := pgtest.Server(t, nil)
	to, err := targetOf(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		if err := grant(t.Context(), to, server.PID(), share); err != nil {
			t.Fatal(err)
		}
		until, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		var all sync.WaitGroup
		var answered atomic.Int64
		for i := range clients {
			all.Go(func() {
				for until.Err() == nil {
					k := knockAt(until, to, i)
					if k.conn != nil {
						k.conn.Close()
					}
					if k.err == nil && answered.Add(1) == clients {
						cancel() // so the postmaster has more to do when its budget is lifted
					}
				}
			})
		}
		all.Wait()
		cancel()
		if n := answered.Load(); n < clients {
			t.Errorf("round %d: %d connections are answered in 10 s", round, n)
		}
		if err := errors.Join(lift(server.PID()), settle(t.Context(), []target{to})); err != nil {
			t.Fatal(err)
		}
	}
}
