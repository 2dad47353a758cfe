package weir_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// ofTenant is a kind whose jobs have a key by default.
type ofTenant struct{ number }

func (ofTenant) EnqueueOptions() weir.Options { return weir.Options{Key: "default tenant"} }

// TestAHandlerGetsTheKey: however a job is enqueued, its handler gets its key and its priority, in a second attempt as well.
func TestAHandlerGetsTheKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keyed := func(n int) weir.NewJob {
		return weir.NewJob{Args: number{n}, Options: &weir.Options{Key: fmt.Sprint("tenant ", n), Priority: 3}}
	}
	unique := func(n int) weir.NewJob {
		j := keyed(n)
		j.Options.Unique = &weir.Unique{Key: "one of this"}
		return j
	}
	want := map[int]string{}
	add := func(err error, jobs ...weir.NewJob) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if n, ok := j.Args.(number); ok {
				want[n.N] = j.Options.Key
			}
		}
	}
	first, err := r.client.Enqueue(t.Context(), keyed(1).Args, keyed(1).Options)
	add(err, keyed(1))
	if info, err := r.client.Job(t.Context(), first.ID); err != nil || info.Key != "tenant 1" || info.Priority != 3 {
		t.Errorf("the job is %+v, %v, want its key and priority", info, err)
	}
	if page, err := r.client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateAvailable}}); err != nil || len(page.Jobs) != 1 || page.Jobs[0].Key != "tenant 1" {
		t.Errorf("the list is %+v, %v, want the job with its key", page, err)
	}
	for key, want := range map[string]int{"tenant 1": 1, "tenant 2": 0} {
		if page, err := r.client.Jobs(t.Context(), weir.JobsParams{Key: key}); err != nil || len(page.Jobs) != want {
			t.Errorf("the list of the key %s is %+v, %v, want %d jobs", key, page, err, want)
		}
		if n, err := r.client.MoveWhere(t.Context(), weir.JobFilter{Key: key}, weir.MoveTo{Priority: 1}, nil); err != nil || n != int64(want) {
			t.Errorf("moved %d jobs of the key %s, %v, want %d", n, key, err, want)
		}
		if n, err := r.client.MoveWhere(t.Context(), weir.JobFilter{Key: key}, weir.MoveTo{Priority: 3}, nil); err != nil || n != int64(want) {
			t.Errorf("moved %d jobs of the key %s back, %v, want %d", n, key, err, want)
		}
		if n, err := r.client.RetryWhere(t.Context(), weir.JobFilter{Key: key}, nil); err != nil || n != 0 {
			t.Errorf("retried %d jobs of the key %s, %v, want none: none has failed", n, key, err)
		}
		if n, err := r.client.DeleteWhere(t.Context(), weir.JobFilter{Key: key}, nil); err != nil || n != 0 {
			t.Errorf("deleted %d jobs of the key %s, %v, want none: none has failed", n, key, err)
		}
		if page, err := r.client.FailureGroups(t.Context(), weir.FailureGroupsParams{Key: key}); err != nil || len(page.Groups) != 0 {
			t.Errorf("groups of failures of the key %s are %+v, %v, want none", key, page, err)
		}
	}
	if err := r.client.CancelWhere(t.Context(), weir.JobFilter{Key: "tenant 2"}); err != nil {
		t.Error(err)
	}
	if info, err := r.client.Job(t.Context(), first.ID); err != nil || info.State != weir.StateAvailable {
		t.Errorf("after a cancellation of another key, the job is %+v, %v", info, err)
	}
	_, err = r.client.Enqueue(t.Context(), unique(2).Args, unique(2).Options)
	add(err, unique(2))
	many := []weir.NewJob{keyed(3), keyed(4), {Args: number{5}, Options: &weir.Options{Priority: 3}}}
	_, err = r.client.EnqueueMany(t.Context(), many)
	add(err, many...)
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	many = []weir.NewJob{keyed(6), keyed(7), {Args: number{8}, Options: &weir.Options{Priority: 3}}}
	_, err = r.client.EnqueueManyTx(t.Context(), weir.SQLTx(tx), many)
	add(errors.Join(err, tx.Commit()), many...)
	scheduled := keyed(9)
	_, err = r.client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@yearly", Args: scheduled.Args, Options: scheduled.Options})
	if err == nil {
		_, err = r.client.RunSchedule(t.Context(), "s")
	}
	add(err, scheduled)
	if info, err := r.client.Schedule(t.Context(), "s"); err != nil || info.Key != "tenant 9" {
		t.Errorf("the schedule is %+v, %v, want its key", info, err)
	}
	_, err = r.client.Enqueue(t.Context(), ofTenant{number{10}}, &weir.Options{Priority: 3})
	add(err)
	want[10] = "default tenant"

	type seen struct {
		n, attempt, priority int
		key                  string
	}
	all := make(chan seen, 100)
	stop := r.work(func(_ context.Context, job *weir.Job[number]) error {
		all <- seen{job.Args.N, job.Attempt, job.Priority, job.Key}
		if job.Attempt == 1 {
			return errors.New("not yet")
		}
		return nil
	}, nil)
	got := map[seen]bool{}
	for range 2 * len(want) {
		got[receive(t, all, "a job")] = true
	}
	for n, key := range want {
		for _, attempt := range []int{1, 2} {
			if !got[seen{n, attempt, 3, key}] {
				t.Errorf("attempt %d of job %d was not run with the key %q and priority 3: %v", attempt, n, key, got)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestKeysThatCannotBeStoredAreRefused: a key with a NUL character is refused by name, and one that is too long by the server.
func TestKeysThatCannotBeStoredAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for key, why := range map[string]string{"a\x00": "the key \"a\\x00\" contains a NUL", strings.Repeat("x", 201): "a key must have 1 to 200 characters, got 201"} {
		if _, err := r.client.Enqueue(t.Context(), number{1}, &weir.Options{Key: key}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("the key %.10q: %v, want %s", key, err, why)
		}
	}
}

// TestAGroupHoldsJobsOfOneKey: with the job's key as the group's, no call of the handler gets jobs of two keys.
func TestAGroupHoldsJobsOfOneKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var jobs []weir.NewJob
	for n := range 60 {
		jobs = append(jobs, weir.NewJob{Args: number{n}, Options: &weir.Options{Key: fmt.Sprint("tenant ", n%3)}})
	}
	if _, err := r.client.EnqueueMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	groups := make(chan []string, len(jobs))
	options := weir.GroupOptions[number]{Size: 10, Wait: 10 * time.Millisecond, Key: func(job *weir.Job[number]) string { return job.Key }}
	r.workGroups(options, 30, func(_ context.Context, jobs []*weir.GroupJob[number]) error {
		var keys []string
		for _, job := range jobs {
			keys = append(keys, job.Key)
		}
		groups <- keys
		return nil
	}, nil)
	for left := len(jobs); left > 0; {
		keys := receive(t, groups, "a group")
		left -= len(keys)
		for _, key := range keys {
			if key != keys[0] || key == "" {
				t.Fatalf("a group holds jobs of %v", keys)
			}
		}
	}
}
