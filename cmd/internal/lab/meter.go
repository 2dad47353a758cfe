package lab

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// track records one way over its measured time, which may consist of several rounds.
type track struct {
	way   *Way
	every time.Duration // between points of the series

	seconds        float64
	at             []float64 // end of each interval, in seconds of measured time
	rate, p50, p99 []float64
	waits          waitTrack
	gauges         map[string][]float64
	took           load.Histogram
	latencyOf      string
	gaugeNames     []string
	blank          map[string]int // how many points of a gauge's series precede its first value
}

// newTrack starts the record of a way that is measured for a total time.
func newTrack(w *Way, total time.Duration) *track {
	return &track{
		way: w, every: min(max(total/80, 200*time.Millisecond), 5*time.Second),
		took: load.NewHistogram(), gauges: map[string][]float64{}, blank: map[string]int{}, latencyOf: "each of the " + w.Unit,
	}
}

// gauge is a value that is read periodically.
type gauge struct {
	name string
	read func(ctx context.Context) (float64, error)
}

// measure runs work for d and records it. work must return soon after until ends; what it does later is not counted. The sampler may be nil.
// report, if set, is called for each interval.
func (t *track) measure(
	ctx context.Context, d time.Duration, s sampler, gauges []gauge, report func(t *track, elapsed time.Duration),
	work func(until context.Context, m *load.Tally) error,
) error {
	until, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	m := load.NewTally()
	finished := make(chan error, 1)
	go func() { finished <- work(until, m) }() // ends with until; waited for below
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer cancel()
	if s != nil {
		watchers.Go(func() { t.waits.watch(until, s) })
	}
	now := &levels{values: map[string]float64{}}
	for _, g := range gauges {
		if !slices.Contains(t.gaugeNames, g.name) {
			t.gaugeNames = append(t.gaugeNames, g.name)
		}
	}
	if len(gauges) > 0 {
		watchers.Go(func() { now.watch(until, t.every, gauges) })
	}
	ticker := time.NewTicker(t.every)
	defer ticker.Stop()
	begun, from := time.Now(), t.seconds
	last := begun
	cut := func(at time.Time) {
		t.add(from+at.Sub(begun).Seconds(), at.Sub(last).Seconds(), m, now)
		last = at
		if report != nil {
			report(t, at.Sub(begun))
		}
	}
	for {
		select {
		case at := <-ticker.C:
			cut(at)
			continue
		case err := <-finished: // early
			cut(time.Now())
			t.seconds = from + last.Sub(begun).Seconds()
			return err
		case <-until.Done():
		}
		if rest := time.Since(last); rest > t.every/4 || len(t.at) == 0 {
			cut(time.Now())
		}
		t.seconds = from + last.Sub(begun).Seconds()
		if err := <-finished; err != nil {
			return err
		}
		return ctx.Err()
	}
}

// add appends one interval to the series.
func (t *track) add(at, seconds float64, m *load.Tally, now *levels) {
	done, took := m.Cut()
	t.way.Done += done
	t.took.Merge(took)
	t.at = append(t.at, at)
	t.rate = append(t.rate, float64(done)/max(seconds, 1e-9))
	t.p50 = append(t.p50, milliseconds(took, 50))
	t.p99 = append(t.p99, milliseconds(took, 99))
	t.waits.cut()
	for _, name := range t.gaugeNames {
		v, known := now.get(name)
		if points := t.gauges[name]; !known && len(points) > 0 {
			v = points[len(points)-1] // of the round before
		}
		if !known && t.blank[name] == len(t.gauges[name]) {
			t.blank[name]++
		}
		t.gauges[name] = append(t.gauges[name], v)
	}
}

// leastWait is the share from which on an event is listed. A class may consist of many with a small share each.
const leastWait = 0.001

// sum computes the way's figures from the record.
func (t *track) sum() *Way {
	w := t.way
	w.Seconds = round(t.seconds)
	w.Rate = round(ratio(float64(w.Done), t.seconds))
	if n := len(t.rate); n > 0 {
		s := load.SpreadOf(t.rate)
		w.Spread = &Spread{Median: round(s.Median), Min: round(s.Min), Max: round(s.Max), Samples: n}
	}
	if t.took.At(50) != nil {
		w.Latency = latencyOf(t.took, t.latencyOf)
	}
	w.Waits, w.Dominant = t.waits.top()
	w.Waits = slices.DeleteFunc(w.Waits, func(w Wait) bool { return w.Share < leastWait })
	return w
}

// within returns the points of a series between two moments of measured time.
func (t *track) within(series []float64, from, to time.Duration) (points []float64) {
	for i, at := range t.at {
		if i < len(series) && at > from.Seconds() && at <= to.Seconds() {
			points = append(points, series[i])
		}
	}
	return points
}

// during returns the mean of these points; false if there is none, which is not the same as zero.
func (t *track) during(series []float64, from, to time.Duration) (mean float64, ok bool) {
	points := t.within(series, from, to)
	return round(meanOf(points)), len(points) > 0
}

// gauged returns the mean of a gauge between two moments; false if it was not read by then.
func (t *track) gauged(name string, from, to time.Duration) (mean float64, ok bool) {
	unread := t.within(t.gauges[name][:t.blank[name]], from, to)
	points := t.within(t.gauges[name], from, to)[len(unread):]
	return round(meanOf(points)), len(points) > 0
}

func meanOf(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return ratio(sum, float64(len(values)))
}

func latencyOf(h load.Histogram, of string) *Latency {
	return &Latency{Of: of, P50: milliseconds(h, 50), P90: milliseconds(h, 90), P99: milliseconds(h, 99), Max: milliseconds(h, 100)}
}

// milliseconds returns a percentile, or 0 if nothing was recorded.
func milliseconds(h load.Histogram, percent float64) float64 {
	if ms := h.At(percent); ms != nil {
		return round(*ms)
	}
	return 0
}

// levels are the newest values of gauges.
type levels struct {
	mu     sync.Mutex
	values map[string]float64
}

// get returns a gauge's newest value; false if it has not been read yet.
func (l *levels) get(name string) (float64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, known := l.values[name]
	return round(v), known
}

// watch reads the gauges until ctx ends. A gauge that can't be read keeps its value: a flat piece in a series is better than a failed run.
func (l *levels) watch(ctx context.Context, every time.Duration, gauges []gauge) {
	for ctx.Err() == nil {
		for _, g := range gauges {
			short, cancel := unhurried(ctx)
			v, err := g.read(short)
			cancel()
			if err == nil {
				l.mu.Lock()
				l.values[g.name] = v
				l.mu.Unlock()
			}
		}
		sleep.For(ctx, every/2)
	}
}

// unhurried returns a context for a short query that outlives its parent, because pgx closes a connection whose query's context ends.
func unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
