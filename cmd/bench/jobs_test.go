package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestPinnedTellsBeforeFromDuring: pinned reports the time before the pin and the time during it separately.
func TestPinnedTellsBeforeFromDuring(t *testing.T) {
	pgtest.Alone(t, "jobs must be done within two seconds before the pin, and within two during it")
	for _, pin := range []string{"read", "write"} {
		r, fields := report(t, pgtest.Database(t), "pinned", "--rate", "200", "--seconds", "2", "--pin", pin, "--alone")
		hasFields(t, fields, "before", "during", "ratio")
		for name, f := range map[string]*load.Figures{"before": r.Before, "during": r.During} {
			hasFields(t, fields[name].(map[string]any), "jobs", "seconds", "jobs_per_second", "p50_ms", "p99_ms", "claim_p50_ms", "dead_tuples")
			if f.Jobs <= 0 || f.JobsPerSecond <= 0 {
				t.Errorf("%s: %+v", name, f)
			}
		}
		noneDeadIn(t, r.Before, r.During)
	}
}

// TestWorkersShareOneQueue: workers reports the share of each worker.
func TestWorkersShareOneQueue(t *testing.T) {
	pgtest.Alone(t, "each worker has a second to get its share")
	r, fields := report(t, pgtest.Database(t), "workers", "--workers", "5", "--seconds", "1")
	hasFields(t, fields, "jobs", "seconds", "jobs_per_second", "dead_tuples", "shares")
	if s := r.Shares; r.Jobs <= 0 || s.Workers != 5 || s.Least <= 0 || s.Least > 0.2 || s.Greatest < 0.2 || s.Greatest > 1 {
		t.Errorf("%+v %+v", r.Figures, r.Shares)
	}
	noneDeadIn(t, r.Figures)
}

// TestFleetSharesALimit: fleet reports what it costs without jobs, with all slots in use, and while jobs flow, and how soon slots are used again.
func TestFleetSharesALimit(t *testing.T) {
	t.Parallel()
	r, fields := report(t, pgtest.Database(t), "fleet", "--workers", "4", "--limit", "2", "--refills", "3", "--seconds", "0.5")
	hasFields(t, fields["fleet"].(map[string]any), "idle", "saturated", "flowing", "refill_ms", "used_slots")
	f := r.Fleet
	if f.Workers != 4 || f.Limit != 2 || f.Idle.Jobs+f.Saturated.Jobs != 0 || f.Refill.Count != 3 || f.Flowing.Jobs <= 0 || f.Used <= 0 {
		t.Errorf("%+v: %+v, %+v, %+v, %+v", f, f.Idle, f.Saturated, f.Flowing, f.Refill)
	}
}

// TestFleetRefusesALimitThatItCannotReach: with fewer workers than slots, some would stay free.
func TestFleetRefusesALimitThatItCannotReach(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"fleet", "--workers", "2", "--limit", "3", "--database", pgtest.Database(t)}, &streams{out: io.Discard, errs: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "got 2, 3 and") {
		t.Errorf("got %v, want an error that names both", err)
	}
}

// TestAgeTakesTheTimeOfEverything: age measures every kind of operation.
func TestAgeTakesTheTimeOfEverything(t *testing.T) {
	t.Parallel()
	r, fields := report(t, pgtest.Database(t), "age", "--jobs", "2000", "--queues", "3", "--scheduled", "500", "--failing", "10")
	hasFields(t, fields, "jobs", "seconds", "operations", "targets")
	for _, what := range []string{"job_info", "job_info of retried", "cancel", "jobs(completed)", "jobs(scheduled) of a queue", "claim from all queues",
		"rotate", "reclaim", "claim while segments come back"} {
		if !slices.ContainsFunc(r.Operations, func(o load.Operation) bool {
			return o.What == what && o.Times > 0 && o.Median > 0 && o.Max >= o.Median
		}) {
			t.Errorf("the operation %s is missing in %+v", what, r.Operations)
		}
	}
}

// TestRetryRetriesAllFailedJobs: retry reports how many jobs one operation retries a second, and fails unless it has retried each.
func TestRetryRetriesAllFailedJobs(t *testing.T) {
	t.Parallel()
	r, _ := report(t, pgtest.Database(t), "retry", "--failed", "2500")
	if len(r.Targets) != 1 || r.Targets[0].Got <= 0 {
		t.Errorf("%+v", r.Targets)
	}
}

// TestMemoryRunsAllJobsAtOnce: memory measures with all jobs running at the same time.
func TestMemoryRunsAllJobsAtOnce(t *testing.T) {
	t.Parallel()
	r, fields := report(t, pgtest.Database(t), "memory", "--jobs", "100")
	hasFields(t, fields, "jobs", "dead_tuples", "memory")
	if r.Memory.Running != 100 || r.Memory.RSS < 1<<20 {
		t.Errorf("%+v", r.Memory)
	}
	noneDeadIn(t, r.Figures)
}
