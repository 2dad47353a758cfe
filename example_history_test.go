package weir_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-pg/weir"
)

// History shows when jobs completed and failed, and how long they waited, minute by minute.
func ExampleClient_History() {
	client := weir.NewClient(connect())
	points, err := client.History(context.Background(), weir.HistoryParams{Queue: "reports", Since: time.Now().Add(-6 * time.Hour), Step: 5 * time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	busy := 0
	for _, p := range points {
		if p.Completed+p.Failed > 0 {
			busy++
			fmt.Println(p.At.Format(time.TimeOnly), p.Completed, p.Failed, p.WaitP95)
		}
	}
	fmt.Println("in", busy, "of these times a job ended")
	// Output: in 0 of these times a job ended
}
