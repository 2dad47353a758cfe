package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// LatencyConfig configures Latency.
type LatencyConfig struct {
	Duration time.Duration // of each of the two parts
	Queues   int           // default 10
}

// Latency enqueues one job at a time into an idle queue and measures how soon its handler starts after the commit. If the engine supports it,
// every other job is enqueued by plain SQL. Then it measures the CPU time of the idle worker and server.
func Latency(ctx context.Context, d *load.Database, e load.Engine, c LatencyConfig) (r *load.Report, err error) {
	c.Queues = cmp.Or(c.Queues, 10)
	const least, most = 50 * time.Millisecond, 150 * time.Millisecond
	if r, err = d.Begin(ctx, "latency", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("one enqueue at a time, %s to %s apart, into one of %d idle queues of one worker; then idle for %s; latencies are from commit to handler",
		least, most, c.Queues, c.Duration)
	pool, client, err := d.Client(ctx, e, 1)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	workers, workerClient, err := d.Client(ctx, e, 4)
	if err != nil {
		return nil, err
	}
	defer workers.Close()

	queues := map[string]int{}
	var names []string
	for i := range c.Queues {
		names = append(names, fmt.Sprintf("%s_%d", load.Queue, i))
		queues[names[i]] = 10
	}
	// The first job of each queue creates the queue; it is not counted.
	for _, name := range names {
		if err := client.Enqueue(ctx, nil, name, 0); err != nil {
			return nil, fmt.Errorf("bench: enqueue: %w", err)
		}
	}
	m := &load.Meter{}
	s := load.NewStamps(int(c.Duration/least) + 1)
	stop, failed := load.Start(ctx, workerClient, load.Work{Queues: queues, Run: s.Start, Recorded: m.Add})
	defer func() { err = errors.Join(err, stop()) }()
	if err := m.Reach(ctx, int64(len(names)), failed); err != nil {
		return nil, err
	}

	enqueues := []func(context.Context, string, int64) error{func(ctx context.Context, queue string, number int64) error {
		return client.Enqueue(ctx, nil, queue, number)
	}}
	if c, ok := client.(load.SQLClient); ok {
		enqueues = append(enqueues, c.EnqueueSQL)
	}
	ways := int64(len(enqueues))
	d.Say("enqueueing one job at a time for %s", c.Duration)
	began, sent := time.Now(), int64(0)
	for time.Since(began) < c.Duration {
		if !sleep.For(ctx, least+rand.N(most-least)) {
			return nil, ctx.Err()
		}
		sent++
		if err := enqueues[(sent-1)%ways](ctx, names[rand.IntN(len(names))], sent); err != nil {
			return nil, fmt.Errorf("bench: enqueue: %w", err)
		}
		s.Commit(sent)
	}
	took := time.Since(began)
	if err := m.Reach(ctx, sent+int64(len(names)), failed); err != nil {
		return nil, err
	}
	of := func(first int64) *load.Figures {
		h := s.LatenciesOf(first, sent+1, ways)
		jobs := (sent - first + ways) / ways
		return &load.Figures{Jobs: jobs, Seconds: took.Seconds(), JobsPerSecond: float64(jobs) / took.Seconds(), P50: h.At(50), P99: h.At(99)}
	}
	if r.Figures = of(1); ways > 1 {
		r.SQL = of(2)
	}

	if r.Idle, err = idle(ctx, d, c); err != nil {
		return nil, err
	}
	if err := stop(); err != nil {
		return nil, err
	}
	workers.Close()
	if r.DeadTuples, err = d.DeadTuples(ctx, e); err != nil {
		return nil, err
	}
	r.AtMost("ms from commit to handler, p50", *r.P50, 3)
	r.AtMost("ms from commit to handler, p99", *r.P99, 15)
	if r.Idle != nil && r.Idle.Server != nil {
		r.AtMost("percent of a core used by an idle worker and its server", r.Idle.Worker+*r.Idle.Server, 2)
	}
	return r, nil
}

// idle measures the CPU time of this process, which is only an idle worker, and of the server; nil if the system does not report it.
func idle(ctx context.Context, d *load.Database, c LatencyConfig) (*load.Idle, error) {
	if !sleep.For(ctx, min(c.Duration, 2*time.Second)) { // work left over from the jobs
		return nil, ctx.Err()
	}
	d.Say("idle for %s", c.Duration)
	began := time.Now()
	own, ok := load.OwnCPU()
	server, serverOK := d.ServerCPU()
	if !sleep.For(ctx, c.Duration) {
		return nil, ctx.Err()
	}
	if !ok {
		return nil, nil
	}
	ownAfter, _ := load.OwnCPU()
	took := time.Since(began).Seconds()
	i := &load.Idle{Seconds: took, Queues: c.Queues, Worker: 100 * (ownAfter - own).Seconds() / took}
	if serverAfter, ok := d.ServerCPU(); ok && serverOK {
		percent := 100 * (serverAfter - server).Seconds() / took
		i.Server = &percent
	}
	return i, nil
}
