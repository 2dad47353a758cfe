package weirtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/store"
)

// Job is a job that waits: what its handler would get, and when.
type Job[A weir.Args] struct {
	weir.Job[A]
	RunAt time.Time // zero: at once
}

// most jobs are looked at.
const most = 10_000

// EnqueuedTx returns the jobs of A's kind that a transaction has enqueued, in that order. Jobs that it has cancelled again are left out. The
// role needs weir_enqueue.
func EnqueuedTx[A weir.Args](t testing.TB, tx weir.Tx) []*Job[A] {
	t.Helper()
	return ofKind[A](t, inTx(t, tx))
}

// Enqueued returns the jobs of A's kind that wait in a database, available or scheduled, in the order they were enqueued.
func Enqueued[A weir.Args](t testing.TB, client *weir.Client) []*Job[A] {
	t.Helper()
	return ofKind[A](t, inDatabase(t, client))
}

// RequireEnqueuedTx fails the test unless a transaction has enqueued exactly one job of A's kind with these args and options, and returns it.
// Args are compared as JSON. Only the options that are set are compared: RunAt to within a second, Meta by the keys that are given. The failure
// lists what was enqueued instead.
func RequireEnqueuedTx[A weir.Args](t testing.TB, tx weir.Tx, args A, o *weir.Options) *Job[A] {
	t.Helper()
	return requireOne(t, inTx(t, tx), args, o)
}

// RequireEnqueued is RequireEnqueuedTx for the jobs that wait in a database.
func RequireEnqueued[A weir.Args](t testing.TB, client *weir.Client, args A, o *weir.Options) *Job[A] {
	t.Helper()
	return requireOne(t, inDatabase(t, client), args, o)
}

// RequireManyEnqueuedTx fails the test unless a transaction has enqueued exactly these jobs, of any kinds, in any order. They are compared as by
// RequireEnqueuedTx.
func RequireManyEnqueuedTx(t testing.TB, tx weir.Tx, want []weir.NewJob) {
	t.Helper()
	requireMany(t, inTx(t, tx), want)
}

// RequireManyEnqueued is RequireManyEnqueuedTx for the jobs that wait in a database.
func RequireManyEnqueued(t testing.TB, client *weir.Client, want []weir.NewJob) {
	t.Helper()
	requireMany(t, inDatabase(t, client), want)
}

// RequireNotEnqueuedTx fails the test if a transaction has enqueued a job of A's kind, whatever its args. (An assertion that named args would pass
// because of any typing error in them.)
func RequireNotEnqueuedTx[A weir.Args](t testing.TB, tx weir.Tx) {
	t.Helper()
	requireNone[A](t, inTx(t, tx))
}

// RequireNotEnqueued is RequireNotEnqueuedTx for the jobs that wait in a database.
func RequireNotEnqueued[A weir.Args](t testing.TB, client *weir.Client) {
	t.Helper()
	requireNone[A](t, inDatabase(t, client))
}

// found are jobs that wait, and where.
type found struct {
	jobs  []weir.JobInfo
	where string
}

// inTx lists what a transaction has enqueued, but for what it has cancelled again.
func inTx(t testing.TB, tx weir.Tx) found {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	text, err := store.EnqueuedTx(ctx, tx, most)
	var jobs []weir.JobInfo
	if err == nil {
		err = json.Unmarshal([]byte(text), &jobs)
	}
	if err != nil {
		t.Fatalf("weirtest: list what the transaction has enqueued: %v", err)
	}
	if len(jobs) == most {
		t.Fatalf("weirtest: the transaction has enqueued %d jobs or more: no more than that can be looked at", most)
	}
	for i := range jobs {
		if string(jobs[i].Meta) == "null" {
			jobs[i].Meta = nil
		}
	}
	return found{slices.DeleteFunc(jobs, func(j weir.JobInfo) bool { return j.State == weir.StateCancelled }), "in this transaction"}
}

// inDatabase lists what waits.
func inDatabase(t testing.TB, client *weir.Client) found {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var all []weir.JobInfo
	for list := (weir.JobsParams{States: []weir.State{weir.StateAvailable, weir.StateLater}, Limit: 1000}); ; {
		page, err := client.Jobs(ctx, list)
		if err != nil {
			t.Fatalf("weirtest: %v", err)
		}
		if all = append(all, page.Jobs...); len(all) > most {
			t.Fatalf("weirtest: more than %d jobs wait in this database: no more than that can be looked at", most)
		}
		if page.Next == "" {
			break
		}
		list.After = page.Next
	}
	slices.SortFunc(all, func(a, b weir.JobInfo) int { return cmp.Compare(a.ID, b.ID) })
	return found{all, "in this database"}
}

func ofKind[A weir.Args](t testing.TB, f found) (jobs []*Job[A]) {
	t.Helper()
	kind := kindOf[A]()
	for _, j := range f.jobs {
		if j.Kind == kind {
			jobs = append(jobs, decode[A](t, j))
		}
	}
	return jobs
}

func requireOne[A weir.Args](t testing.TB, f found, args A, o *weir.Options) *Job[A] {
	t.Helper()
	want := wanted(t, weir.NewJob{Args: args, Options: o})
	var same []weir.JobInfo
	for _, j := range f.jobs {
		if len(want.differs(j)) == 0 {
			same = append(same, j)
		}
	}
	switch len(same) {
	case 0:
		t.Fatalf("weirtest: no such job was enqueued %s:\n%s\n%s", f.where, want, f.list(&want))
	case 1:
	default:
		t.Fatalf("weirtest: %d such jobs were enqueued %s, want one:\n%s\n%s", len(same), f.where, want, f.list(&want))
	}
	return decode[A](t, same[0])
}

func requireNone[A weir.Args](t testing.TB, f found) {
	t.Helper()
	kind := kindOf[A]()
	if n := len(slices.DeleteFunc(slices.Clone(f.jobs), func(j weir.JobInfo) bool { return j.Kind != kind })); n > 0 {
		t.Fatalf("weirtest: want no job of kind %s, and %d were enqueued %s:\n%s", kind, n, f.where, f.list(nil))
	}
}

func requireMany(t testing.TB, f found, jobs []weir.NewJob) {
	t.Helper()
	wants := make([]want, len(jobs))
	for i, j := range jobs {
		wants[i] = wanted(t, j)
	}
	missing, extra := pair(wants, f.jobs)
	if len(missing) == 0 && len(extra) == 0 {
		return
	}
	text := fmt.Sprintf("weirtest: %d jobs were enqueued %s, want %d", len(f.jobs), f.where, len(wants))
	for _, w := range missing {
		text += "\nmissing is\n" + w.String()
	}
	for _, j := range extra {
		text += "\nnot wanted is\n" + line(j)
	}
	t.Fatalf("%s\n%s", text, f.list(nil))
}

// pair finds each wanted job one of its own among those there are, for as many as can be, and returns what is left of both.
func pair(wants []want, jobs []weir.JobInfo) (missing []want, extra []weir.JobInfo) {
	of := make([]int, len(jobs)) // the wanted one, from 1
	var find func(i int, tried []bool) bool
	find = func(i int, tried []bool) bool {
		for j := range jobs {
			if tried[j] || len(wants[i].differs(jobs[j])) > 0 {
				continue
			}
			tried[j] = true
			if of[j] == 0 || find(of[j]-1, tried) {
				of[j] = i + 1
				return true
			}
		}
		return false
	}
	for i := range wants {
		if !find(i, make([]bool, len(jobs))) {
			missing = append(missing, wants[i])
		}
	}
	for j := range jobs {
		if of[j] == 0 {
			extra = append(extra, jobs[j])
		}
	}
	return missing, extra
}

func kindOf[A weir.Args]() string {
	var zero A
	return zero.Kind()
}

func decode[A weir.Args](t testing.TB, info weir.JobInfo) *Job[A] {
	t.Helper()
	job := &Job[A]{Job: weir.Job[A]{JobMeta: weir.JobMeta{
		ID: info.ID, Kind: info.Kind, Queue: info.Queue, Priority: info.Priority,
		Attempt: info.Attempt, MaxAttempts: info.MaxAttempts, EnqueuedAt: info.EnqueuedAt, Meta: info.Meta,
	}}}
	if info.RunAt != nil {
		job.RunAt = *info.RunAt
	}
	if err := json.Unmarshal(info.Args, &job.Args); err != nil {
		t.Fatalf("weirtest: the args of job %d do not decode into %T: %v", info.ID, job.Args, err)
	}
	return job
}
