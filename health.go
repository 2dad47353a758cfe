package weir

import (
	"fmt"
	"time"

	"github.com/weir-pg/weir/internal/worker"
)

// HealthReason is why a worker is not healthy.
type HealthReason string

// Reasons of a HealthError.
const (
	HealthNotRunning  = HealthReason(worker.NotRunning)  // Run has not been called, or has returned
	HealthStarting    = HealthReason(worker.Starting)    // the database does not know the worker yet
	HealthStopping    = HealthReason(worker.Stopping)    // Run's context has ended: it claims nothing more, and finishes what runs
	HealthFenced      = HealthReason(worker.Fenced)      // its jobs were given to others; it starts again by itself
	HealthUnreachable = HealthReason(worker.Unreachable) // the database does not answer, or fails what the worker asks; it goes on by itself
	HealthStuck       = HealthReason(worker.Stuck)       // a part of the worker stands still, for a hook of yours, or by a fault: a restart of the process helps
)

// HealthError says why a worker does not work as it should.
type HealthError struct {
	Reason HealthReason
	Since  time.Time // when it began; zero: the worker was never started
	Err    error     // what went wrong last, where that is known
}

// Error is the reason, since when, and what went wrong.
func (e *HealthError) Error() string {
	text := "weir: the worker is " + map[HealthReason]string{
		HealthNotRunning: "not running", HealthStarting: "starting", HealthStopping: "stopping", HealthFenced: "fenced, and starts again",
		HealthUnreachable: "not served by the database", HealthStuck: "stuck: restart this process",
	}[e.Reason]
	if !e.Since.IsZero() {
		text += fmt.Sprintf(", for %s", time.Since(e.Since).Round(time.Second))
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap is what went wrong last.
func (e *HealthError) Unwrap() error { return e.Err }

// Health is nil while the worker works: the database knows it, answers its heartbeats, and does what it is asked. Otherwise it is a
// *HealthError. It tells what the server has answered, by itself asks nothing, and takes no lock: so it costs nothing, and answers at once
// whatever goes wrong. A call that is slow, or fails and then succeeds, is no news: failures count once they have gone on for a third of the lease,
// and for 2 seconds at least.
//
// A readiness probe fails on any error. A liveness probe, which has the process killed, is to fail on HealthStuck alone: all else a restart does
// not cure, and while the database is out of reach it would only interrupt what runs.
func (w *Worker) Health() error {
	why, since, err := w.config.Health.Ill()
	if why == "" {
		return nil
	}
	return &HealthError{Reason: HealthReason(why), Since: since, Err: err}
}
