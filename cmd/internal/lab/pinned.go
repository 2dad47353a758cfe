package lab

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// PinnedSize is the size of scenario pinned.
type PinnedSize struct {
	Rate    int      // jobs enqueued per second; default 1,000
	Workers int      // sessions that claim; default 8
	Pins    []string // "read", "write"; default both
}

var pinnedScenario = &scenario{
	title: "A long transaction makes a queue walk through dead rows",
	about: "A producer enqueues jobs at a fixed rate, workers claim and finish them, and after a quarter of the time a transaction is opened " +
		"elsewhere in the database and stays open. From then on no row that the queue updates or deletes can be vacuumed, and a claim walks " +
		"over all of them before it finds the first live one. This is measured with each known kind of queue, and with both kinds of long " +
		"transaction.",
	needs: func(c *Config) needs {
		c.Pinned.Rate = cmp.Or(c.Pinned.Rate, 1000)
		c.Pinned.Workers = cmp.Or(c.Pinned.Workers, 8)
		if len(c.Pinned.Pins) == 0 {
			c.Pinned.Pins = []string{"read", "write"}
		}
		// With the default naptime of a minute, vacuum would run too rarely for the time before the pin to be a fair comparison.
		return needs{connections: c.Pinned.Workers + 20, weir: true, parameters: map[string]string{"autovacuum_naptime": "5s"}}
	},
	run:  runPinned,
	load: loadPinned,
}

func runPinned(ctx context.Context, r *run) error {
	size := r.Pinned
	for _, pin := range size.Pins {
		if _, err := load.PinOf(pin); err != nil {
			return err
		}
	}
	r.set("jobs per second", size.Rate)
	r.set("workers", size.Workers)
	r.set("duration of each variant", r.Duration)
	r.set("pinned after", calmTime(r.Duration))
	queues := slices.Clone(sqlQueues)
	if r.site.weir {
		queues = append(queues, weirQueue)
	}
	sampler, conn, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	r.steps = len(queues) * len(size.Pins)
	for _, pin := range size.Pins {
		var tracks []*track
		for _, q := range queues {
			way := &Way{Name: q.name, Kind: q.kind, What: q.what, Unit: "jobs", Settings: []Setting{{"pin", pin}}}
			if len(size.Pins) > 1 {
				way.Name += ", " + pin + " pin"
			}
			t := newTrack(way, r.Duration)
			t.latencyOf = "a claim"
			trial := &trial{PinnedSize: size, site: r.site, queue: q, pin: pin, pinAfter: calmTime(r.Duration), total: r.Duration, name: fmt.Sprintf("weir_lab_%d", r.step)}
			gauges := []gauge{
				{backlog, func(context.Context) (float64, error) { return float64(trial.enqueued.Load() - trial.done.Load()), nil }},
				deadTuples(conn, q.schema),
			}
			if err := trial.begin(ctx); err != nil {
				return fmt.Errorf("%s: %w", way.Name, err)
			}
			sampler.sampler.Ignore(trial.holder.PgConn().PID())
			err := r.measure(ctx, t, r.Duration, sampler, gauges, func(until context.Context, m *load.Tally) error {
				return trial.run(ctx, until, m)
			})
			if err := trial.end(ctx, err); err != nil {
				return fmt.Errorf("%s: %w", way.Name, err)
			}
			w := t.sum()
			w.Figures = trial.figures(t)
			r.result.Ways = append(r.result.Ways, w)
			tracks = append(tracks, t)
		}
		chartPinned(r, pin, tracks)
	}
	r.result.Verdict = pinnedVerdict(r.result, size)
	return nil
}

// calmTime returns how long a way runs before the pin.
func calmTime(d time.Duration) time.Duration { return d / 4 }

const backlog = "backlog"

// trial is one queue under one pin.
type trial struct {
	PinnedSize
	site     *site
	queue    queueKind
	pin      string
	pinAfter time.Duration
	total    time.Duration
	name     string // of the queue, if one schema holds several

	sessions       *sessions
	holder         *pgx.Conn
	enqueued, done atomic.Int64
	begun          time.Time
	calm, late     *load.Tally // claims before the pin, and in the last quarter of the time
}

func (t *trial) begin(ctx context.Context) (err error) {
	t.calm, t.late = load.NewTally(), load.NewTally()
	if len(t.queue.setup) > 0 {
		if _, err := t.site.guard.Exec(ctx, strings.Join(t.queue.setup, ";")); err != nil {
			return err
		}
	}
	if t.sessions, err = openSessions(ctx, t.site.url, t.Workers+1, nil); err != nil {
		return err
	}
	t.holder, err = connect(ctx, t.site.url, watcherName, map[string]string{"idle_in_transaction_session_timeout": "0"})
	if err != nil {
		t.sessions.close()
	}
	return err
}

// end ends the long transaction and drops the queue. If the transaction was lost earlier, the figures are worthless.
func (t *trial) end(ctx context.Context, err error) error {
	if _, lost := t.holder.Exec(ctx, `COMMIT`); err == nil && lost != nil {
		err = fmt.Errorf("the long transaction was lost, so the figures are worthless: %w", lost)
	}
	closeConn(t.holder)
	t.sessions.close()
	if err == nil && t.queue.cleanup != "" {
		_, err = t.site.guard.Exec(ctx, t.queue.cleanup)
	}
	return err
}

// run enqueues, works, and opens the long transaction when it is due.
func (t *trial) run(ctx, until context.Context, m *load.Tally) error {
	t.begun = time.Now()
	until, cancel := context.WithCancel(until)
	defer cancel()
	errs := make(chan error, 3)
	start := func(f func() error) {
		go func() { // waited for below
			err := f()
			if err != nil {
				cancel()
			}
			errs <- err
		}()
	}
	start(func() error { return t.produce(ctx, until, t.sessions.conns[t.Workers]) })
	start(func() error {
		if !sleep.For(until, t.pinAfter) {
			return nil
		}
		for _, sql := range load.Pins[t.pin].SQL {
			if _, err := t.holder.Exec(ctx, sql); err != nil {
				return fmt.Errorf("open the long transaction: %w", err)
			}
		}
		return nil
	})
	start(func() error { return t.queue.work(ctx, until, t, m) })
	var first error
	for range 3 {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// produce enqueues at the rate, in batches, so that the producer itself costs little. It does not slow down when the queue does.
func (t *trial) produce(ctx, until context.Context, conn *pgx.Conn) error {
	const every = 20 * time.Millisecond
	begun := time.Now()
	for sent := 0; sleep.For(until, every); {
		due := min(int(time.Since(begun).Seconds()*float64(t.Rate))-sent, t.Rate)
		if due < 1 {
			continue
		}
		if _, err := conn.Exec(ctx, t.queue.enqueue, t.enqueueArgs(due)...); err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
		sent += due
		t.enqueued.Add(int64(due))
	}
	return nil
}

func (t *trial) enqueueArgs(n int) []any {
	if t.queue.named {
		return []any{n, t.name}
	}
	return []any{n}
}

// claimed records a claim that returned n jobs.
func (t *trial) claimed(m *load.Tally, n int, took time.Duration) {
	m.Did(0, took)
	switch passed := time.Since(t.begun); {
	case passed < t.pinAfter:
		t.calm.Did(n, took)
	case passed > t.total*3/4:
		t.late.Did(n, took)
	}
}

// finished records that n jobs are done.
func (t *trial) finished(m *load.Tally, n int) {
	m.Count(n)
	t.done.Add(int64(n))
}

// loadPinned runs the simplest queue until ctx ends, pinned from the start.
func loadPinned(ctx context.Context, s *site, c LoadConfig) error {
	pin := c.Pin
	if pin == "" {
		pin = "read"
	}
	if _, err := load.PinOf(pin); err != nil {
		return err
	}
	t := &trial{PinnedSize: PinnedSize{Rate: cmp.Or(c.Rate, 1000), Workers: cmp.Or(c.Clients, 4)}, site: s, queue: sqlQueues[0], pin: pin}
	if err := t.begin(ctx); err != nil {
		return err
	}
	c.Ready()
	err := t.run(ctx, ctx, load.NewTally())
	return t.end(context.WithoutCancel(ctx), err)
}
