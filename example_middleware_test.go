package weir_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/weir-pg/weir"
)

type tenantKey struct{}

// withTenant stores the tenant in the meta of each job.
func withTenant(next weir.EnqueueFunc) weir.EnqueueFunc {
	return func(ctx context.Context, tx weir.Tx, jobs []weir.NewJob) ([]weir.Enqueued, error) {
		if tenant, ok := ctx.Value(tenantKey{}).(string); ok {
			for _, job := range jobs {
				if err := job.Options.SetMeta("tenant", tenant); err != nil {
					return nil, err
				}
			}
		}
		return next(ctx, tx, jobs)
	}
}

// forTenant passes the tenant of the job to handlers.
func forTenant(next weir.WorkFunc) weir.WorkFunc {
	return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
		var meta struct{ Tenant string }
		if job.Meta != nil {
			if err := json.Unmarshal(job.Meta, &meta); err != nil {
				return weir.Fail(err)
			}
		}
		return next(context.WithValue(ctx, tenantKey{}, meta.Tenant), job)
	}
}

// Middleware around enqueue stores a value in each job's meta, and middleware around work reads it.
func ExampleClient_WithMiddleware() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect()).WithMiddleware(withTenant)

	if _, err := client.Enqueue(context.WithValue(ctx, tenantKey{}, "acme"), SendMail{To: "ada@example.org"}, &weir.Options{Queue: "tenants"}); err != nil {
		log.Fatal(err)
	}

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		fmt.Println("mail to", job.Args.To, "of", ctx.Value(tenantKey{}))
		stop() // ends this example
		return nil
	})
	worker, err := client.NewWorker(weir.WorkerConfig{
		Handlers:   handlers,
		Queues:     map[string]int{"tenants": 8},
		Middleware: []func(weir.WorkFunc) weir.WorkFunc{forTenant},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: mail to ada@example.org of acme
}

var (
	errGone    = errors.New("410 Gone")
	errTooMany = errors.New("429 Too Many Requests")
)

// Middleware decides for all kinds of jobs how an error ends the attempt.
func ExampleWorkFunc() {
	classify := func(next weir.WorkFunc) weir.WorkFunc {
		return func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
			err := next(ctx, job)
			var panicked *weir.PanicError
			switch {
			case errors.Is(err, errGone):
				return weir.Cancel(err) // no longer needed
			case errors.Is(err, errTooMany):
				return weir.Snooze(time.Minute) // uses up no attempt
			case errors.As(err, &panicked):
				return weir.Fail(err) // trying again is useless
			}
			return err // nil, or an error to retry
		}
	}

	handler := classify(func(context.Context, *weir.Job[json.RawMessage]) error {
		return fmt.Errorf("call the shop: %w", errTooMany)
	})
	fmt.Println(handler(context.Background(), &weir.Job[json.RawMessage]{}))
	// Output: snoozed for 1m0s
}
