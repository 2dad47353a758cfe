package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// FanoutConfig configures Fanout.
type FanoutConfig struct {
	HubConfig
	Subscribers int           // default 10,000
	Transport   Transport     // default pg
	Duration    time.Duration // of each of the three parts; default 20 s
	Payload     int           // size of a message's payload in bytes; default 32
	InFlight    int           // maximum number of deliveries in progress, and at least those of one transaction; default: those of two transactions on one channel, or two per subscriber
	Batch       int           // messages per transaction; default 1 on one channel, and up to 500 on a channel for each
	Only        string        // "one", "burst" or "each": measure only that part
	Rate        int           // maximum number of deliveries per second; 0: limited only by InFlight
}

// fanoutShape specifies which channels are subscribed to.
type fanoutShape struct {
	name  string
	only  string
	own   bool // each subscriber has its own channel
	batch int  // messages per transaction
}

const fanoutChannel = "weir_bench_fan_"

// Fanout publishes messages as fast as they are delivered: on one channel to many subscribers, singly and in bursts, and then on one channel per
// subscriber. Latencies are measured from a message's commit to its receipt by each subscriber. Before each part, over the wire protocol, a bare
// loop writes the same bytes to as many sockets without a hub, which shows the limit of the machine.
func Fanout(ctx context.Context, d *load.Database, e load.Engine, c FanoutConfig) (r *load.Report, err error) {
	c.Subscribers = cmp.Or(c.Subscribers, 10_000)
	c.Transport = cmp.Or(c.Transport, PG)
	c.Duration = cmp.Or(c.Duration, 20*time.Second)
	c.Payload = cmp.Or(c.Payload, 32)
	if err := errors.Join(mayOpen(c.Subscribers+spare), c.Transport.check()); err != nil {
		return nil, err
	}
	if r, err = d.Begin(ctx, "fanout", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d subscribers over %s; each part %s; %d bytes of payload; latencies are from commit to receipt",
		c.Subscribers, c.Transport, c.Duration, c.Payload)
	r.Hub = &load.HubFigures{}
	shapes := []fanoutShape{
		{name: "one channel to all", only: "one", batch: cmp.Or(c.Batch, 1)},
		{name: "one channel to all, ten messages at a time", only: "burst", batch: 10},
		{name: "a channel for each", only: "each", own: true, batch: cmp.Or(c.Batch, min(500, max(cmp.Or(c.InFlight, 2*c.Subscribers)/8, 1)))},
	}
	for _, shape := range shapes {
		if c.Only != "" && c.Only != shape.only {
			continue
		}
		f := &fanout{Database: d, config: c, shape: shape}
		f.config.InFlight = cmp.Or(c.InFlight, 2*c.Subscribers*shape.together())
		var limit *load.Way
		if c.Transport == PG {
			if limit, err = f.limit(ctx); err != nil {
				return nil, fmt.Errorf("bench: %s, by a bare loop: %w", shape.name, err)
			}
			r.Hub.Ways = append(r.Hub.Ways, *limit)
		}
		way, err := f.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: %s: %w", shape.name, err)
		}
		r.Hub.Ways = append(r.Hub.Ways, *way)
		if limit != nil && c.Rate == 0 && limit.PerSecond.Median > 0 {
			r.AtLeast("ratio of deliveries to those of a bare loop, "+shape.name, way.PerSecond.Median/limit.PerSecond.Median, 0.8)
		}
		r.AtLeast("deliveries per second, "+shape.name, way.PerSecond.Median, 300_000)
		r.AtMost("p99 in ms, "+shape.name, *way.P99, 100)
	}
	return r, nil
}

// fanout measures one part.
type fanout struct {
	*load.Database
	config FanoutConfig
	shape  fanoutShape

	published int64        // messages; used only by the publisher
	due       int64        // deliveries of these messages
	received  atomic.Int64 // deliveries
	progress  chan struct{}
	committed *commits
	h         load.Histogram // used by the crowd until it has left
}

func (f *fanout) measure(ctx context.Context) (way *load.Way, err error) {
	h, err := startHub(ctx, f.Database, f.config.HubConfig, f.URL, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	pool, err := f.Pool(ctx, 2)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	f.progress, f.h = make(chan struct{}, 1), load.NewHistogram()
	// There are fewer messages than deliveries in progress, plus at most one transaction.
	f.committed = commitsOf(2*(f.config.InFlight+f.shape.batch) + 2)
	crowd, err := gather(ctx, CrowdSpec{
		Transport: f.config.Transport, Address: h.address(f.config.Transport), Database: f.URL, Count: f.config.Subscribers,
		Channel: fanoutChannel, Own: f.shape.own,
	}, f.heard)
	if err != nil {
		return nil, err
	}
	defer crowd.leave()
	f.Say("fanout, %s: %d subscribers are connected", f.shape.name, f.config.Subscribers)
	// The first messages pay for what is allocated once.
	if err := f.publishFor(ctx, pool, crowd, min(f.config.Duration/5, 2*time.Second)); err != nil {
		return nil, err
	}
	return f.watched(ctx, h, crowd, func() error { return f.publishFor(ctx, pool, crowd, f.config.Duration) })
}

// heard records a delivery.
func (f *fanout) heard(number int64) {
	f.h.Add(f.committed.ago(number))
	f.received.Add(1)
	select {
	case f.progress <- struct{}{}:
	default:
	}
}

// publishFor publishes for a time, and returns when all messages have been received.
func (f *fanout) publishFor(ctx context.Context, pool *pgxpool.Pool, crowd *crowd, d time.Duration) error {
	each := int64(1) // deliveries per message
	if !f.shape.own {
		each = int64(f.config.Subscribers)
	}
	padding := strings.Repeat(".", max(f.config.Payload-8, 1))
	channels, payloads := make([]string, f.shape.batch), make([]string, f.shape.batch)
	began, before := time.Now(), f.due
	for time.Since(began) < d {
		first := f.published
		for i := range channels {
			channels[i] = fanoutChannel
			if f.shape.own {
				channels[i] += strconv.Itoa(int(f.published) % f.config.Subscribers)
			}
			payloads[i] = fmt.Sprintf("%07d%s", f.published, padding)
			f.committed.begin(f.published)
			f.published++
		}
		if _, err := pool.Exec(ctx, `SELECT weir.publish_many($1, $2)`, channels, payloads); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		for i := first; i < f.published; i++ {
			f.committed.note(i)
		}
		f.due += each * (f.published - first)
		// The next transaction is sent when all its deliveries fit into the limit.
		if err := f.await(ctx, crowd, f.due+each*int64(f.shape.batch)-int64(f.config.InFlight)); err != nil {
			return err
		}
		if f.config.Rate > 0 {
			ahead := time.Duration(float64(f.due-before) / float64(f.config.Rate) * float64(time.Second))
			if wait := ahead - time.Since(began); wait > 0 && !sleep.For(ctx, wait) {
				return ctx.Err()
			}
		}
	}
	return f.await(ctx, crowd, f.due)
}

// await waits until n deliveries have been received.
func (f *fanout) await(ctx context.Context, crowd *crowd, n int64) error {
	const patience = 30 * time.Second
	t := time.NewTimer(patience)
	defer t.Stop()
	for n = min(n, f.due); f.received.Load() < n; {
		select {
		case <-f.progress:
		case err := <-crowd.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			return fmt.Errorf("only %d of %d deliveries were received within %s", f.received.Load(), f.due, patience)
		}
	}
	return nil
}

// watched runs a measurement and summarizes it.
func (f *fanout) watched(ctx context.Context, h *hubProcess, crowd *crowd, run func() error) (*load.Way, error) {
	crowd.mu.Lock()
	f.h = load.NewHistogram()
	crowd.mu.Unlock()
	cpu, err := startCPU(ctx, f.Database, nil, h)
	if err != nil {
		return nil, err
	}
	from, began := f.received.Load(), time.Now()
	sampling, cancel := context.WithCancel(ctx)
	var rates []float64
	sampled := make(chan struct{})
	go func() { // ends with sampling
		defer close(sampled)
		rates = load.SampleRate(sampling, time.Second, &f.received)
	}()
	err = run()
	took := time.Since(began)
	cancel()
	<-sampled
	if err != nil {
		return nil, err
	}
	way := &load.Way{Way: f.shape.name, Clients: f.config.Subscribers, Unit: "deliveries", Done: f.received.Load() - from}
	if way.Cores, err = cpu.stop(ctx); err != nil {
		return nil, err
	}
	way.PerSecond = load.SpreadOf(rates)
	if way.PerSecond == nil { // it took less than a second
		way.PerSecond = load.SpreadOf([]float64{float64(way.Done) / took.Seconds()})
	}
	crowd.mu.Lock()
	defer crowd.mu.Unlock()
	way.P50, way.P99, way.Longest = f.h.At(50), f.h.At(99), f.h.At(100)
	f.Say("fanout, %s: %d deliveries in %.1f s", f.shape.name, way.Done, took.Seconds())
	return way, nil
}
