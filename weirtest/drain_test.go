package weirtest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirtest"
)

// TestDrainWorksWhatIsAvailableAndWhatThatEnqueues: Drain works all available jobs, those that their handlers enqueue, and with Until those that are scheduled.
func TestDrainWorksWhatIsAvailableAndWhatThatEnqueues(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[sendMail]) error {
		switch job.Args.To {
		case "nobody":
			return weir.Fail(errDown)
		case "later":
			return weir.RetryAfter(time.Hour, errDown)
		}
		job.SetOutput("sent")
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := client.EnqueueTx(ctx, tx, charge{1}, &weir.Options{Priority: 1}); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	})
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[charge]) error {
		if job.PutOff == 0 {
			return weir.Snooze(24 * time.Hour)
		}
		return nil
	})
	config := weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 8, "money": 2}, Logger: new(pgtest.Log).Logger()}
	var ids []int64
	for _, to := range []string{"ada", "nobody", "later", "cancelled"} {
		job, err := client.Enqueue(t.Context(), sendMail{To: to}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.ID)
	}
	if _, err := client.CancelJob(t.Context(), ids[3]); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Enqueue(t.Context(), sendMail{To: "elsewhere"}, &weir.Options{Queue: "mail"}); err != nil {
		t.Fatal(err)
	}

	type end struct {
		kind    string
		attempt int
		outcome weir.Outcome
	}
	ends := func(all []weirtest.Ended) (short []end) {
		for _, e := range all {
			short = append(short, end{e.Kind, e.Attempt, e.Outcome})
			if info, err := client.Job(t.Context(), e.ID); err != nil || e.Outcome == weir.OutcomeCompleted != (info.State == weir.StateCompleted) && info.Attempt == e.Attempt && info.State != weir.StateScheduled {
				t.Errorf("%+v is %+v (%v) in the database", e, info, err)
			}
		}
		return short
	}
	all := weirtest.Drain(t.Context(), t, client, config, nil)
	want := []end{
		{"send_mail", 1, weir.OutcomeCompleted}, {"send_mail", 1, weir.OutcomeFailed}, {"send_mail", 1, weir.OutcomeRetried}, {"send_mail", 1, weir.OutcomeCancelled},
		{"charge", 1, weir.OutcomeSnoozed},
	}
	if got := ends(all); !slices.Equal(got, want) {
		t.Fatalf("the attempts ended %v, want %v", got, want)
	}
	if !all[0].InTx || all[0].Err != nil || !errors.Is(all[1].Err, errDown) || all[2].After != time.Hour || all[4].After != 24*time.Hour || string(all[0].Args) != `{"to": "ada"}` {
		t.Errorf("ended %+v", all)
	}
	if all := weirtest.Drain(t.Context(), t, client, config, nil); len(all) > 0 {
		t.Errorf("the second Drain worked %+v, want nothing", all)
	}
	all = weirtest.Drain(t.Context(), t, client, config, &weirtest.DrainOptions{Until: time.Now().Add(90 * time.Minute)})
	if len(all) == 1 && !all[0].ReadyAt.After(all[0].EnqueuedAt) {
		t.Errorf("an attempt that was scheduled has ReadyAt %v, when it was enqueued", all[0].ReadyAt)
	}
	if got, want := ends(all), []end{{"send_mail", 2, weir.OutcomeRetried}}; !slices.Equal(got, want) {
		t.Errorf("with Until in 90 minutes, the attempts ended %v, want %v", got, want)
	}
	all = weirtest.Drain(t.Context(), t, client, config, &weirtest.DrainOptions{Until: time.Now().Add(25 * time.Hour)})
	if got, want := ends(all), []end{{"send_mail", 3, weir.OutcomeRetried}, {"charge", 1, weir.OutcomeCompleted}}; !slices.Equal(got, want) {
		t.Errorf("with Until in 25 hours, the attempts ended %v, want %v", got, want)
	}
	weirtest.RequireManyEnqueued(t, client, []weir.NewJob{{Args: sendMail{To: "elsewhere"}}, {Args: sendMail{To: "later"}}})
	workers, err := client.Workers(t.Context())
	if err != nil || len(workers) != 4 || slices.ContainsFunc(workers, func(w weir.WorkerInfo) bool { return w.State != "ended" }) {
		t.Errorf("workers are left: %+v (%v)", workers, err)
	}
}

// TestDrainSaysWhatKeepsItFromAnEnd: a handler that enqueues its own kind forever fails the test with the queue and the kind.
func TestDrainSaysWhatKeepsItFromAnEnd(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	again := handle(func(ctx context.Context, job *weir.Job[charge]) error {
		_, err := client.Enqueue(ctx, job.Args, nil)
		return err
	})
	enqueue := func() {
		t.Helper()
		if _, err := client.Enqueue(t.Context(), charge{1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	enqueue()
	wantFailure(t, func(t testing.TB) { weirtest.Drain(t.Context(), t, client, again, &weirtest.DrainOptions{Limit: 5}) },
		"5 attempts have run, and more wait in queue money", "of kind charge, which completed")

	// If a handler ends its test, its attempt is recorded as failed, and no job is left running.
	wantFailure(t, func(t testing.TB) {
		weirtest.Drain(t.Context(), t, client, handle(func(context.Context, *weir.Job[charge]) error { t.Fatal("seen enough"); return nil }), nil)
	}, "seen enough")
	info := weirtest.RequireEnqueued(t, client, charge{1}, nil)
	if info.Attempt != 2 {
		t.Errorf("the job is %+v, want its next attempt waiting", info)
	}

	ctx, cancel := context.WithCancel(t.Context())
	wantFailure(t, func(t testing.TB) {
		weirtest.Drain(ctx, t, client, handle(func(ctx context.Context, _ *weir.Job[charge]) error { cancel(); <-ctx.Done(); return ctx.Err() }),
			&weirtest.DrainOptions{Until: time.Now().Add(time.Hour)})
	}, "context canceled")
	wantFailure(t, func(t testing.TB) { weirtest.Drain(t.Context(), t, client, again, &weirtest.DrainOptions{Limit: -1}) }, "must not be negative, got -1")
	if page, err := client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateRunning}}); err != nil || len(page.Jobs) > 0 {
		t.Errorf("jobs are still running: %+v (%v)", page, err)
	}
}

// TestAJobThatIsGroupedIsDrainedAlone: Drain and Work run a job of a group handler at once, as a group of one.
func TestAJobThatIsGroupedIsDrainedAlone(t *testing.T) {
	t.Parallel()
	client := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	for range 3 {
		if _, err := client.Enqueue(t.Context(), sendMail{To: "ada"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	handlers := weir.NewHandlers()
	weir.HandleGroup(handlers, weir.GroupOptions[sendMail]{Size: 10, Wait: time.Hour}, func(_ context.Context, jobs []*weir.GroupJob[sendMail]) error {
		if len(jobs) != 1 {
			t.Errorf("a group of %d", len(jobs))
		}
		return nil
	})
	config := weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 8}, Logger: new(pgtest.Log).Logger()}
	if all := weirtest.Drain(t.Context(), t, client, config, nil); len(all) != 3 || config.Queues["default"] != 8 {
		t.Errorf("drained %d jobs, and the configuration is %v", len(all), config.Queues)
	}
	if got := weirtest.Work(t.Context(), t, config, &weir.Job[sendMail]{Args: sendMail{To: "ada"}}); got.Outcome != weir.OutcomeCompleted {
		t.Errorf("the job ended %s", got.Outcome)
	}
}

// TestDrainFindsWhatIsBehindManyCancelledJobs: a claim that only ends cancelled jobs is not the end.
func TestDrainFindsWhatIsBehindManyCancelledJobs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	for range 2 {
		if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue_many(array_fill('default'::text, ARRAY[10000]), array_fill('charge'::text, ARRAY[10000]))`); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.CancelWhere(t.Context(), weir.JobFilter{Queue: "default"}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Enqueue(t.Context(), sendMail{To: "ada"}, nil); err != nil {
		t.Fatal(err)
	}
	worked := 0
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[sendMail]) error {
		worked++
		return nil
	})
	config := weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Logger: new(pgtest.Log).Logger()}
	weirtest.Drain(t.Context(), t, client, config, nil)
	if worked != 1 {
		t.Errorf("worked %d jobs, want 1", worked)
	}
}

// TestDrainWorksTheCallbacksOfFlows: when the members of a flow have ended, its callback is worked in the same call.
func TestDrainWorksTheCallbacksOfFlows(t *testing.T) {
	t.Parallel()
	client := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[sendMail]) error { return nil })
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[charge]) error {
		if flow := job.EndedFlow(); flow == nil || flow.Name != "mailing" || flow.Completed != 2 {
			t.Errorf("the callback is told %+v", flow)
		}
		return nil
	})
	_, err := client.Flow(t.Context(), weir.Flow{Name: "mailing", OnSuccess: weir.NewJob{Args: charge{1}}}, weir.NewJob{Args: sendMail{To: "a"}}, weir.NewJob{Args: sendMail{To: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if all := weirtest.Drain(t.Context(), t, client, weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1, "money": 1}}, nil); len(all) != 3 {
		t.Errorf("worked %d attempts, want 3", len(all))
	}
}
