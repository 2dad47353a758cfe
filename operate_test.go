package weir_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"database/sql"

	"github.com/weir-pg/weir"
)

// TestWhatThereIsNotIsNotFound: every call about a missing job, queue or flow returns ErrNotFound.
func TestWhatThereIsNotIsNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for what, call := range map[string]func() error{
		"job":     func() error { _, err := r.client.Job(t.Context(), 7); return err },
		"job, tx": func() error { _, err := r.client.JobTx(t.Context(), r.pool, 7); return err },
		"cancel":  func() error { _, err := r.client.CancelJob(t.Context(), 7); return err },
		"retry":   func() error { _, err := r.client.RetryJob(t.Context(), 7); return err },
		"pause":   func() error { return r.client.PauseQueue(t.Context(), "none") },
		"resume":  func() error { return r.client.ResumeQueue(t.Context(), "none") },

		"flow info":   func() error { _, err := r.client.FlowInfo(t.Context(), 7); return err },
		"seal flow":   func() error { return r.client.SealFlow(t.Context(), 7) },
		"cancel flow": func() error { _, err := r.client.CancelFlow(t.Context(), 7); return err },
		"retry flow":  func() error { _, err := r.client.RetryFlow(t.Context(), 7, nil); return err },

		"flow running": func() error { _, err := r.client.FlowRunning(t.Context(), 7); return err },
		"flows within": func() error { _, err := r.client.FlowsWithin(t.Context(), 7, 0, 0); return err },
		"flow's tasks": func() error { _, err := r.client.Tasks(t.Context(), 7, 0, 0); return err },
		"add tasks": func() error {
			_, err := r.client.AddTasks(t.Context(), 7, weir.Task{Name: "x", Job: weir.NewJob{Args: number{1}}})
			return err
		},
		"enqueue": func() error { _, err := r.client.Enqueue(t.Context(), number{1}, &weir.Options{Flow: 7}); return err },
		"enqueue once": func() error {
			_, err := r.client.Enqueue(t.Context(), number{1}, &weir.Options{Flow: 7, Once: "x"})
			return err
		},
		"enqueue many": func() error {
			_, err := r.client.EnqueueMany(t.Context(), []weir.NewJob{{Args: number{1}, Options: &weir.Options{Flow: 7}}})
			return err
		},
		"flow's parent": func() error { _, err := r.client.Flow(t.Context(), weir.Flow{Name: "f", Parent: 7}); return err },
		"increment":     func() error { return r.client.IncrementTx(t.Context(), r.pool, 7, "n", 1) },
		"flow's outputs": func() error {
			for _, err := range r.client.FlowOutputs(t.Context(), 7) {
				return err
			}
			return nil
		},

		"cancel where": func() error { return r.client.CancelWhere(t.Context(), weir.JobFilter{Queue: "none"}) },
		"retry where": func() error {
			_, err := r.client.RetryWhere(t.Context(), weir.JobFilter{Queue: "none"}, nil)
			return err
		},
		"delete where": func() error {
			_, err := r.client.DeleteWhere(t.Context(), weir.JobFilter{Queue: "none"}, nil)
			return err
		},
		"move where": func() error {
			_, err := r.client.MoveWhere(t.Context(), weir.JobFilter{Queue: "none"}, weir.MoveTo{Priority: 1}, nil)
			return err
		},
		"begin operation": func() error {
			_, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationRetry, Filter: weir.JobFilter{Queue: "none"}})
			return err
		},
		"operation":      func() error { _, err := r.client.Operation(t.Context(), 7); return err },
		"stop operation": func() error { _, err := r.client.StopOperation(t.Context(), 7, ""); return err },
	} {
		if err := call(); !errors.Is(err, weir.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestATransactionSeesAndCancelsWhatItHasEnqueued: a transaction can look up and cancel its own jobs, with pgx and with database/sql; after
// a rollback, no job exists.
func TestATransactionSeesAndCancelsWhatItHasEnqueued(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	pgxTx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pgxTx.Rollback(t.Context())
	sqlTx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sqlTx.Rollback()
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	for name, tx := range map[string]weir.Tx{"pgx": pgxTx, "database/sql": weir.SQLTx(sqlTx)} {
		job, err := r.client.EnqueueTx(t.Context(), tx, number{1}, &weir.Options{RunAt: at, Meta: map[string]int{"a": 1}})
		if err != nil {
			t.Fatal(err)
		}
		info, err := r.client.JobTx(t.Context(), tx, job.ID)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if info.State != weir.StateScheduled || info.Kind != "number" || string(info.Args) != `{"n": 1}` || info.RunAt == nil || !info.RunAt.Equal(at) || info.Attempt != 1 {
			t.Errorf("%s: the transaction sees %+v", name, info)
		}
		plain, err := r.client.EnqueueTx(t.Context(), tx, number{2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := r.client.JobTx(t.Context(), tx, plain.ID); err != nil || info.Meta != nil {
			t.Errorf("%s: the meta of a job that has none is %q (%v)", name, info.Meta, err)
		}
		if state, err := r.client.CancelJobTx(t.Context(), tx, job.ID); err != nil || state != weir.StateCancelled {
			t.Errorf("%s: cancel: %s, %v", name, state, err)
		}
		if _, err := r.client.Job(t.Context(), job.ID); !errors.Is(err, weir.ErrNotFound) {
			t.Errorf("%s: others see the job before the commit: %v", name, err)
		}
	}
	done := r.enqueue(2, nil)
	if state, err := r.client.CancelJob(t.Context(), done); err != nil || state != weir.StateCancelled {
		t.Fatal(state, err)
	}
	if state, err := r.client.RetryJobTx(t.Context(), pgxTx, done); err != nil || state != weir.StateAvailable {
		t.Errorf("retry: %s, %v", state, err)
	}
	if err := pgxTx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := r.client.Job(t.Context(), done); err != nil || info.State != weir.StateCancelled {
		t.Errorf("after the rollback, the job is %+v, %v", info, err)
	}
}

// urgent is a kind with its own options.
type urgent struct{ N int }

func (urgent) Kind() string { return "urgent" }

func (urgent) EnqueueOptions() weir.Options {
	return weir.Options{Queue: "urgent", Priority: 1, MaxAttempts: 3}
}

// TestOptionsOfAKindAreDefaults: a kind's options apply unless a call sets the same field.
func TestOptionsOfAKindAreDefaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all, err := r.client.EnqueueMany(t.Context(), []weir.NewJob{{Args: urgent{1}}, {Args: urgent{2}, Options: &weir.Options{Priority: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, priority := range []int{1, 4} {
		info, err := r.client.Job(t.Context(), all[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		if info.Queue != "urgent" || info.Priority != priority || info.MaxAttempts != 3 {
			t.Errorf("job %d: %+v", i, info)
		}
	}
}

// TestSettingsCanBeRead: Settings returns the values in force for the database and for a queue.
func TestSettingsCanBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(1, nil)
	if err := errors.Join(r.client.Set(t.Context(), "completed_retention", "2 days"), r.client.SetQueue(t.Context(), "default", "backoff", "5 s")); err != nil {
		t.Fatal(err)
	}
	settings, err := r.client.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range settings {
		got[s.Queue+"/"+s.Name] = s.Value
	}
	if len(got) != 11 || got["/completed_retention"] != "2 days" || got["default/ageing"] != "00:00:00" || got["default/backoff"] != "00:00:05" || got["default/backoff_limit"] != "01:00:00" {
		t.Errorf("settings: %v", got)
	}
	// Failed jobs are kept no shorter than the others, and the setting says so.
	if err := r.client.Set(t.Context(), "failed_retention", "1 hour"); err != nil {
		t.Fatal(err)
	}
	settings, err = r.client.Settings(t.Context())
	if err != nil || !slices.Contains(settings, weir.Setting{Name: "failed_retention", Value: "2 days"}) {
		t.Errorf("settings: %v, %v", settings, err)
	}
}

// TestErrorsSayWhatToDo: an error's text includes the server's hint.
func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	err := r.client.Set(t.Context(), "retentoin", "1 day")
	if err == nil || !strings.Contains(err.Error(), "retentoin") || !strings.Contains(err.Error(), "The settings are completed_retention") {
		t.Errorf("got %v", err)
	}
}

// TestANULIsRefusedByName: args and meta with a NUL character are refused with the kind, however they are enqueued; what only looks like one is not, and
// encrypted args may have one.
func TestANULIsRefusedByName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	refused := func(what, says string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), says+" a NUL character, which PostgreSQL cannot store") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := r.client.Enqueue(t.Context(), Report{"a\x00b"}, nil)
	refused("args", "the args of kind report contain", err)
	_, err = r.client.Enqueue(t.Context(), Report{`\` + "\x00"}, nil)
	refused("args with a backslash before it", "the args of kind report contain", err)
	_, err = r.client.EnqueueMany(t.Context(), []weir.NewJob{{Args: Report{}, Options: &weir.Options{Meta: map[string]string{"a\x00": ""}}}})
	refused("meta", "the meta of kind report contains", err)
	_, err = r.client.Flow(t.Context(), weir.Flow{Name: "f", OnDone: weir.NewJob{Args: Report{"\x00"}}})
	refused("a callback", "OnDone: the args of kind report contain", err)
	_, err = r.client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@daily", Args: Report{"\x00"}})
	refused("a schedule", "the args of kind report contain", err)
	if _, err = r.client.Enqueue(t.Context(), Report{`\u0000 and \\u0000`}, nil); err != nil {
		t.Errorf("a text that only looks like one: %v", err)
	}
	sealed := r.client.WithCodec(codec(t, "k1"))
	if _, err = sealed.Enqueue(t.Context(), Report{"a\x00b"}, nil); err != nil {
		t.Errorf("encrypted: %v", err)
	}
	if _, err = sealed.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "@daily", Args: Report{"\x00"}}); err != nil {
		t.Errorf("an encrypted schedule: %v", err)
	}
}

// TestARunAtOutOfRangeIsRefused: no RunAt turns into another time. One past the year 9999 is refused with the value, and any in the past means
// at once, by every way to enqueue.
func TestARunAtOutOfRangeIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ways := map[string]func(o *weir.Options) ([]weir.Enqueued, error){
		"Enqueue": func(o *weir.Options) ([]weir.Enqueued, error) {
			job, err := r.client.Enqueue(t.Context(), number{1}, o)
			return []weir.Enqueued{job}, err
		},
		"EnqueueMany": func(o *weir.Options) ([]weir.Enqueued, error) {
			return r.client.EnqueueMany(t.Context(), []weir.NewJob{{Args: number{1}, Options: o}})
		},
		"EnqueueManyTx with database/sql": func(o *weir.Options) ([]weir.Enqueued, error) {
			return r.client.EnqueueManyTx(t.Context(), weir.SQLTx(tx), []weir.NewJob{{Args: number{1}, Options: o}})
		},
	}
	last := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	for name, enqueue := range ways {
		for _, at := range []time.Time{last.Add(time.Second), time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(1<<50, 0), time.Unix(math.MaxInt64/4, 0), time.Unix(math.MaxInt64, 0)} {
			if _, err := enqueue(&weir.Options{RunAt: at}); err == nil || !strings.Contains(err.Error(), at.UTC().Format(time.RFC3339)) {
				t.Errorf("%s with a RunAt of %s: %v", name, at, err)
			}
		}
		for _, c := range []struct {
			at    time.Time
			state weir.State
		}{
			{last, weir.StateScheduled}, {last.In(time.FixedZone("east", 3600)), weir.StateScheduled}, {time.Date(1969, 1, 2, 3, 4, 5, 0, time.UTC), weir.StateAvailable},
			{time.Date(-300_000, 1, 1, 0, 0, 0, 0, time.UTC), weir.StateAvailable}, {time.Unix(math.MinInt64, 0), weir.StateAvailable},
		} {
			jobs, err := enqueue(&weir.Options{RunAt: c.at})
			if err != nil {
				t.Errorf("%s with a RunAt of %s: %v", name, c.at, err)
				continue
			}
			look := r.client.Job
			if strings.Contains(name, "database/sql") {
				look = func(ctx context.Context, id int64) (*weir.JobInfo, error) {
					return r.client.JobTx(ctx, weir.SQLTx(tx), id)
				}
			}
			info, err := look(t.Context(), jobs[0].ID)
			if err != nil {
				t.Errorf("%s: look up a job with a RunAt of %s: %v", name, c.at, err)
			} else if info.State != c.state || c.state == weir.StateScheduled && !info.RunAt.Equal(c.at) {
				t.Errorf("%s: a job with a RunAt of %s is %s, with %v", name, c.at, info.State, info.RunAt)
			}
		}
	}
	if _, err := r.client.Jobs(t.Context(), weir.JobsParams{}); err != nil {
		t.Errorf("jobs cannot be listed: %v", err)
	}
}

// TestEmptyFieldsOfAFilterAreNoConditions: an empty list or object is no condition, as a nil one is none, whichever way the statement is sent. Alone it is
// no filter.
func TestEmptyFieldsOfAFilterAreNoConditions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	empty := weir.JobFilter{Kinds: []string{}, Meta: map[string]string{}, States: []weir.State{}}
	ofQueue := empty
	ofQueue.Queue = "q"
	for name, call := range map[string]func(f weir.JobFilter) error{
		"cancel": func(f weir.JobFilter) error { return r.client.CancelWhere(t.Context(), f) },
		"cancel, database/sql": func(f weir.JobFilter) error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			return r.client.CancelWhereTx(t.Context(), weir.SQLTx(tx), f)
		},
		"retry": func(f weir.JobFilter) error { _, err := r.client.RetryWhere(t.Context(), f, nil); return err },
		"delete": func(f weir.JobFilter) error {
			f.States = nil
			_, err := r.client.DeleteWhere(t.Context(), f, nil)
			return err
		},
		"move": func(f weir.JobFilter) error {
			_, err := r.client.MoveWhere(t.Context(), f, weir.MoveTo{Priority: 1}, nil)
			return err
		},
		"operation": func(f weir.JobFilter) error {
			_, err := r.client.BeginOperation(t.Context(), weir.Operation{What: weir.OperationRetry, Filter: f})
			return err
		},
	} {
		if _, err := r.client.Enqueue(t.Context(), number{1}, &weir.Options{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		if err := call(ofQueue); err != nil {
			t.Errorf("%s with a queue and empty fields: %v", name, err)
		}
		if err := call(empty); err == nil || !strings.Contains(err.Error(), "the JobFilter is empty") {
			t.Errorf("%s with empty fields alone: %v, want that it is empty", name, err)
		}
	}
}

// TestALimitThatDoesNotFitIsNamed: a limit that is too large to be sent, or says nothing, is refused with its name, value and bounds.
func TestALimitThatDoesNotFitIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for says, limit := range map[string]weir.Limit{
		"running must be 1 to 2147483647, or 0 for unlimited, got 1099511627776": {Running: 1 << 40},
		"running must be 1 to 2147483647, or 0 for unlimited, got -1":            {Running: -1},
		"set PerKey, and Running to 1 or 0":                                      {InOrder: true},
		"the limit is empty: set Running, Rate or InOrder":                       {},
		"a Per or a Burst, and no Starts":                                        {Rate: weir.Rate{Burst: 1}},
		"Rate.Per is 9000h0m0s: it must be at most a year":                       {Rate: weir.Rate{Starts: 1, Per: 9000 * time.Hour}},
		"running must be 1 to 1000, or 0 for unlimited, got 1099511627776":       {Running: 1 << 40, PerKey: true},
		"burst must be 1 to 1000000, or 0 for the default, got 1099511627776":    {Rate: weir.Rate{Starts: 1, Burst: 1 << 40}},
	} {
		if err := r.client.SetLimit(t.Context(), "q", limit); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", limit, err, says)
		}
	}
}

// TestErrorsOfTheClientSpeakGoAndQuoteNames: what Go refuses is named by its Go names, and a name that is empty is seen to be.
func TestErrorsOfTheClientSpeakGoAndQuoteNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, now := t.Context(), time.Now()
	retry := func(f weir.JobFilter) error { _, err := r.client.RetryWhere(ctx, f, nil); return err }
	unique := func(u weir.Unique) error {
		_, err := r.client.Enqueue(ctx, number{1}, &weir.Options{Unique: &u})
		return err
	}
	begin := func(what weir.OperationKind, f weir.JobFilter) error {
		_, err := r.client.BeginOperation(ctx, weir.Operation{What: what, Filter: f})
		return err
	}
	for says, err := range map[string]error{
		`limit of queue "": the queue has no name`:                   r.client.SetLimit(ctx, "", weir.Limit{Running: 1}),
		`queue "": the queue has no name`:                            r.client.SetWeight(ctx, "", "acme", 2),
		`key "" of queue "q": it needs a key`:                        r.client.SetWeight(ctx, "q", "", 2),
		"a weight must be 0.01 to 1000, got 1001: 1 is the weight":   r.client.SetWeight(ctx, "q", "acme", 1001),
		`queue "": not found`:                                        r.client.PauseQueue(ctx, ""),
		"the JobFilter is empty: set a field besides States":         retry(weir.JobFilter{States: []weir.State{weir.StateFailed}}),
		"JobFilter.FinishedAfter must be the earlier time":           retry(weir.JobFilter{FinishedAfter: now, FinishedBefore: now.Add(-time.Hour)}),
		`unknown Operation.What "drop"`:                              begin("drop", weir.JobFilter{Queue: "q"}),
		"JobFilter.Shape selects jobs that have failed":              begin(weir.OperationMove, weir.JobFilter{Shape: "x"}),
		"JobFilter.FinishedAfter and FinishedBefore select jobs":     begin(weir.OperationCancel, weir.JobFilter{FinishedBefore: now}),
		"JobFilter.States is only for RetryWhere":                    begin(weir.OperationDelete, weir.JobFilter{Queue: "q", States: []weir.State{weir.StateFailed}}),
		"JobFilter.EnqueuedAfter must be the earlier time":           retry(weir.JobFilter{EnqueuedAfter: now, EnqueuedBefore: now.Add(-time.Hour)}),
		"Unique.Within is 9000h0m0s: it must be at most a year":      unique(weir.Unique{Within: 9000 * time.Hour}),
		`none of the fields that make the job unique: ""`:            unique(weir.Unique{Fields: []string{""}}),
		`none of the fields that make the job unique: "a b", "", id`: unique(weir.Unique{Fields: []string{"a b", "", "id"}}),
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// TestLimitsOfKeysAreNotShownAsFull: a limit of each key counts nothing, and has no room rather than none left.
func TestLimitsOfKeysAreNotShownAsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, limit := range []weir.Limit{{Running: 5}, {Running: 2, PerKey: true}} {
		if err := r.client.SetLimit(t.Context(), "q", limit); err != nil {
			t.Fatal(err)
		}
	}
	limits, err := r.client.Limits(t.Context())
	if err != nil || len(limits) != 2 {
		t.Fatalf("%+v, %v", limits, err)
	}
	if whole := limits[0]; whole.RunningNow == nil || whole.Room == nil || *whole.RunningNow != 0 || *whole.Room != 5 {
		t.Errorf("that of the queue: %+v", whole)
	}
	if keys := limits[1]; !keys.PerKey || keys.RunningNow != nil || keys.Room != nil {
		t.Errorf("that of its keys: %+v", keys)
	}
}
