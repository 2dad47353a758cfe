package weir_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir"
)

// mailed is a kind with its own options.
type mailed struct {
	To string `json:"to"`
}

func (mailed) Kind() string { return "mailed" }
func (mailed) EnqueueOptions() weir.Options {
	return weir.Options{Queue: "mail", Priority: 1, Meta: map[string]int{"tries": 0}}
}

// seen is a recorded call of an enqueue middleware.
type seen struct {
	own    bool
	queues []string
}

// TestEveryEnqueueGoesThroughTheMiddleware: middleware is called for every enqueue, in its own transaction or the caller's, with pgx or
// database/sql, for one job or many.
func TestEveryEnqueueGoesThroughTheMiddleware(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var calls []seen
	client := r.client.WithMiddleware(func(next weir.EnqueueFunc) weir.EnqueueFunc {
		return func(ctx context.Context, tx weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
			call := seen{own: tx == nil}
			for _, j := range jobs {
				call.queues = append(call.queues, j.Options.Queue)
				if err := j.Options.SetMeta("tenant", 7); err != nil {
					return nil, err
				}
			}
			calls = append(calls, call)
			return next(ctx, tx, jobs)
		}
	})
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	stdTx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	shared := &weir.Options{Queue: "shared", Meta: map[string]any{"a": 1}}
	var all []weir.Enqueued
	add := func(some []weir.Enqueued, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	one := func(job weir.Enqueued, err error) {
		t.Helper()
		add([]weir.Enqueued{job}, err)
	}
	one(client.Enqueue(t.Context(), number{1}, nil))
	one(client.EnqueueTx(t.Context(), tx, mailed{"ada"}, nil))
	add(client.EnqueueMany(t.Context(), []weir.NewJob{{Args: number{2}, Options: shared}, {Args: number{3}, Options: shared}}))
	add(client.EnqueueManyTx(t.Context(), tx, []weir.NewJob{{Args: number{4}}}))
	one(client.EnqueueTx(t.Context(), weir.SQLTx(stdTx), number{5}, shared))
	add(client.EnqueueManyTx(t.Context(), weir.SQLTx(stdTx), []weir.NewJob{{Args: number{6}}, {Args: mailed{"bob"}, Options: shared}}))
	if err := errors.Join(tx.Commit(t.Context()), stdTx.Commit()); err != nil {
		t.Fatal(err)
	}
	want := []seen{
		{true, []string{"default"}}, {false, []string{"mail"}}, {true, []string{"shared", "shared"}}, {false, []string{"default"}},
		{false, []string{"shared"}}, {false, []string{"default", "shared"}},
	}
	if fmt.Sprint(calls) != fmt.Sprint(want) {
		t.Errorf("the middleware saw %v, want %v", calls, want)
	}
	if got, _ := json.Marshal(shared); string(got) != `{"Queue":"shared","Priority":0,"RunAt":"0001-01-01T00:00:00Z","MaxAttempts":0,"Meta":{"a":1},"Flow":0,"Once":"","Key":"","Unique":null}` {
		t.Errorf("the caller's options have changed to %s", got)
	}
	metas := []string{`{"tenant": 7}`, `{"tries": 0, "tenant": 7}`, `{"a": 1, "tenant": 7}`, `{"a": 1, "tenant": 7}`, `{"tenant": 7}`, `{"a": 1, "tenant": 7}`, `{"tenant": 7}`, `{"a": 1, "tenant": 7}`}
	for i, job := range all {
		info, err := r.client.Job(t.Context(), job.ID)
		if err != nil || string(info.Meta) != metas[i] {
			t.Errorf("job %d of %d has the meta %s (%v), want %s", i+1, len(all), info.Meta, err, metas[i])
		}
	}
	// The kind's options are filled in only once, so a middleware may remove them.
	bare, err := r.client.WithMiddleware(func(next weir.EnqueueFunc) weir.EnqueueFunc {
		return func(ctx context.Context, tx weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
			jobs[0].Options = &weir.Options{}
			return next(ctx, tx, jobs)
		}
	}).Enqueue(t.Context(), mailed{"cy"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := r.client.Job(t.Context(), bare.ID); err != nil || info.Queue != "default" || info.Meta != nil {
		t.Errorf("the job is %+v (%v), want one without the options of its kind", info, err)
	}
}

// TestTheFirstEnqueueMiddlewareIsOutermost: middleware is called in the order in which it was given.
func TestTheFirstEnqueueMiddlewareIsOutermost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var order []string
	layer := func(name string) func(weir.EnqueueFunc) weir.EnqueueFunc {
		return func(next weir.EnqueueFunc) weir.EnqueueFunc {
			return func(ctx context.Context, tx weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
				order = append(order, name)
				all, err := next(ctx, tx, jobs)
				order = append(order, "/"+name)
				return all, err
			}
		}
	}
	client := r.client.WithMiddleware(layer("c")).WithMiddleware(layer("a"), layer("b"))
	if _, err := client.Enqueue(t.Context(), number{1}, nil); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, " "); got != "a b c /c /b /a" {
		t.Errorf("the calls were %s, want a b c /c /b /a", got)
	}
	if _, err := r.client.Enqueue(t.Context(), number{1}, nil); err != nil || len(order) != 6 {
		t.Errorf("the original client, without middleware, called %v (%v)", order[6:], err)
	}
}

// TestEnqueueMiddlewareThatBreaksItsContractIsSaid: a broken contract is an error, a middleware's own error is returned to the caller, and
// nothing is enqueued.
func TestEnqueueMiddlewareThatBreaksItsContractIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errNo := errors.New("not today")
	answer := func(all []weir.Enqueued, err error) *weir.Client {
		return r.client.WithMiddleware(func(weir.EnqueueFunc) weir.EnqueueFunc {
			return func(context.Context, weir.Tx, []weir.NewJob) ([]weir.Enqueued, error) { return all, err }
		})
	}
	if _, err := answer(nil, errNo).Enqueue(t.Context(), number{1}, nil); !errors.Is(err, errNo) {
		t.Errorf("got %v, want the middleware's error", err)
	}
	if _, err := answer(nil, nil).Enqueue(t.Context(), number{1}, nil); err == nil || !strings.Contains(err.Error(), "0 results for 1 jobs") {
		t.Errorf("got %v, want an error that says what is missing", err)
	}
	if _, err := answer(nil, nil).Enqueue(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "no args") {
		t.Errorf("got %v, want an error that says that there are no args", err)
	}
	for _, client := range []*weir.Client{r.client, answer(nil, nil)} {
		_, one := client.EnqueueTx(t.Context(), nil, number{1}, nil)
		_, many := client.EnqueueManyTx(t.Context(), nil, []weir.NewJob{{Args: number{1}}})
		if one == nil || many == nil || !strings.Contains(one.Error(), "transaction is nil") {
			t.Errorf("got %v and %v, want errors: the transaction is nil", one, many)
		}
	}
	var bad weir.Options
	bad.Meta = []int{1}
	if err := bad.SetMeta("a", 1); err == nil || !strings.Contains(err.Error(), "[]int") {
		t.Errorf("got %v, want an error that names the type", err)
	}
	var jobs int
	if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.job`).Scan(&jobs); err != nil || jobs != 0 {
		t.Errorf("there are %d jobs (%v), want none", jobs, err)
	}
}

// TestMiddlewareClassifiesWhatHandlersReturn: middleware receives errors, panics and timeouts, and the error that it returns counts.
func TestMiddlewareClassifiesWhatHandlersReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errGone, errBusy := errors.New("gone"), errors.New("busy")
	classify := func(next weir.WorkFunc) weir.WorkFunc {
		return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
			err := next(ctx, job)
			var panicked *weir.PanicError
			switch {
			case errors.Is(err, errGone):
				return weir.Cancel(err)
			case errors.Is(err, errBusy) && job.PutOff == 0:
				return weir.Snooze(time.Millisecond)
			case errors.Is(err, errBusy):
				return nil
			case errors.As(err, &panicked), errors.Is(err, context.DeadlineExceeded):
				return weir.Fail(err)
			}
			return err
		}
	}
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		switch job.Args.N {
		case 1:
			return fmt.Errorf("the order is %w", errGone)
		case 2:
			return errBusy
		case 3:
			panic("ouch")
		case 4:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, func(c *weir.WorkerConfig) {
		c.Middleware = []func(weir.WorkFunc) weir.WorkFunc{classify}
		c.Timeout = 500 * time.Millisecond
	})
	for n, want := range map[int]struct {
		state weir.State
		error string
	}{
		1: {weir.StateCancelled, "the order is gone"},
		2: {weir.StateCompleted, ""},
		3: {weir.StateFailed, "panic: ouch"},
		4: {weir.StateFailed, "timeout"},
	} {
		job := r.await(r.enqueue(n, nil), want.state)
		if job.Attempt != 1 || want.error != "" && (job.Error == nil || !strings.Contains(*job.Error, want.error)) {
			t.Errorf("the job of handler %d is %+v, want one attempt that ended with %q", n, job, want.error)
		}
	}
}

// TestWorkMiddlewareSeesTheAttemptAndMayChangeIt: it sees args before they are decoded, and may change them, the context and the kind; the
// first is outermost.
func TestWorkMiddlewareSeesTheAttemptAndMayChangeIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	type key struct{}
	var mu sync.Mutex
	var order []string
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, text)
	}
	outer := func(next weir.WorkFunc) weir.WorkFunc {
		return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
			note(fmt.Sprintf("outer %s %s %d %s %s", job.Kind, job.Queue, job.Attempt, job.Args, job.Meta))
			err := next(context.WithValue(ctx, key{}, "outer"), job)
			note(fmt.Sprint("outer got ", err))
			return err
		}
	}
	inner := func(next weir.WorkFunc) weir.WorkFunc {
		return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
			note(fmt.Sprint("inner after ", ctx.Value(key{})))
			if job.Kind == "number.v1" {
				job.Kind, job.Args = "number", json.RawMessage(`{"n": 8}`)
			}
			err := next(ctx, job)
			job.SetOutput("set by the middleware")
			return err
		}
	}
	r.work(func(ctx context.Context, job *weir.Job[number]) error {
		note(fmt.Sprintf("handler %d %v", job.Args.N, ctx.Value(key{})))
		return nil
	}, func(c *weir.WorkerConfig) { c.Middleware = []func(weir.WorkFunc) weir.WorkFunc{outer, inner} })
	var id int64
	if err := r.pool.QueryRow(t.Context(), `SELECT weir.enqueue('default', 'number.v1', '{"old": true}', meta => '{"tenant": 7}')`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	job := r.await(id, weir.StateCompleted)
	if job.Output == nil || *job.Output != "set by the middleware" || job.Kind != "number.v1" {
		t.Errorf("the job is %+v", job)
	}
	want := []string{`outer number.v1 default 1 {"old": true} {"tenant": 7}`, "inner after outer", "handler 8 outer", "outer got <nil>"}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, want) {
		t.Errorf("called\n%s\nwant\n%s", strings.Join(order, "\n"), strings.Join(want, "\n"))
	}
}

// TestWorkMiddlewareIsPartOfTheAttempt: its panic fails the attempt, cancellation and stopping reach it, and it receives an error for a
// kind without a handler, which releases the job.
func TestWorkMiddlewareIsPartOfTheAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	started, unknown := make(chan struct{}, 1), make(chan error, 10)
	r.work(func(ctx context.Context, job *weir.Job[number]) error { return nil }, func(c *weir.WorkerConfig) {
		c.Middleware = []func(weir.WorkFunc) weir.WorkFunc{func(next weir.WorkFunc) weir.WorkFunc {
			return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
				switch {
				case job.Kind == "nobody's":
					err := next(ctx, job)
					unknown <- err
					return err
				case string(job.Args) == `{"n": 1}`:
					panic("ouch")
				case string(job.Args) == `{"n": 2}`:
					started <- struct{}{}
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return next(ctx, job)
			}
		}}
	})
	panicked := r.await(r.enqueue(1, &weir.Options{MaxAttempts: 1}), weir.StateFailed)
	if panicked.Error == nil || !strings.HasPrefix(*panicked.Error, "panic: ouch") {
		t.Errorf("the job is %+v, want a failed attempt", panicked)
	}
	id := r.enqueue(2, nil)
	receive(t, started, "the job starts")
	if state, err := r.client.CancelJob(t.Context(), id); err != nil || state != weir.StateRunning {
		t.Fatal(state, err)
	}
	r.await(id, weir.StateCancelled)
	if _, err := r.pool.Exec(t.Context(), `SELECT weir.enqueue('default', 'nobody''s')`); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, unknown, "the unknown kind"); !errors.Is(err, weir.ErrUnknownKind) {
		t.Errorf("the middleware got %v, want ErrUnknownKind", err)
	}
}

// TestMiddlewareThatIsNilIsRefused: nil in a list of middleware is an error that names the list.
func TestMiddlewareThatIsNilIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(context.Context, *weir.Job[number]) error { return nil })
	gone := func(weir.WorkFunc) weir.WorkFunc { return nil }
	for _, middleware := range [][]func(weir.WorkFunc) weir.WorkFunc{{nil}, {gone}} {
		_, err := r.client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"default": 1}, Middleware: middleware})
		if err == nil || !strings.Contains(err.Error(), "middleware 0") {
			t.Errorf("got %v, want an error that names the middleware", err)
		}
	}
}

// TestReservedKeysOfMetaAreRefused: keys of meta that begin with weir. are refused by all that enqueues, except the one of a trace, which programs may
// set. Deeper keys, and values, are the program's own.
func TestReservedKeysOfMetaAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, meta := range []any{map[string]int{"weir.own": 1}, json.RawMessage(`{"a": 1, "weir.otel": {}, "weir.own": {}}`)} {
		o := &weir.Options{Meta: meta}
		_, one := r.client.Enqueue(t.Context(), number{1}, o)
		_, many := r.client.EnqueueMany(t.Context(), []weir.NewJob{{Args: number{1}, Options: o}})
		_, schedule := r.client.SetSchedule(t.Context(), weir.Schedule{Name: "s", Schedule: "every 5m", Args: number{1}, Options: o})
		for _, err := range []error{one, many, schedule} {
			if err == nil || !strings.Contains(err.Error(), `the key "weir.own" of meta is reserved`) {
				t.Errorf("meta %v: got %v, want an error that names the key", meta, err)
			}
		}
	}
	for _, meta := range []string{`{"weir.otel": {"traceparent": "x"}}`, `{"weir": 1, "a": {"weir.own": 1}, "b": "weir.own"}`} {
		if _, err := r.client.Enqueue(t.Context(), number{1}, &weir.Options{Meta: json.RawMessage(meta)}); err != nil {
			t.Errorf("meta %s: %v", meta, err)
		}
	}
}
