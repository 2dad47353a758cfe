package weir_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-pg/weir"
)

// Options specify a job's queue, priority, earliest start and number of attempts.
func ExampleClient_Enqueue() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, SendMail{To: "ada@example.org"}, &weir.Options{
		Queue:       "enqueue",
		Priority:    1, // before all other jobs of the queue
		RunAt:       time.Now().Add(10 * time.Minute),
		MaxAttempts: 5,
		Meta:        map[string]string{"tenant": "acme"},
	})
	if err != nil {
		log.Fatal(err)
	}
	job, err := client.Job(ctx, enqueued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.State, job.Kind, string(job.Args), job.Queue, job.Priority, job.MaxAttempts, string(job.Meta))
	fmt.Println("in", time.Until(*job.RunAt).Round(time.Minute))
	// Output:
	// scheduled send_mail {"to": "ada@example.org"} enqueue 1 5 {"tenant": "acme"}
	// in 10m0s
}

// A unique job is enqueued only if no other of its kind with the same args waits or runs. The last call replaces the job instead: a debounce.
func ExampleUnique() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	mail := SendMail{To: "ada@example.org"}
	first, err := client.Enqueue(ctx, mail, &weir.Options{Queue: "unique", Unique: &weir.Unique{}})
	if err != nil {
		log.Fatal(err)
	}
	second, err := client.Enqueue(ctx, mail, &weir.Options{Queue: "unique", Unique: &weir.Unique{}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Duplicate, second.Duplicate, second.ID == first.ID)

	debounce := &weir.Options{Queue: "unique", RunAt: time.Now().Add(5 * time.Second), Unique: &weir.Unique{Key: "digest", Replace: true}}
	for _, to := range []string{"ada@example.org", "grace@example.org"} {
		job, err := client.Enqueue(ctx, SendMail{To: to}, debounce)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(job.Duplicate) // only the last one will run
	}
	// Output:
	// false true true
	// false
	// true
}

// The job runs only if the order is committed.
func ExampleClient_EnqueueTx() {
	ctx := context.Background()
	pool := connect()
	client := weir.NewClient(pool)

	order := func(buyer string, check error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders (buyer) VALUES ($1)`, buyer); err != nil {
				return err
			}
			if _, err := client.EnqueueTx(ctx, tx, SendMail{To: buyer}, &weir.Options{Queue: "orders"}); err != nil {
				return err
			}
			return check // rolls both back
		})
	}
	fmt.Println(order("ada@example.org", nil))
	fmt.Println(order("eve@example.org", errors.New("the card was refused")))

	queues, err := client.Queues(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, queue := range queues {
		if queue.Name == "orders" {
			fmt.Println("waiting:", queue.Available)
		}
	}
	// Output:
	// <nil>
	// the card was refused
	// waiting: 1
}

// Wrap a transaction of database/sql, or of a library built on it, with SQLTx.
func ExampleSQLTx() {
	ctx := context.Background()
	db, err := sql.Open("pgx", connect().Config().ConnString())
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	client := weir.NewClient(connect())

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	enqueued, err := client.EnqueueTx(ctx, weir.SQLTx(tx), SendMail{To: "ada@example.org"}, &weir.Options{Queue: "sql"})
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	job, err := client.Job(ctx, enqueued.ID)
	fmt.Println(job.State, err)
	// Output: available <nil>
}

// EnqueueMany enqueues many jobs at once, all of them or none.
func ExampleClient_EnqueueMany() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	var jobs []weir.NewJob
	for n := range 1000 {
		jobs = append(jobs, weir.NewJob{Args: SendMail{To: fmt.Sprintf("user%d@example.org", n)}, Options: &weir.Options{Queue: "many"}})
	}
	all, err := client.EnqueueMany(ctx, jobs)
	fmt.Println(len(all), err)

	jobs[999].Options = &weir.Options{Queue: "many", Priority: 9}
	all, err = client.EnqueueMany(ctx, jobs)
	fmt.Println(len(all), err != nil)
	// Output:
	// 1000 <nil>
	// 0 true
}

// Invoice is a kind of job with its own default options.
type Invoice struct{ Order int64 }

func (Invoice) Kind() string { return "invoice" }

func (Invoice) EnqueueOptions() weir.Options {
	return weir.Options{Queue: "invoices", MaxAttempts: 3}
}

// A kind sets defaults for its jobs, which options passed to Enqueue override.
func ExampleArgsWithOptions() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	enqueued, err := client.Enqueue(ctx, Invoice{Order: 7}, &weir.Options{MaxAttempts: 10})
	if err != nil {
		log.Fatal(err)
	}
	job, err := client.Job(ctx, enqueued.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Queue, job.MaxAttempts)
	// Output: invoices 10
}
