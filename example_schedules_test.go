package weir_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-pg/weir"
)

// Report is a kind of job that a schedule enqueues.
type Report struct{ Format string }

func (Report) Kind() string { return "report" }

// SetSchedule declares a schedule; declaring it again changes nothing. Its jobs say for which time they are.
func ExampleClient_SetSchedule() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := weir.NewClient(connect())
	schedule := weir.Schedule{
		Name: "nightly report", Schedule: "30 2 * * *", TimeZone: "Europe/Berlin",
		Args: Report{Format: "pdf"}, Options: &weir.Options{Queue: "reports"},
	}
	for range 2 { // every process of a fleet, when it starts
		changed, err := client.SetSchedule(ctx, schedule)
		fmt.Println("changed:", changed, err)
	}
	info, err := client.Schedule(ctx, "nightly report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.State, info.Schedule, info.NextAt.After(time.Now()))

	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[Report]) error {
		schedule, due := job.Due()
		fmt.Println(schedule, "as", job.Args.Format, "for now:", time.Since(due) < time.Minute)
		stop() // ends this example
		return nil
	})
	if _, err := client.RunSchedule(ctx, "nightly report"); err != nil {
		log.Fatal(err)
	}
	run(ctx, client, "reports", handlers)
	fmt.Println(client.DropSchedule(context.Background(), "nightly report"))
	// Output:
	// changed: true <nil>
	// changed: false <nil>
	// active 30 2 * * * true
	// nightly report as pdf for now: true
	// attempt 1: completed (<nil>)
	// <nil>
}

// NextTimes shows when an expression is due: here, a time that clocks skip on 29 March.
func ExampleClient_NextTimes() {
	client := weir.NewClient(connect())
	times, err := client.NextTimes(context.Background(), "30 2 * * *", "Europe/Berlin", time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC), 3)
	if err != nil {
		log.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		log.Fatal(err)
	}
	for _, at := range times {
		fmt.Println(at.In(berlin).Format("Mon 2 Jan 15:04"))
	}
	// Output:
	// Sat 28 Mar 02:30
	// Sun 29 Mar 03:00
	// Mon 30 Mar 02:30
}
