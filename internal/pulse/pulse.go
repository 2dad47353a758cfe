// Package pulse detects loops that make no progress. It takes no lock, so asking never waits for what is stuck.
package pulse

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Pulse belongs to one loop. The zero value is at rest.
type Pulse struct{ began atomic.Int64 } // when the current step began, in ns since the process started; 0: it waits for work

// start is the origin of a clock that never steps.
var start = time.Now()

// Beat records that the loop begins its next step.
func (p *Pulse) Beat() { p.began.Store(int64(time.Since(start)) + 1) }

// Rest records that there is nothing to do, for any length of time.
func (p *Pulse) Rest() { p.began.Store(0) }

// Stuck returns an error if the current step has taken longer than after, and nil otherwise. what names the loop.
func (p *Pulse) Stuck(what string, after time.Duration) error {
	at := p.began.Load()
	if at == 0 {
		return nil
	}
	if still := time.Since(start) - time.Duration(at); still > after {
		return fmt.Errorf("%s has made no progress for %v", what, still.Round(time.Second))
	}
	return nil
}
