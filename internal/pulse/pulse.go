// Package pulse tells whether a loop that ought to move on does, without a lock: whoever asks is not held up by what has stopped.
package pulse

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Pulse is a loop's. The zero value is at rest.
type Pulse struct{ began atomic.Int64 } // when the present step began, in ns of the process's life; 0: it waits for something to do

// began is where the clock starts. It never steps.
var began = time.Now()

// Beat says that the loop begins its next step.
func (p *Pulse) Beat() { p.began.Store(int64(time.Since(began)) + 1) }

// Rest says that there is nothing to do, however long.
func (p *Pulse) Rest() { p.began.Store(0) }

// Stuck is the error of a loop whose present step takes longer than that; nil while it moves on. what names the loop.
func (p *Pulse) Stuck(what string, after time.Duration) error {
	at := p.began.Load()
	if at == 0 {
		return nil
	}
	if still := time.Since(began) - time.Duration(at); still > after {
		return fmt.Errorf("%s has stood still for %v", what, still.Round(time.Second))
	}
	return nil
}
