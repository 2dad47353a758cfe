package hub

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/sleep"
)

// HubsConfig configures Hubs.
type HubsConfig struct {
	HubConfig
	Hubs        []int         // how many hubs, one measurement after the other
	Subscribers int           // of each hub
	Rate        int           // messages a second
	Duration    time.Duration // of each measurement
}

// HubsConnections returns how many connections of PostgreSQL it needs.
func HubsConnections(c HubsConfig) (n int) {
	for _, hubs := range c.Hubs {
		n = max(n, 20*hubs+40)
	}
	return n
}

const hubsChannel = "weir_bench_hubs"

// Hubs measures what more hubs cost while messages flow to subscribers at each of them: each reads the database for itself, or a standby of it, if the server is a private one; or one reads for
// all, over NATS. The NATS server is in this process, which also has the subscribers.
func Hubs(ctx context.Context, d *load.Database, e load.Engine, c HubsConfig) (r *load.Report, err error) {
	for _, n := range c.Hubs {
		if n < 1 || n > 64 {
			return nil, fmt.Errorf("bench: hubs measures 1 to 64 hubs, got %d", n)
		}
		if err := mayOpen(n*c.Subscribers + spare); err != nil {
			return nil, err
		}
	}
	if len(c.Hubs) == 0 || c.Subscribers < 1 || c.Rate < 1 {
		return nil, fmt.Errorf("bench: hubs needs hubs, subscribers and a rate, got %d, %d and %d", len(c.Hubs), c.Subscribers, c.Rate)
	}
	if r, err = d.Begin(ctx, "hubs", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("%d messages a second, each in a transaction of its own, on a channel of %d subscribers at each hub, for %s; latencies are from commit to receipt; NATS runs beside the clients",
		c.Rate, c.Subscribers, c.Duration)
	r.Hub = &load.HubFigures{}
	nats, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, fmt.Errorf("bench: NATS: %w", err)
	}
	nats.Start()
	defer nats.WaitForShutdown()
	defer nats.Shutdown()
	if !nats.ReadyForConnections(time.Minute) {
		return nil, errors.New("bench: the NATS server does not start")
	}
	ways := []hubsWay{{name: "each reads for itself"}}
	if d.Server != nil {
		var standby load.Server
		defer func() { err = errors.Join(err, standby.Remove(context.WithoutCancel(ctx))) }()
		if err := standby.Follow(ctx, d.Server); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		ways = append(ways, hubsWay{name: "each reads from a standby", standby: standby.Server})
	}
	ways = append(ways, hubsWay{name: "one reads for all, over NATS", nats: nats.ClientURL()})
	for _, n := range c.Hubs {
		for _, way := range ways {
			if n == 1 && way.nats != "" {
				continue
			}
			name := fmt.Sprintf("%s, %s", load.Plural(n, "hub"), way.name)
			w, err := (&hubs{Database: d, config: c}).measure(ctx, n, way)
			if err != nil {
				return nil, fmt.Errorf("bench: %s: %w", name, err)
			}
			w.Way = name
			r.Hub.Ways = append(r.Hub.Ways, *w)
			d.Say("hubs: %s", name)
		}
	}
	return r, nil
}

// hubsWay is how hubs come by messages.
type hubsWay struct {
	name    string
	nats    string           // URL of the NATS server over which one reads for all
	standby *embedded.Server // from which they read
}

// hubs is one measurement.
type hubs struct {
	*load.Database
	config    HubsConfig
	committed *commits
	received  atomic.Int64
	measuring atomic.Bool
}

// measure starts n hubs, with subscribers at each, and publishes.
func (m *hubs) measure(ctx context.Context, n int, how hubsWay) (way *load.Way, err error) {
	spec := HubSpec{Database: m.URL, NATS: how.nats}
	if how.standby != nil {
		spec.ReadDatabase = how.standby.URL("postgres")
	}
	var all []*hubProcess
	var crowds []*crowd
	var times []load.Histogram
	for range n {
		h, err := startHubAs(ctx, m.Database, m.config.HubConfig, spec)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, h.close()) }()
		times = append(times, load.NewHistogram())
		c, err := gather(ctx, CrowdSpec{Transport: PG, Address: h.at.PG, Database: m.URL, Count: m.config.Subscribers, Channel: hubsChannel}, m.heardBy(&times[len(times)-1]))
		if err != nil {
			return nil, err
		}
		defer c.leave()
		all, crowds = append(all, h), append(crowds, c)
	}
	pool, err := m.Pool(ctx, 2)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	warm := m.config.Rate
	messages := warm + int(m.config.Duration.Seconds()*float64(m.config.Rate))
	m.committed = commitsOf(messages)
	if err := m.publish(ctx, pool, crowds, 0, warm); err != nil { // hubs that have just started find each other, and allocate what they need
		return nil, err
	}
	m.measuring.Store(true)
	began, before := time.Now(), m.received.Load()
	cpu, err := startCPU(ctx, m.Database, how.standby, all...)
	if err != nil {
		return nil, err
	}
	if err := m.publish(ctx, pool, crowds, warm, messages); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	way = &load.Way{Clients: n * m.config.Subscribers, Unit: "deliveries", Done: m.received.Load() - before}
	if way.Cores, err = cpu.stop(ctx); err != nil {
		return nil, err
	}
	way.PerSecond = load.SpreadOf([]float64{float64(way.Done) / took})
	total := load.NewHistogram()
	for i, c := range crowds {
		c.mu.Lock()
		total.Merge(times[i])
		c.mu.Unlock()
	}
	way.P50, way.P99, way.Longest = total.At(50), total.At(99), total.At(100)
	return way, nil
}

// heardBy returns what records a delivery to the subscribers of one hub.
func (m *hubs) heardBy(h *load.Histogram) func(number int64) {
	return func(number int64) {
		m.received.Add(1)
		if m.measuring.Load() {
			h.Add(m.committed.ago(number))
		}
	}
}

// publish publishes some messages at the rate, and returns when all subscribers have them.
func (m *hubs) publish(ctx context.Context, pool *pgxpool.Pool, crowds []*crowd, from, to int) error {
	began := time.Now()
	for i := from; i < to; i++ {
		due := time.Duration(float64(i-from) / float64(m.config.Rate) * float64(time.Second))
		if early := due - time.Since(began); early > 0 && !sleep.For(ctx, early) {
			return ctx.Err()
		}
		if _, err := pool.Exec(ctx, `SELECT weir.publish($1, $2)`, hubsChannel, fmt.Sprintf("%07d.", i)); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		m.committed.note(int64(i))
	}
	want := int64(to) * int64(len(crowds)) * int64(m.config.Subscribers)
	for late := time.Now(); m.received.Load() < want; {
		for _, c := range crowds {
			select {
			case err := <-c.failed:
				return err
			default:
			}
		}
		if time.Since(late) > 30*time.Second {
			return fmt.Errorf("only %d of %d deliveries were received within 30 s", m.received.Load(), want)
		}
		if !sleep.For(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}
