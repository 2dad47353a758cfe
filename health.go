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
	HealthStarting    = HealthReason(worker.Starting)    // the worker is not registered in the database yet
	HealthStopping    = HealthReason(worker.Stopping)    // Run's context has ended: the worker claims nothing more, and finishes running jobs
	HealthFenced      = HealthReason(worker.Fenced)      // the worker's jobs were given to others; it restarts automatically
	HealthUnreachable = HealthReason(worker.Unreachable) // the database does not answer, or the worker's calls fail; it recovers automatically
	HealthStuck       = HealthReason(worker.Stuck)       // a part of the worker is blocked, by one of your hooks or by a bug: restart the process
)

// HealthError reports why a worker does not work as it should.
type HealthError struct {
	Reason HealthReason
	Since  time.Time // when the condition began; zero: the worker was never started
	Err    error     // the last error, if any
}

// Error returns the reason, its duration, and the last error.
func (e *HealthError) Error() string {
	text := "weir: the worker is " + map[HealthReason]string{
		HealthNotRunning: "not running", HealthStarting: "starting", HealthStopping: "stopping", HealthFenced: "fenced, and restarts automatically",
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

// Unwrap returns Err.
func (e *HealthError) Unwrap() error { return e.Err }

// Health returns nil while the worker works: it is registered in the database, and the database answers its heartbeats and carries out its
// calls. Otherwise it returns a *HealthError. It reports what the server answered last, sends nothing itself, and takes no lock. It
// therefore costs nothing, and returns at once whatever goes wrong. A call that is slow, or that fails and then succeeds, is not reported:
// failures count once they have lasted a third of the lease, and at least 2 seconds.
//
// Let a readiness probe fail on any error. Let a liveness probe, which restarts the process, fail only on HealthStuck: a restart fixes
// nothing else, and while the database is unreachable it would only interrupt running jobs.
func (w *Worker) Health() error {
	why, since, err := w.config.Health.Ill()
	if why == "" {
		return nil
	}
	return &HealthError{Reason: HealthReason(why), Since: since, Err: err}
}
