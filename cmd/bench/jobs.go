package main

import (
	"context"

	"github.com/weir-pg/weir/cmd/bench/internal/jobs"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

type workersCmd struct {
	flags
	Workers int     `default:"100" help:"Number of workers, each of concurrency 1 (${default})."`
	Seconds float64 `default:"60" help:"Seconds of measuring (${default})."`
}

func (c *workersCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, jobs.WorkersConnections(c.Workers), func(d *load.Database, e load.Engine) (*load.Report, error) {
		return jobs.Workers(ctx, d, e, jobs.WorkersConfig{Duration: seconds(c.Seconds), Workers: c.Workers})
	})
}

type fleetCmd struct {
	flags
	Workers int     `default:"1000" help:"Number of workers, each of concurrency 1 (${default})."`
	Limit   int     `default:"20" help:"How many jobs of the queue may run (${default})."`
	Refills int     `default:"50" help:"How often one slot is freed (${default})."`
	Seconds float64 `default:"10" help:"Seconds of each measurement (${default})."`
}

func (c *fleetCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, jobs.WorkersConnections(c.Workers), func(d *load.Database, e load.Engine) (*load.Report, error) {
		limited := engine.Engine{Log: s.errs, Limit: c.Limit}
		return jobs.Fleet(ctx, d, e, limited, jobs.FleetConfig{Workers: c.Workers, Limit: c.Limit, Duration: seconds(c.Seconds), Refills: c.Refills})
	})
}

type ageCmd struct {
	flags
	Jobs      int     `default:"60000" help:"Number of jobs that are worked first (${default})."`
	Queues    int     `default:"20" help:"Number of their queues (${default})."`
	Scheduled int     `default:"20000" help:"Number of jobs scheduled for a distant time (${default})."`
	Failing   float64 `default:"5" help:"Percentage of attempts that fail and are retried (${default})."`
}

func (c *ageCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, 0, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return jobs.Age(ctx, d, e, jobs.AgeConfig{Jobs: c.Jobs, Queues: c.Queues, Scheduled: c.Scheduled, Failing: c.Failing})
	})
}

type memoryCmd struct {
	flags
	Jobs int `default:"2000" help:"Number of jobs that run at once (${default})."`
}

func (c *memoryCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, 0, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return jobs.Running(ctx, d, e, c.Jobs)
	})
}

type uiCmd struct {
	flags
	Finished int `default:"1000000" help:"Number of completed jobs (${default})."`
	Failed   int `default:"10000" help:"Number of failed jobs (${default})."`
	Waiting  int `default:"100000" help:"Number of waiting jobs (${default})."`
	Times    int `default:"20" help:"How often each page is opened (${default})."`
}

func (c *uiCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, 0, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return jobs.Pages(ctx, d, e, jobs.PagesConfig{Finished: c.Finished, Failed: c.Failed, Waiting: c.Waiting, Times: c.Times})
	})
}

type retryCmd struct {
	flags
	Failed int `default:"100000" help:"Number of failed jobs (${default})."`
}

func (c *retryCmd) Run(ctx context.Context, s *streams) error {
	return c.alone(ctx, s, 0, func(d *load.Database, e load.Engine) (*load.Report, error) {
		return jobs.Retry(ctx, d, e, c.Failed)
	})
}
