package weirtest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/store"
)

// Job is a waiting job: what its handler would receive, and when.
type Job[A weir.Args] struct {
	weir.Job[A]
	RunAt time.Time // zero: at once
}

// limit is the maximum number of jobs that are checked.
const limit = 10_000

// EnqueuedTx returns the jobs of A's kind that a transaction has enqueued, in that order, except those that it has cancelled. The role
// needs weir_work or weir_operate, because jobs that other owners' functions have enqueued in the transaction are included.
func EnqueuedTx[A weir.Args](t testing.TB, tx weir.Tx) []*Job[A] {
	t.Helper()
	return ofKind[A](t, inTx(t, tx))
}

// Enqueued returns the jobs of A's kind that wait in a database, available or scheduled, in the order in which they were enqueued.
func Enqueued[A weir.Args](t testing.TB, client *weir.Client) []*Job[A] {
	t.Helper()
	return ofKind[A](t, inDatabase(t, client))
}

// RequireEnqueuedTx fails the test unless a transaction has enqueued exactly one job of A's kind with these args and options, and returns
// that job. Args are compared as JSON. Of the options, only those that are set are compared: RunAt to within a second, and of Meta the keys
// that are given. The failure message lists the jobs that were enqueued.
func RequireEnqueuedTx[A weir.Args](t testing.TB, tx weir.Tx, args A, o *weir.Options) *Job[A] {
	t.Helper()
	return requireOne(t, inTx(t, tx), args, o)
}

// RequireEnqueued is RequireEnqueuedTx for the jobs that wait in a database.
func RequireEnqueued[A weir.Args](t testing.TB, client *weir.Client, args A, o *weir.Options) *Job[A] {
	t.Helper()
	return requireOne(t, inDatabase(t, client), args, o)
}

// RequireManyEnqueuedTx fails the test unless a transaction has enqueued exactly these jobs, of any kinds, in any order. It compares them
// as RequireEnqueuedTx does.
func RequireManyEnqueuedTx(t testing.TB, tx weir.Tx, want []weir.NewJob) {
	t.Helper()
	requireMany(t, inTx(t, tx), want)
}

// RequireManyEnqueued is RequireManyEnqueuedTx for the jobs that wait in a database.
func RequireManyEnqueued(t testing.TB, client *weir.Client, want []weir.NewJob) {
	t.Helper()
	requireMany(t, inDatabase(t, client), want)
}

// RequireNotEnqueuedTx fails the test if a transaction has enqueued any job of A's kind. It does not take args, because with a typing error
// in them it would always pass.
func RequireNotEnqueuedTx[A weir.Args](t testing.TB, tx weir.Tx) {
	t.Helper()
	requireNone[A](t, inTx(t, tx))
}

// RequireNotEnqueued is RequireNotEnqueuedTx for the jobs that wait in a database.
func RequireNotEnqueued[A weir.Args](t testing.TB, client *weir.Client) {
	t.Helper()
	requireNone[A](t, inDatabase(t, client))
}

// found are waiting jobs, and where they wait.
type found struct {
	jobs  []weir.JobInfo
	where string
}

// inTx lists the jobs that a transaction has enqueued and not cancelled.
func inTx(t testing.TB, tx weir.Tx) found {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	text, err := store.EnqueuedTx(ctx, tx, limit)
	var jobs []weir.JobInfo
	if err == nil {
		err = json.Unmarshal([]byte(text), &jobs)
	}
	if store.IsDenied(err) {
		t.Fatalf("weirtest: list what the transaction has enqueued: %v: in tests, use a role that has weir_work or weir_operate", err)
	}
	if err != nil {
		t.Fatalf("weirtest: list what the transaction has enqueued: %v", err)
	}
	if len(jobs) == limit {
		t.Fatalf("weirtest: the transaction has enqueued %d jobs or more, too many to check", limit)
	}
	client := weir.NewClient(nil)
	if d, ok := tx.(decrypting); ok {
		client = d.client
	}
	for i := range jobs {
		if string(jobs[i].Meta) == "null" {
			jobs[i].Meta = nil
		}
		decrypt(ctx, t, client, &jobs[i])
	}
	return found{slices.DeleteFunc(jobs, func(j weir.JobInfo) bool { return j.State == weir.StateCancelled }), "in this transaction"}
}

// inDatabase lists the waiting jobs of a database.
func inDatabase(t testing.TB, client *weir.Client) found {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var all []weir.JobInfo
	for list := (weir.JobsParams{States: []weir.State{weir.StateAvailable, weir.StateScheduled}, Limit: 1000}); ; {
		page, err := client.Jobs(ctx, list)
		if err != nil {
			t.Fatalf("weirtest: %v", err)
		}
		for i := range page.Jobs {
			decrypt(ctx, t, client, &page.Jobs[i])
		}
		if all = append(all, page.Jobs...); len(all) > limit {
			t.Fatalf("weirtest: more than %d jobs wait in this database, too many to check", limit)
		}
		if page.Next == "" {
			break
		}
		list.After = page.Next
	}
	slices.SortFunc(all, func(a, b weir.JobInfo) int { return cmp.Compare(a.ID, b.ID) })
	return found{all, "in this database"}
}

// Decrypting returns a transaction for the functions of this package that check what is enqueued in it, if jobs are encrypted: they decrypt
// with the client's codecs.
func Decrypting(tx weir.Tx, client *weir.Client) weir.Tx { return decrypting{tx, client} }

type decrypting struct {
	weir.Tx
	client *weir.Client
}

// decrypt decrypts a job. A job that the client has no codec for stays as it is: it may not concern the test.
func decrypt(ctx context.Context, t testing.TB, client *weir.Client, job *weir.JobInfo) {
	t.Helper()
	if err := client.Decrypt(ctx, job); err != nil && !errors.Is(err, weir.ErrEncrypted) {
		t.Fatalf("weirtest: %v", err)
	} else if err == nil {
		job.Encrypted = ""
	} else if job.Encrypted == "" {
		job.Encrypted = "unknown"
	}
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
		t.Fatalf("weirtest: want no job of kind %s, but %d were enqueued %s:\n%s", kind, n, f.where, f.list(nil))
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

// pair matches wanted jobs with existing ones, as many as possible, and returns the rest of both.
func pair(wants []want, jobs []weir.JobInfo) (missing []want, extra []weir.JobInfo) {
	of := make([]int, len(jobs)) // number of the wanted job, from 1
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
		ID: info.ID, Kind: info.Kind, Queue: info.Queue, Priority: info.Priority, Key: info.Key,
		Attempt: info.Attempt, MaxAttempts: info.MaxAttempts, EnqueuedAt: info.EnqueuedAt, Meta: info.Meta,
	}}}
	if info.RunAt != nil {
		job.RunAt = *info.RunAt
	}
	if info.Encrypted != "" {
		t.Fatalf("weirtest: job %d of kind %s is encrypted: use a client that has its codec, and in a transaction weirtest.Decrypting", info.ID, info.Kind)
	}
	if err := json.Unmarshal(info.Args, &job.Args); err != nil {
		t.Fatalf("weirtest: the args of job %d do not decode into %T: %v", info.ID, job.Args, err)
	}
	return job
}
