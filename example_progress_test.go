package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/weir-pg/weir"
)

// An attempt sets a checkpoint from which the next one goes on, says how far it is, and keeps lines of a log.
func ExampleJobMeta_SetCheckpoint() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	job, err := client.Enqueue(ctx, SendMail{To: "everybody"}, &weir.Options{Queue: "newsletter"})
	if err != nil {
		log.Fatal(err)
	}
	readers := []string{"ada", "bob", "eve"}

	handlers := weir.NewHandlers()
	weir.HandleWith(handlers, weir.KindOptions{Retry: func(int, error) time.Duration { return 0 }}, func(ctx context.Context, job *weir.Job[SendMail]) error {
		sent := 0
		if _, err := job.Checkpoint(ctx, &sent); err != nil {
			return err
		}
		for ; sent < len(readers); sent++ {
			if job.Attempt == 1 && sent == 2 {
				return errors.New("no connection")
			}
			job.Log().Info("sent", "to", readers[sent])
			job.SetProgress(100*float64(sent+1)/float64(len(readers)), "sending")
			if err := job.SetCheckpoint(sent + 1); err != nil {
				return err
			}
		}
		stop() // ends this example
		return nil
	})
	run(ctx, client, "newsletter", handlers)

	info, err := client.Job(context.Background(), job.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(*info.Percent, *info.Message)
	for _, line := range info.Log {
		fmt.Println("attempt", line.Attempt, line.Text)
	}
	// Output:
	// attempt 1: retried (no connection)
	// attempt 2: completed (<nil>)
	// 100 sending
	// attempt 1 sent to=ada
	// attempt 1 sent to=bob
	// attempt 2 sent to=eve
}

// A handler that works in transactions sets its checkpoint in them: each step is then done exactly once.
func ExampleJobMeta_SetCheckpointTx() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool := connect()
	if _, err := pool.Exec(ctx, `CREATE TABLE invoice (month integer PRIMARY KEY)`); err != nil {
		log.Fatal(err)
	}
	client := weir.NewClient(pool)
	if _, err := client.Enqueue(ctx, SendMail{To: "accounting"}, &weir.Options{Queue: "monthly"}); err != nil {
		log.Fatal(err)
	}

	handlers := weir.NewHandlers()
	weir.HandleWith(handlers, weir.KindOptions{Retry: func(int, error) time.Duration { return 0 }}, func(ctx context.Context, job *weir.Job[SendMail]) error {
		month := 0
		if _, err := job.Checkpoint(ctx, &month); err != nil {
			return err
		}
		for month < 3 {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer tx.Rollback(context.WithoutCancel(ctx))
			month++
			if err := job.SetCheckpointTx(ctx, tx, month); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `INSERT INTO invoice VALUES ($1)`, month); err != nil {
				return err
			}
			if job.Attempt == 1 && month == 2 {
				return errors.New("no connection") // month 2 is rolled back, with its checkpoint
			}
			if err := tx.Commit(ctx); err != nil {
				return err
			}
		}
		stop() // ends this example
		return nil
	})
	run(ctx, client, "monthly", handlers)

	var invoices int
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM invoice`).Scan(&invoices); err != nil {
		log.Fatal(err)
	}
	fmt.Println(invoices, "invoices")
	// Output:
	// attempt 1: retried (no connection)
	// attempt 2: completed (<nil>)
	// 3 invoices
}
