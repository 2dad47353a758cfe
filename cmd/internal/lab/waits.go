package lab

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/sleep"
)

// wait is what a session was waiting for: an event as the server names it ("Lock:transactionid", or "CPU"), and its class, which is the same
// in all versions of PostgreSQL.
type wait struct{ event, class string }

// busy is the number of busy sessions in one sample, by wait.
type busy map[wait]int

// sampler samples what sessions do. It must not be used by several goroutines at the same time.
type sampler interface {
	// newest returns the newest sample, and whether it is a new one.
	newest() (busy, bool)
}

const (
	sampleEvery = 100 * time.Millisecond
	lookEvery   = sampleEvery / 3

	onCPU = string(doctor.CPU)
	// A session that waits for its client in an open transaction, holding its locks.
	idleInTx  = "idle-in-transaction"
	idleEvent = "idle in transaction"
	// A session that waits for something outside the server's control: its client, a requested sleep, its parallel workers.
	byChoice = "by-choice"
)

// waitClasses returns the classes in the order in which they are stacked.
func waitClasses() []string {
	classes := []string{onCPU}
	for _, c := range doctor.Classes() {
		if c != doctor.CPU {
			classes = append(classes, string(c))
		}
	}
	return append(classes, idleInTx)
}

// waitTrack collects samples over the intervals of a track.
type waitTrack struct {
	mu      sync.Mutex
	samples int
	found   busy
	total   busy
	taken   int                  // samples of all intervals
	without int                  // intervals without one
	series  map[string][]float64 // by class: average number of sessions
}

// watch samples until ctx ends.
func (w *waitTrack) watch(ctx context.Context, s sampler) {
	s.newest() // discard the sample of the time before
	for sleep.For(ctx, lookEvery) {
		found, isNew := s.newest()
		if !isNew {
			continue
		}
		w.mu.Lock()
		w.samples++
		if w.found == nil {
			w.found = busy{}
		}
		for what, n := range found {
			w.found[what] += n
		}
		w.mu.Unlock()
	}
}

// cut ends an interval. An interval without a sample, on a machine that is too busy for it, repeats the last one.
func (w *waitTrack) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.series == nil {
		w.series, w.total = map[string][]float64{}, busy{}
	}
	w.taken += w.samples
	if w.samples == 0 {
		w.without++
	}
	sums := map[string]float64{}
	for what, n := range w.found {
		w.total[what] += n
		sums[what.class] += float64(n) / float64(max(w.samples, 1))
	}
	for _, c := range waitClasses() {
		points := w.series[c]
		if w.samples == 0 && len(points) > 0 {
			sums[c] = points[len(points)-1]
		}
		w.series[c] = append(points, round(sums[c]))
	}
	w.samples, w.found = 0, nil
}

// last returns the largest class of the newest interval, for a live view.
func (w *waitTrack) last() (name string, share float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sum, most float64
	for _, c := range waitClasses() {
		points := w.series[c]
		if len(points) == 0 {
			continue
		}
		v := points[len(points)-1]
		sum += v
		if v > most {
			name, most = c, v
		}
	}
	return name, ratio(most, sum)
}

// top returns the events with the most time, over all intervals, and the dominant class with its share: the largest class other than idle in
// transaction.
func (w *waitTrack) top() (events []Wait, dominant Dominant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum, classes := 0, map[string]int{}
	for what, n := range w.total {
		if what.class == byChoice {
			continue
		}
		sum += n
		classes[what.class] += n
	}
	for what, n := range w.total {
		if what.class != byChoice {
			events = append(events, Wait{Event: what.event, Class: what.class, Share: round(ratio(float64(n), float64(sum)))})
		}
	}
	slices.SortFunc(events, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Event, b.Event))
	})
	for _, c := range waitClasses() { // in a fixed order, so that ties are stable
		if s := round(ratio(float64(classes[c]), float64(sum))); c != idleInTx && s > dominant.Share {
			dominant = Dominant{Class: c, Share: s}
		}
	}
	return events, dominant
}

// seen returns how many busy sessions all samples together have seen.
func (w *waitTrack) seen() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.total {
		n += m
	}
	return n
}

// share returns the share of some events of all time of busy sessions, including what they wait for by choice.
func (w *waitTrack) share(events ...string) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	some, all := 0, 0
	for what, n := range w.total {
		all += n
		if slices.Contains(events, what.event) {
			some += n
		}
	}
	return ratio(float64(some), float64(all))
}

const fewSamples = 20

// lines returns the series of the classes that were seen; none if too few samples stand behind them for a chart to mean something.
func (w *waitTrack) lines(at []float64) []Line {
	if w.taken < fewSamples || 3*w.without > len(at) {
		return nil
	}
	var lines []Line
	for _, c := range waitClasses() {
		points := w.series[c]
		if slices.ContainsFunc(points, func(v float64) bool { return v > 0 }) {
			lines = append(lines, Line{Name: c, X: at, Y: points})
		}
	}
	return lines
}

// activity is the doctor's sampler, restricted to the sessions of the lab's database, without observers.
type activity struct {
	sampler  *doctor.Sampler
	database uint32
	last     time.Time
	stop     context.CancelFunc
	stopped  chan struct{}
}

// newActivity starts sampling the database of the connection string, until close. Sessions with the given pids do not count.
func newActivity(ctx context.Context, url string, ignore ...*pgx.Conn) (*activity, error) {
	s, err := doctor.NewSampler(ctx, doctor.SamplerConfig{URL: url, Window: 10 * time.Second, Every: sampleEvery, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	a := &activity{sampler: s, stopped: make(chan struct{})}
	for _, conn := range ignore {
		s.Ignore(conn.PgConn().PID())
	}
	if err := ignore[0].QueryRow(ctx, `SELECT oid FROM pg_database WHERE datname = current_database()`).Scan(&a.database); err != nil {
		s.Close()
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	a.stop = stop
	go func() { // ends with running; close waits for it
		defer close(a.stopped)
		s.Run(running)
	}()
	return a, nil
}

func (a *activity) close() {
	a.stop()
	<-a.stopped
	a.sampler.Close()
}

func (a *activity) newest() (busy, bool) {
	sample, ok := a.sampler.Last()
	if !ok || !sample.At.After(a.last) {
		return nil, false
	}
	a.last = sample.At
	found := busy{}
	for _, s := range sample.Sessions {
		if s.Database == a.database && (s.Kind == "client backend" || s.Kind == "parallel worker") {
			found[waitOf(s)]++
		}
	}
	return found, true
}

func waitOf(s doctor.Session) wait {
	event := "CPU"
	if s.WaitType != "" {
		event = fmt.Sprintf("%s:%s", s.WaitType, s.Wait)
	}
	switch class := string(s.Class); {
	case strings.HasPrefix(s.State, "idle in transaction"):
		return wait{idleEvent, idleInTx}
	case s.Class == doctor.Woken:
		return wait{"woken while idle", class}
	case class == "":
		return wait{event, byChoice}
	default:
		return wait{event, class}
	}
}
