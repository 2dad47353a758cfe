package weir_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

// SendMail is a kind of job.
type SendMail struct {
	To string `json:"to"`
}

func (SendMail) Kind() string { return "send_mail" }

var (
	ctx  context.Context
	pool *pgxpool.Pool
)

// The job runs if the order is committed, and only then.
func ExampleClient_EnqueueTx() {
	client := weir.NewClient(pool)
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (buyer) VALUES ('ada@example.org')`); err != nil {
			return err
		}
		_, err := client.EnqueueTx(ctx, tx, SendMail{To: "ada@example.org"}, &weir.Options{
			Queue: "mail",
			RunAt: time.Now().Add(10 * time.Minute),
		})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A worker that stops gracefully at Ctrl-C or SIGTERM.
func ExampleWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		fmt.Println("mail to", job.Args.To, "attempt", job.Attempt)
		return nil
	})
	worker, err := weir.NewClient(pool).NewWorker(weir.WorkerConfig{
		Handlers: handlers,
		Queues:   map[string]int{"mail": 8},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// The effect and the job's completion commit together, so the effect happens exactly once.
func ExampleJobMeta_CompleteTx() {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE buyers SET mails = mails + 1 WHERE address = $1`, job.Args.To); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	})
}

// What a handler returns says what becomes of the job; any other error is retried with backoff.
func ExampleFail() {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		text, err := os.ReadFile("mail.txt")
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return weir.Fail(err) // trying again is no use
		case err != nil:
			return weir.RetryAfter(time.Minute, err)
		case len(text) == 0:
			return weir.Snooze(time.Hour) // not yet; no attempt is used up
		}
		return nil
	})
}
