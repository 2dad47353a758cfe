package weir_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// TestAllFieldsOfAFilterReachTheOperation: what BeginOperation is given is what the operation selects by, and Operations lists it with its numbers.
func TestAllFieldsOfAFilterReachTheOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.client.Enqueue(t.Context(), number{1}, &weir.Options{Queue: "q"}); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 31, 12, 0, 0, 123456000, time.UTC)
	id, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationRetry, By: "ada", Filter: weir.JobFilter{
		Queue: "q", Kinds: []string{"a", "b"}, Meta: map[string]any{"tenant": "acme", "none": nil}, Priority: 3, EnqueuedAfter: at, EnqueuedBefore: at.Add(time.Hour), Key: "k",
		Error: "e", Shape: "s", FinishedAfter: at.Add(2 * time.Hour), FinishedBefore: at.Add(3 * time.Hour), States: []weir.State{weir.StateFailed, weir.StateCancelled},
	}})
	if err != nil {
		t.Fatal(err)
	}
	o, err := r.client.Operation(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var filter struct {
		Queue, Key, Error, Shape string
		Kinds, States            []string
		Meta                     map[string]any
		Priority                 int
	}
	var times map[string]any
	if json.Unmarshal(o.Filter, &filter) != nil || json.Unmarshal(o.Filter, &times) != nil {
		t.Fatalf("the filter is %s", o.Filter)
	}
	tenant, none := filter.Meta["tenant"], filter.Meta["none"]
	if filter.Queue != "q" || filter.Key != "k" || filter.Error != "e" || filter.Shape != "s" || len(filter.Kinds) != 2 || len(filter.States) != 2 || filter.Priority != 3 || tenant != "acme" || none != nil || len(filter.Meta) != 2 {
		t.Errorf("the filter is %s", o.Filter)
	}
	for i, name := range []string{"enqueued_after", "enqueued_before", "finished_after", "finished_before"} {
		text, _ := times[name].(string)
		if got, err := time.Parse(time.RFC3339Nano, text); err != nil || !got.Equal(at.Add(time.Duration(i)*time.Hour)) {
			t.Errorf("%s is %v", name, times[name])
		}
	}
	if o.What != weir.OperationRetry || o.BeganBy != "ada" || o.State != weir.OperationRunning || o.Changed == nil || *o.Changed != 0 || time.Since(o.BeganAt) > time.Hour {
		t.Errorf("the operation is %+v", o)
	}
	moving, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationMove, Filter: weir.JobFilter{Queue: "q"}, To: weir.MoveTo{Queue: "r", Priority: 4}})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := r.client.StopOperation(t.Context(), id, "grace"); err != nil || state != weir.OperationStopped {
		t.Errorf("stopping it: %s, %v", state, err)
	}
	all, err := r.client.Operations(t.Context(), weir.OperationsParams{Limit: 1})
	if err != nil || len(all) != 1 || all[0].ID != moving || all[0].ToQueue != "r" || all[0].ToPriority != 4 {
		t.Errorf("the newest are %+v, %v", all, err)
	}
	all, err = r.client.Operations(t.Context(), weir.OperationsParams{Before: moving})
	if err != nil || len(all) != 1 || all[0].ID != id || all[0].StoppedBy != "grace" {
		t.Errorf("those before are %+v, %v", all, err)
	}
}

// TestJobsAreListedByArgsAndTime: the fields of JobsParams reach the list.
func TestJobsAreListedByArgsAndTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 3 {
		if _, err := r.client.Enqueue(t.Context(), number{40 + i}, nil); err != nil {
			t.Fatal(err)
		}
	}
	broken := r.enqueue(7, &weir.Options{Queue: "broken"})
	r.work(func(context.Context, *weir.Job[number]) error { return weir.Fail(errors.New("no 7")) }, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"broken": 1} })
	r.await(broken, weir.StateFailed)
	failed := []weir.State{weir.StateFailed}
	for _, c := range []struct {
		params weir.JobsParams
		want   int
	}{
		{weir.JobsParams{}, 4}, {weir.JobsParams{Text: ": 41}"}, 1}, {weir.JobsParams{Text: "nothing"}, 0},
		{weir.JobsParams{Text: "4", EnqueuedAfter: time.Now().Add(-time.Hour), EnqueuedBefore: time.Now().Add(time.Hour)}, 3},
		{weir.JobsParams{EnqueuedAfter: time.Now().Add(time.Hour)}, 0}, {weir.JobsParams{EnqueuedBefore: time.Now().Add(-time.Hour)}, 0},
		{weir.JobsParams{States: failed, Shape: "no <n>"}, 1}, {weir.JobsParams{States: failed, Shape: "no"}, 0}, {weir.JobsParams{FinishedAfter: time.Now().Add(-time.Hour)}, 1},
		{weir.JobsParams{FinishedAfter: time.Now().Add(time.Hour)}, 0}, {weir.JobsParams{FinishedBefore: time.Now().Add(time.Hour)}, 1}, {weir.JobsParams{FinishedBefore: time.Now().Add(-time.Hour)}, 0},
	} {
		page, err := r.client.Jobs(t.Context(), c.params)
		if err != nil || len(page.Jobs) != c.want {
			t.Errorf("%+v: %d jobs, %v; want %d", c.params, len(page.Jobs), err, c.want)
		}
	}
}
