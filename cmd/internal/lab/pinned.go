package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// PinnedSize is the size of scenario pinned.
type PinnedSize struct {
	Rate    int      // jobs enqueued per second; default 1,500
	Workers int      // sessions that claim; default 8
	Pins    []string // of PinNames, each with all queues; default: "read" with all, and the others with some
}

var pinnedScenario = &scenario{
	title: "A long transaction makes a queue walk through dead rows",
	about: "A producer enqueues jobs at a fixed rate, and workers claim and finish them; one job in a thousand takes a while. After a fifth of the time a " +
		"transaction is opened elsewhere in the database, and ends when seven tenths have passed. In between no row that the queue updates or deletes can be vacuumed, and a claim " +
		"walks over all of them before it finds the first live one. Meanwhile some transactions that enqueue commit late. This is measured with each known kind of queue, and with " +
		"everything that pins rows as a long transaction does: one on a standby, an abandoned replication slot, a forgotten prepared transaction.",
	needs: func(c *Config) needs {
		c.Pinned.Rate = cmp.Or(c.Pinned.Rate, 1500)
		c.Pinned.Workers = cmp.Or(c.Pinned.Workers, 8)
		// With the default naptime of a minute, vacuum would run too rarely for the time before the pin to be a fair comparison.
		return needs{connections: c.Pinned.Workers + 20, weir: true, parameters: map[string]string{"autovacuum_naptime": "1s", "max_prepared_transactions": "10"}}
	},
	run:  runPinned,
	load: loadPinned,
}

// phases are the times of a way: before the pin, with it, and after it has ended.
type phases struct{ pin, release, total time.Duration }

func phasesOf(d time.Duration) phases { return phases{pin: d / 5, release: d * 7 / 10, total: d} }

// late is when the last third of the pin begins, in which queues suffer most.
func (p phases) late() time.Duration { return p.pin + (p.release-p.pin)*2/3 }

// pinnedWay is a queue under a pin.
type pinnedWay struct {
	queue queueKind
	pin   *pinKind
}

// pinnedWays returns what is measured, in order. Unless pins are named, only the first one is measured with all queues.
func (r *run) pinnedWays(ctx context.Context) (ways []pinnedWay, err error) {
	all := append(append([]queueKind{}, sqlQueues...), relayQueue)
	simple := queueNamed("SKIP LOCKED, DELETE")
	guarded := guardQueue(simple)
	if why := guardable(ctx, r.site); why != "" {
		r.note("The guard was not measured: %s.", why)
	} else {
		all = append(all, guarded)
	}
	if r.site.weir {
		all = append(all, weirQueue)
	}
	named := r.Pinned.Pins
	if len(named) == 0 {
		named = PinNames()
	}
	for i, name := range named {
		pin, err := pinNamed(name)
		if err != nil {
			return nil, err
		}
		if why := pin.unable(ctx, r.site); why != "" {
			r.note("The pin %q was not measured: %s.", name, why)
			continue
		}
		for _, q := range all {
			some := q.name == simple.name || q.name == weirQueue.name || q.guard && pin.name == "standby"
			if (len(r.Pinned.Pins) > 0 || i == 0 || some) && (!q.guard || pin.session) {
				ways = append(ways, pinnedWay{q, pin})
			}
		}
	}
	if len(ways) == 0 {
		return nil, errors.New("none of the pins is possible here: measure on a private server, without --database")
	}
	return ways, nil
}

func runPinned(ctx context.Context, r *run) error {
	size, at := r.Pinned, phasesOf(r.Duration)
	r.set("jobs per second", size.Rate)
	r.set("workers", size.Workers)
	r.set("duration of each variant", r.Duration)
	r.set("pinned from", at.pin)
	r.set("pinned until", at.release)
	r.set("a slow job takes", slowJob)
	if !at.countable() {
		r.note("Jobs that were not found were not counted: in so short a run none that is committed late is old enough at the end. It takes more than %s.", countableFrom)
	}
	if !at.deadKnown() {
		r.note("Dead rows were not counted: sessions report them once a second, and the pin of so short a run ends before enough of them have. It takes %s or more.", deadKnownFrom)
	}
	if err := r.noteVacuum(ctx, at); err != nil {
		return err
	}
	ways, err := r.pinnedWays(ctx)
	if err != nil {
		return err
	}
	sampler, conn, err := r.watchers(ctx)
	if err != nil {
		return err
	}
	r.steps = len(ways)
	tracks := map[string][]*track{} // by pin
	for _, w := range ways {
		var t *track
		if t, err = r.runPinnedWay(ctx, w, at, sampler, conn); err != nil {
			break
		}
		tracks[w.pin.name] = append(tracks[w.pin.name], t)
	}
	chartPinned(r, at, tracks)
	if err != nil {
		return err
	}
	r.result.Verdict = pinnedVerdict(r.result, size)
	return nil
}

// noteVacuum says so if dead rows stay on this server whether or not something pins them.
func (r *run) noteVacuum(ctx context.Context, at phases) error {
	var on bool
	var every int // seconds
	err := r.site.guard.QueryRow(ctx, `SELECT current_setting('autovacuum')::boolean, (SELECT setting::int FROM pg_settings WHERE name = 'autovacuum_naptime')`).Scan(&on, &every)
	switch {
	case err != nil:
		return fmt.Errorf("read the settings of autovacuum: %w", err)
	case !on:
		r.note("Autovacuum is off here, so dead rows stay whether or not something pins them.")
	case time.Duration(every)*time.Second > at.pin:
		r.note("Autovacuum comes every %d s here (autovacuum_naptime), and the time before the pin is shorter: dead rows gather in it too, and stay after it.", every)
	}
	return nil
}

// runPinnedWay measures one queue under one pin.
func (r *run) runPinnedWay(ctx context.Context, w pinnedWay, at phases, sampler *activity, conn *pgx.Conn) (*track, error) {
	q := w.queue
	way := &Way{Name: q.name + ", " + w.pin.name + " pin", Kind: q.kind, What: q.what, Unit: "jobs", Settings: []Setting{{"pin", w.pin.name}}}
	k := newTrack(way, r.Duration)
	k.every = min(k.every, 500*time.Millisecond) // the end of a backlog is read from the series
	k.latencyOf = "a claim that found a job"
	t := &trial{PinnedSize: r.Pinned, phases: at, site: r.site, queue: q, pin: w.pin, name: fmt.Sprintf("weir_lab_%d", r.step)}
	gauges := []gauge{
		{backlog, func(context.Context) (float64, error) { return float64(t.enqueued.Load() - t.done.Load()), nil }},
		deadTuples(conn, q.schema),
		oldestTransaction(conn),
	}
	err := t.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", way.Name, err)
	}
	if t.holder != nil {
		sampler.sampler.Ignore(t.holder.PgConn().PID())
	}
	err = r.measure(ctx, k, r.Duration, sampler, gauges, func(until context.Context, m *load.Tally) error {
		return t.run(ctx, until, m)
	})
	if err == nil {
		if err = t.count(ctx); err != nil {
			err = fmt.Errorf("%s: count what is left: %w", way.Name, err)
		}
	}
	if err := t.end(ctx, err); err != nil {
		return nil, err
	}
	sum := k.sum()
	sum.Figures = t.figures(k)
	r.result.Ways = append(r.result.Ways, sum)
	return k, nil
}

const (
	backlog   = "backlog"
	oldest    = "oldest transaction"
	slowJob   = 300 * time.Millisecond
	slowEvery = 1000 // jobs, of which one is slow

	lateEvery = 2 * time.Second // a transaction that enqueues a job …
	lateBy    = time.Second     // … commits so late
)

// trial is one queue under one pin.
type trial struct {
	PinnedSize
	phases
	site  *site
	queue queueKind
	pin   *pinKind
	name  string // of the queue, if one schema holds several

	sessions       *sessions
	holder         *pgx.Conn // nil: the pin needs none on this server
	enqueued, done atomic.Int64
	begun          time.Time
	calm, hard     *load.Tally  // claims before the pin, and in its last third
	waits          *load.Tally  // of jobs, until they started, before the pin
	left           int64        // jobs that were never found
	behind         atomic.Int64 // nanoseconds that a job waited for others of its batch, at most, before the pin
	guarded        atomic.Int64
	lost           error // the long transaction was, before its time
}

func (t *trial) begin(ctx context.Context) (err error) {
	t.calm, t.hard, t.waits = load.NewTally(), load.NewTally(), load.NewTally()
	if len(t.queue.setup) > 0 {
		if _, err := t.site.guard.Exec(ctx, strings.Join(t.queue.setup, ";")); err != nil {
			return err
		}
	}
	if t.sessions, err = openSessions(ctx, t.site.url, t.Workers+2, nil); err != nil {
		return err
	}
	if err := t.pin.prepare(ctx, t); err != nil {
		t.sessions.close()
		return err
	}
	return nil
}

// end drops the queue.
func (t *trial) end(ctx context.Context, err error) error {
	if t.holder != nil {
		closeConn(t.holder)
	}
	t.sessions.close()
	if err == nil && t.queue.cleanup != "" {
		if _, err = t.site.guard.Exec(ctx, t.queue.cleanup); err != nil {
			err = fmt.Errorf("%s: clean up: %w", t.queue.name, err)
		}
	}
	return err
}

const (
	// A worker may overlook a job that was committed late for so long.
	overlooked = forgetEvery + lateBy + time.Second
	// After four fifths of so long a time the first of them, which comes after the pin, is older than that.
	countableFrom = (lateEvery - lateBy + overlooked) * 5 / 4
)

// countable says whether jobs that were not found can be told, at the end, from those that are merely overlooked.
func (p phases) countable() bool { return p.total > countableFrom }

const (
	// Sessions report their dead rows to the statistics once a second, and the lab reads these a moment later: for so long a time, none may mean that none was reported.
	deadLag = 1500 * time.Millisecond
	// The pin, half of so long a run, lasts long enough.
	deadKnownFrom = 2 * deadLag
)

// deadKnown says whether the dead rows are known when the pin ends.
func (p phases) deadKnown() bool { return p.release-p.pin >= deadLag }

// count counts the jobs that nobody has found for longer than a worker may overlook them.
func (t *trial) count(ctx context.Context) error {
	if !t.countable() {
		return nil
	}
	args := []any{overlooked.Seconds()}
	if t.queue.named {
		args = append(args, t.name)
	}
	return t.site.guard.QueryRow(ctx, t.queue.left, args...).Scan(&t.left)
}

// run enqueues, works, and opens and ends the long transaction when it is due.
func (t *trial) run(ctx, until context.Context, m *load.Tally) error {
	t.begun = time.Now()
	until, cancel := context.WithCancel(until)
	defer cancel()
	tasks := []func() error{
		func() error { return t.produce(ctx, until, t.sessions.conns[t.Workers]) },
		func() error { return t.produceLate(ctx, until, t.sessions.conns[t.Workers+1]) },
		func() error { return t.hold(ctx, until) },
		func() error { return t.queue.work(ctx, until, t, m) },
	}
	if t.queue.guard {
		tasks = append(tasks, func() error { return t.guardIt(until) })
	}
	errs := make(chan error, len(tasks))
	for _, f := range tasks {
		go func() { // waited for below
			err := f()
			if err != nil {
				cancel()
			}
			errs <- err
		}()
	}
	var first error
	for range tasks {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	if first == nil && t.lost != nil && t.guarded.Load() == 0 { // which is known only now: the guard may still have been about to say that it ended it
		first = fmt.Errorf("the long transaction was lost, so the figures are worthless: %w", t.lost)
	}
	return first
}

// hold opens the long transaction, and ends it. If it was lost in between, the figures are worthless, unless it was the guard that ended it.
func (t *trial) hold(ctx, until context.Context) error {
	if !sleep.For(until, time.Until(t.begun.Add(t.phases.pin))) {
		return nil
	}
	if err := t.pin.open(ctx, t); err != nil {
		return fmt.Errorf("open the long transaction: %w", err)
	}
	release := t.begun.Add(t.phases.release)
	if t.phases.release == 0 {
		<-until.Done()
	} else {
		sleep.For(until, time.Until(release))
	}
	t.lost = t.pin.end(context.WithoutCancel(ctx), t)
	return nil
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

// produceLate enqueues jobs, from the pin on, whose transactions commit after those of later jobs.
func (t *trial) produceLate(ctx, until context.Context, conn *pgx.Conn) error {
	if t.phases.total == 0 || !sleep.For(until, time.Until(t.begun.Add(t.phases.pin))) { // a load without end has none
		return nil
	}
	for sleep.For(until, lateEvery-lateBy) {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, t.queue.enqueue, t.enqueueArgs(1)...); err != nil {
				return err
			}
			sleep.For(until, lateBy)
			return nil
		})
		if err != nil {
			return fmt.Errorf("enqueue late: %w", err)
		}
		t.enqueued.Add(1)
	}
	return nil
}

func (t *trial) enqueueArgs(n int) []any {
	if t.queue.named {
		return []any{n, t.name}
	}
	return []any{n}
}

// claimed records a claim that returned n jobs. One that found none is no claim: there are many of them while a queue keeps up, and none once it doesn't.
func (t *trial) claimed(m *load.Tally, n int, took time.Duration) {
	if n == 0 {
		return
	}
	m.Did(0, took)
	switch passed := time.Since(t.begun); {
	case passed < t.phases.pin:
		t.calm.Did(n, took)
	case passed > t.late() && passed < t.phases.release:
		t.hard.Did(n, took)
	}
}

// handle does the job, which has waited for a time until now.
func (t *trial) handle(ctx context.Context, id int64, waited time.Duration) {
	if time.Since(t.begun) < t.phases.pin {
		t.waits.Did(1, max(waited, 0))
	}
	if id%slowEvery == 0 {
		sleep.For(ctx, slowJob)
	}
}

// waitedBehind records how long a job has waited for those before it in its batch.
func (t *trial) waitedBehind(d time.Duration) {
	if time.Since(t.begun) >= t.phases.pin {
		return
	}
	for most := t.behind.Load(); int64(d) > most && !t.behind.CompareAndSwap(most, int64(d)); most = t.behind.Load() {
	}
}

// finished records that n jobs are done.
func (t *trial) finished(m *load.Tally, n int) {
	m.Count(n)
	t.done.Add(int64(n))
}

// loadPinned runs the simplest queue until ctx ends, pinned from the start.
func loadPinned(ctx context.Context, s *site, c LoadConfig) error {
	name := cmp.Or(c.Pin, "read")
	if _, err := load.PinOf(name); err != nil {
		return err
	}
	pin, err := pinNamed(name)
	if err != nil {
		return err
	}
	t := &trial{PinnedSize: PinnedSize{Rate: cmp.Or(c.Rate, 1000), Workers: cmp.Or(c.Clients, 4)}, site: s, queue: sqlQueues[0], pin: pin}
	if err := t.begin(ctx); err != nil {
		return err
	}
	c.Ready()
	err = t.run(ctx, ctx, load.NewTally())
	return t.end(context.WithoutCancel(ctx), err)
}
