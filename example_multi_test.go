package weir_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// One process works the databases of all tenants that a directory lists, fifty jobs at once in all.
func ExampleMultiWorker() {
	ctx, directory := context.Background(), connect()
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[SendMail]) error {
		return pgx.BeginFunc(ctx, job.Client().Pool(), func(tx pgx.Tx) error { // in the job's database
			if _, err := tx.Exec(ctx, `INSERT INTO sent (address) VALUES ($1)`, job.Args.To); err != nil {
				return err
			}
			return job.CompleteTx(ctx, tx)
		})
	})
	worker, err := weir.NewMultiWorker(weir.MultiWorkerConfig{
		WorkerConfig: weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"mail": 50}},
		Databases: func(ctx context.Context) ([]string, error) {
			rows, err := directory.Query(ctx, `SELECT url FROM tenant WHERE active`)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
