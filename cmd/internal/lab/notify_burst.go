package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// burst is a steady load of inserts, whose rate the server could serve many times over, on top of which requests of another kind arrive for a
// while. All requests share the same sessions, as those of a program share its pool.
type burst struct {
	calm, lasts, limit time.Duration // before it; of it; most time for recovery
	steady, more       float64       // requests per second: always, and in addition during the burst
	flush              string
	suffix             string // of the names of the ways that it is planned from
}

// Figures of bursts only.
const (
	rateCalm, rateBurst       = "served, before", "served, in the burst"
	cpuCalm, cpuBurst         = "CPU, before", "CPU, in the burst"
	walCalm, walBurst         = "WAL, before", "WAL, in the burst"
	activeCalm, activeBurst   = "active sessions, before", "active sessions, in the burst"
	queuedAtEnd, recoveredIn  = "requests queued at its end", "queue gone after its end in"
	queuedGauge, notRecovered = "requests without a session", "queue not gone within"
)

// planBurst chooses rates from what has been measured: more notifications than the lock lets through, and in total no more than six tenths of
// what the server can do without the lock. It returns nil if there is no such rate.
func planBurst(r *run, suffix, flush string) *burst {
	alone, notify := r.result.Way("insert"+suffix), r.result.Way("insert + pg_notify"+suffix)
	most := alone.Rate
	if publish := r.result.Way("insert + weir.publish" + suffix); publish != nil {
		most = min(most, publish.Rate)
	}
	if notify.Rate == 0 {
		r.note("A burst was not measured%s: in so short a time no transaction with pg_notify ended.", suffix)
		return nil
	}
	b := &burst{calm: r.Duration / 4, lasts: r.Duration / 3, limit: 2 * r.Duration, steady: most / 4, flush: flush, suffix: suffix}
	b.more = min(3*notify.Rate, 0.6*most-b.steady)
	if b.more < 1.1*notify.Rate {
		r.note("A burst was not measured%s: %s transactions per second with pg_notify are too close to %s without the lock for a burst that "+
			"only the former can't serve.", suffix, Number(notify.Rate), Number(most))
		return nil
	}
	return b
}

// runBursts measures the same burst with each of the statements that its requests may add to their insert.
func runBursts(ctx context.Context, r *run, b *burst, writers *sessions, s sampler, conn *pgx.Conn) error {
	var tracks []*track
	for _, w := range notifyWays {
		if w.kind == Fix && !r.site.weir {
			continue
		}
		way := &Way{Name: "a burst of " + w.name + b.suffix, Kind: w.kind, Unit: "transactions",
			What: fmt.Sprintf("%s inserts arrive per second; for %s, %s more per second arrive, each to %s", Number(b.steady), b.lasts.Round(100*time.Millisecond), Number(b.more), w.what)}
		if b.flush == slowFlush {
			way.Settings = slowSettings
		}
		t := newTrack(way, b.calm+b.lasts+b.limit)
		t.every = max(r.Duration/50, 50*time.Millisecond)
		t.latencyOf = "from the request's arrival to its commit"
		if _, err := r.site.guard.Exec(ctx, `TRUNCATE weir_lab.entry`); err != nil {
			return err
		}
		if err := setFlush(ctx, r.site, writers, b.flush); err != nil {
			return err
		}
		if err := b.measure(ctx, r, t, writers, s, conn, w.add); err != nil {
			return err
		}
		r.result.Ways = append(r.result.Ways, t.sum())
		tracks = append(tracks, t)
	}
	marks := []Mark{{At: b.calm.Seconds(), Until: (b.calm + b.lasts).Seconds(), Label: "the burst"}}
	served := Chart{Title: "A burst: transactions per second", Note: fmt.Sprintf("%s arrive per second, and %s during the burst", Number(b.steady), Number(b.steady+b.more)),
		Kind: Lines, X: Axis{Label: "seconds"}, Y: Axis{Label: "transactions per second"}, Marks: marks}
	for _, t := range tracks {
		served.Lines = append(served.Lines, Line{t.way.Name, t.way.Kind, t.at, rounded(t.rate)})
	}
	r.chart(served)
	r.chartServer(tracks, " during the burst", marks...)
	r.chartGauge(tracks, queuedGauge, Chart{Title: "Requests that wait for a session", Note: "recovery is when none does", Y: Axis{Label: "requests"}, Marks: marks})
	return nil
}

// measure measures one burst, and ends it when it has been calm again for a while, or takes too long.
func (b *burst) measure(ctx context.Context, r *run, t *track, writers *sessions, s sampler, conn *pgx.Conn, add string) error {
	a := &arrivals{pace: pace{{b.calm, b.steady}, {b.lasts, b.steady + b.more}, {b.limit + b.calm, b.steady}}}
	first, share := a.due(b.calm), b.more/(b.steady+b.more)
	last := a.due(b.calm + b.lasts)
	added := func(i int) string { // the burst's requests are evenly spread among the others
		if k := i - first; k >= 0 && i < last && int(float64(k+1)*share) > int(float64(k)*share) {
			return add
		}
		return ""
	}
	gauges := append(serverGauges(r.site, conn), gauge{queuedGauge, func(context.Context) (float64, error) { return float64(a.queued()), nil }})
	queued, recovered := 0, time.Duration(-1)
	a.begun = time.Now()
	err := r.measure(ctx, t, b.calm+b.lasts+b.limit, s, gauges, func(until context.Context, m *load.Tally) error {
		until, over := context.WithCancel(until)
		watched := make(chan struct{})
		go func() { // ends with until; waited for below
			defer close(watched)
			defer over()
			if !sleep.For(until, time.Until(a.begun.Add(b.calm+b.lasts))) {
				return
			}
			queued = a.queued()
			for a.queued() > 0 {
				if !sleep.For(until, 10*time.Millisecond) {
					return
				}
			}
			recovered = time.Since(a.begun) - b.calm - b.lasts
			sleep.For(until, b.calm) // to be seen on the charts
		}()
		defer func() { over(); <-watched }()
		return writers.serve(ctx, until, a, m, func(ctx context.Context, conn *pgx.Conn, i int) error {
			return writeEntry(added(i))(ctx, conn, i)
		})
	})
	if err != nil {
		return err
	}
	b.figures(t, queued, recovered)
	return nil
}

// figures adds what the burst is judged by. The means leave out the first half of each phase, in which gauges still show the one before.
func (b *burst) figures(t *track, queued int, recovered time.Duration) {
	add := func(name string, value float64, unit string) {
		t.way.Figures = append(t.way.Figures, Figure{name, value, unit})
	}
	end := b.calm + b.lasts
	for _, f := range []struct {
		gauge        string // none: what was served
		calm, during string
		unit         string
		needs        time.Duration // of a phase's second half
	}{
		{"", rateCalm, rateBurst, "per second", 0},
		{serverCPU, cpuCalm, cpuBurst, "cores", gaugeEvery},
		{walWritten, walCalm, walBurst, "MB/s", gaugeEvery},
		{activeSessions, activeCalm, activeBurst, "", 2 * t.every},
	} {
		mean := func(from, to time.Duration) (float64, bool) {
			if f.gauge == "" {
				return t.during(t.rate, from, to)
			}
			return t.gauged(f.gauge, from, to)
		}
		calm, ok := mean(b.calm/2, b.calm)
		during, also := mean(b.calm+b.lasts/2, end)
		if ok && also && b.calm/2 >= f.needs {
			add(f.calm, calm, f.unit)
			add(f.during, during, f.unit)
		}
	}
	add(queuedAtEnd, float64(queued), "")
	if recovered < 0 {
		add(notRecovered, round(b.limit.Seconds()), "s")
	} else {
		add(recoveredIn, round(recovered.Seconds()), "s")
	}
}

// burstVerdict describes the bursts in a sentence each, the one that notifies first.
func burstVerdict(r *Result, suffix string) (sentences []string) {
	for _, w := range notifyWays {
		way := r.Way("a burst of " + w.name + suffix)
		if way == nil {
			continue
		}
		figure := func(name string) float64 { v, _ := way.Figure(name); return v }
		moved := "the time was too short to see what the server did"
		if _, ok := way.Figure(rateCalm); ok {
			moved = fmt.Sprintf("the server went from %s to %s transactions per second", Number(figure(rateCalm)), Number(figure(rateBurst)))
		}
		for _, f := range []struct{ calm, during, text string }{
			{cpuCalm, cpuBurst, ", its CPU from %s to %s cores"}, {walCalm, walBurst, ", the WAL that it writes from %s to %s MB/s"},
			{activeCalm, activeBurst, ", and its active sessions from %s to %s"},
		} {
			if _, ok := way.Figure(f.calm); ok { // not if the phases were too short for it
				moved += fmt.Sprintf(f.text, Number(figure(f.calm)), Number(figure(f.during)))
			}
		}
		end := fmt.Sprintf("had not gone %s s after its end", Number(figure(notRecovered)))
		switch s, ok := way.Figure(recoveredIn); {
		case ok && s < 0.1:
			end = "had gone as soon as it ended"
		case ok:
			end = fmt.Sprintf("had gone %s s after its end", Number(s))
		}
		if w.kind == Collapse {
			burst := fmt.Sprintf("In a burst of notifying transactions (%s) %s. The queue of requests %s.", way.What, moved, end)
			sentences = append([]string{burst}, sentences...)
			continue
		}
		sentences = append(sentences, fmt.Sprintf("In the same burst of %s%s, %s. The queue of requests %s.", w.name, suffix, moved, end))
	}
	return sentences
}
