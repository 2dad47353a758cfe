package weir_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// A message is delivered after the commit, and never after a rollback. This subscriber reads the database directly; many subscribers should
// connect to a hub instead (SubscribeConfig.Hubs).
func ExampleSubscribe() {
	ctx := context.Background()
	pool := connect()
	client := weir.NewClient(pool)
	sub, err := weir.Subscribe(ctx, weir.SubscribeConfig{Client: client, Channels: []string{"orders.*"}})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (buyer) VALUES ('ada@example.org')`); err != nil {
			return err
		}
		return client.PublishTx(ctx, tx, "orders.created", []byte(`{"buyer": "ada@example.org"}`), nil)
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Publish(ctx, "orders.paid", []byte(`{"cents": 1999}`), nil); err != nil {
		log.Fatal(err)
	}

	for event, err := range sub.All(ctx) {
		switch {
		case err != nil:
			log.Fatal(err) // closed or refused
		case event.Gap != nil:
			fmt.Println("messages may be missing: read the state again")
		default:
			fmt.Println(event.Message.Channel, string(event.Message.Payload))
		}
		if event.Message != nil && event.Message.Channel == "orders.paid" {
			break // ends this example
		}
	}
	// Output:
	// orders.created {"buyer": "ada@example.org"}
	// orders.paid {"cents": 1999}
}

// A subscription continues where another one ended, in this process or before a restart.
func ExampleSubscription_Position() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	config := weir.SubscribeConfig{Client: client, Channels: []string{"stock"}}
	sub, err := weir.Subscribe(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	position := sub.Position() // store it, for example in a table
	sub.Close()

	if err := client.Publish(ctx, "stock", []byte("3 left"), nil); err != nil { // without a subscriber
		log.Fatal(err)
	}

	config.After = position
	sub, err = weir.Subscribe(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	event, err := sub.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(event.Message.Payload))
	// Output: 3 left
}

// Set Binary to publish bytes that are not text.
func ExampleClient_Publish() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	sub, err := weir.Subscribe(ctx, weir.SubscribeConfig{Client: client, Channels: []string{"thumbnails"}})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	if err := client.Publish(ctx, "thumbnails", []byte{0x89, 'P', 'N', 'G'}, &weir.PublishOptions{Binary: true}); err != nil {
		log.Fatal(err)
	}
	event, err := sub.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x %t\n", event.Message.Payload, event.Message.Binary)
	// Output: 89504e47 true
}
