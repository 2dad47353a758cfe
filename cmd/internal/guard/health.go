package guard

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/pulse"
)

// health is what probes of a guard report. Polls update it; reading it takes no lock, so it always answers.
type health struct {
	polling pulse.Pulse
	last    atomic.Pointer[time.Time] // when the last poll succeeded; nil: none has
	failed  atomic.Pointer[error]     // of the last poll; nil: it succeeded
}

const (
	// A poll that fails is repeated after the policy's interval. The guard is not ready once none has succeeded for three intervals, and at
	// least patience.
	patience = 30 * time.Second
	// A poll takes no longer, apart from the policy's probes: its queries have timeouts.
	stuckAfter = 2 * time.Minute
)

func (h *health) polled(err error) {
	if err != nil {
		h.failed.Store(&err)
		return
	}
	now := time.Now()
	h.last.Store(&now)
	h.failed.Store(nil)
}

// Stuck returns an error if a poll does not come to an end, so that only a restart of the process helps, and nil otherwise. Like Ready it
// may be called at any time, by any goroutine.
func (g *Guard) Stuck() error {
	return g.health.polling.Stuck("polling the cluster", stuckAfter+2*probeTimeout*time.Duration(len(g.config.Policy.Protect.Probes)))
}

// Ready returns why the guard does not guard, or nil while it polls the primary.
func (g *Guard) Ready() error { return g.ready(time.Now()) }

func (g *Guard) ready(now time.Time) error {
	if err := g.Stuck(); err != nil {
		return err
	}
	what := "no poll has succeeded yet"
	if last := g.health.last.Load(); last != nil {
		silent := now.Sub(*last)
		if silent <= max(3*g.config.Policy.Interval.Duration, patience) {
			return nil
		}
		what = fmt.Sprintf("no poll has succeeded for %s", silent.Round(time.Second))
	}
	if err := g.health.failed.Load(); err != nil {
		return fmt.Errorf("%s: %w", what, *err)
	}
	return errors.New(what)
}
