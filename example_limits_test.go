package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/weir-pg/weir"
)

// At most 20 mails are sent at a time, by all workers together, and at most 100 are started in a minute.
func ExampleClient_SetLimit() {
	ctx := context.Background()
	client := weir.NewClient(connect())
	err := client.SetLimit(ctx, "limited", weir.Limit{Running: 20, Rate: weir.Rate{Starts: 100, Per: time.Minute, Burst: 10}})
	if err != nil {
		log.Fatal(err)
	}
	limits, err := client.Limits(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range limits {
		if l.Queue == "limited" {
			fmt.Printf("%d of %d run, %v in %v, %d may start now\n", l.RunningNow, l.Running, l.Rate.Starts, l.Rate.Per, l.Room)
		}
	}
	if err := client.ClearLimit(ctx, "limited"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("there is a limit to clear:", !errors.Is(client.ClearLimit(ctx, "limited"), weir.ErrNotFound))
	// Output:
	// 0 of 20 run, 100 in 1m0s, 10 may start now
	// there is a limit to clear: false
}
