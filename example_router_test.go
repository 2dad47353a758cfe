package weir_test

import (
	"context"
	"errors"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// The jobs of an account are in the database that owns its key: a router finds it, and moves a quarter of all keys to another one.
func ExampleRouter() {
	ctx := context.Background()
	first, second := weir.NewClient(connect()), weir.NewClient(connect())
	router, err := weir.NewRouter(ctx, first, second)
	if err != nil {
		log.Fatal(err)
	}
	if err := router.Assign(ctx); err != nil { // once, for new databases
		log.Fatal(err)
	}
	job, err := router.Enqueue(ctx, SendMail{To: "a@example.com"}, &weir.Options{Queue: "mail", Key: "account 7"})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("job %d is in %s", job.ID, job.Client.Pool().Config().ConnConfig.Database)
	if err := router.Move(ctx, 0, weir.Slots/4-1, second, nil); err != nil { // after an error, the same call goes on
		log.Fatal(err)
	}
}

// In a transaction of your own, a router says in which database, and sees to it that this is still true when you commit.
func ExampleRouter_HoldTx() {
	ctx := context.Background()
	router, err := weir.NewRouter(ctx, weir.NewClient(connect()))
	if err != nil {
		log.Fatal(err)
	}
	const key = "account 7"
	for {
		client, err := router.Client(ctx, key)
		if err != nil {
			log.Fatal(err)
		}
		err = pgx.BeginFunc(ctx, client.Pool(), func(tx pgx.Tx) error {
			if err := router.HoldTx(ctx, tx, key); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `INSERT INTO orders (account) VALUES ($1)`, key); err != nil {
				return err
			}
			_, err := client.EnqueueTx(ctx, tx, SendMail{To: "a@example.com"}, &weir.Options{Queue: "mail", Key: key})
			return err
		})
		if errors.Is(err, weir.ErrMoving) {
			continue // it has moved meanwhile: begin again
		}
		if err != nil {
			log.Fatal(err)
		}
		return
	}
}
