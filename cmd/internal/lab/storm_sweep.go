package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Figures of a sweep only.
const (
	offeredRate = "asked for"
	unanswered  = "without an answer at the end"
)

// sweep is what the clients of one rate got.
type sweep struct {
	rate int
	way  *Way
	ran  time.Duration // CPU time of the postmaster
}

// kept reports whether the server answered as many as asked, soon enough that no line of waiting clients had formed.
func (s sweep) kept() bool {
	return s.way.Rate >= 0.9*float64(s.rate) && s.way.Latency != nil && s.way.Latency.P50 < 50
}

// runSweep lets clients arrive at one rate after another, until the server does not keep up. Each client connects, waits for the request for
// authentication and leaves.
func runSweep(ctx context.Context, r *run, to target, postmaster int) ([]sweep, error) {
	var all []sweep
	lasts := max(r.Duration/5, 200*time.Millisecond)
	accepts, answers := Line{Name: "TCP accept, median", Kind: Baseline}, Line{Name: "request for authentication, median", Kind: Collapse}
	slow := Line{Name: "request for authentication, 99%", Kind: Collapse}
	served := Line{Name: "answered", Kind: Collapse}
	shares := []Line{{Name: postmasterCPU, Kind: Collapse}, {Name: postmasterUser, Kind: Fix}, {Name: postmasterSystem, Kind: Fix}, {Name: postmasterReady, Kind: Collapse}, {Name: machineCPU, Kind: Baseline}}
	for i, rate := range r.Storm.Rates {
		s, err := sweepAt(ctx, r, to, postmaster, rate, lasts)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		r.result.Ways = append(r.result.Ways, s.way)
		x := float64(rate)
		add := func(l *Line, y float64) { l.X, l.Y = append(l.X, x), append(l.Y, y) }
		add(&served, s.way.Rate)
		if s.way.Latency != nil {
			accept, _ := s.way.Figure(acceptedAfter)
			add(&accepts, accept)
			add(&answers, s.way.Latency.P50)
			add(&slow, s.way.Latency.P99)
		}
		for i := range shares {
			if v, ok := s.way.Figure(shares[i].Name); ok {
				add(&shares[i], v)
			}
		}
		if err := settle(ctx, []target{to}); err != nil {
			return nil, err
		}
		if !s.kept() {
			s.way.Kind = Collapse
			if left := r.Storm.Rates[i+1:]; len(left) > 0 {
				r.note("The rates %s were left out of the sweep: this machine did not keep up with %d connections per second.", list(left), rate)
			}
			break
		}
	}
	x := Axis{Label: "connections per second, asked for", Steps: true}
	for _, c := range []Chart{
		{Title: "Connections answered per second", Y: Axis{Label: "per second"}, Lines: []Line{served}},
		{Title: "TCP accept against request for authentication", Note: "the system accepts a connection before the postmaster has seen it", Y: Axis{Label: "ms", Log: true},
			Lines: []Line{accepts, answers, slow}},
		{Title: "What the postmaster did", Note: "it has one thread, so 100 is all that it can", Y: Axis{Label: "percent"}, Lines: shares},
	} {
		c.Kind, c.X = Lines, x
		c.Lines = slices.DeleteFunc(c.Lines, func(l Line) bool { return len(l.X) == 0 })
		if len(c.Lines) > 0 {
			r.chart(c)
		}
	}
	return all, nil
}

// sweepAt lets clients arrive at one rate.
func sweepAt(ctx context.Context, r *run, to target, postmaster, rate int, lasts time.Duration) (sweep, error) {
	way := &Way{Name: fmt.Sprintf("%d connections per second", rate), Kind: Baseline, Unit: "connections", What: "clients arrive at this rate, whether or not earlier ones have their answer"}
	t := newTrack(way, lasts)
	t.latencyOf = "from startup message to request for authentication"
	accepted := load.NewHistogram()
	var mu sync.Mutex // guards accepted
	cut := 0
	var work toil
	err := r.measure(ctx, t, lasts, nil, nil, func(until context.Context, m *load.Tally) error {
		a := &arrivals{pace: pace{{lasts, float64(rate)}}, begun: time.Now()}
		before, ok := effortOf(postmaster)
		clients := min(r.Storm.Clients, rate) // that wait at the same time
		errs := make([]error, clients)
		var all sync.WaitGroup
		for c := range clients {
			all.Go(func() {
				for {
					i, _, ok := a.next(until)
					if !ok {
						return
					}
					k := knockAt(until, to, i)
					if k.conn != nil {
						k.conn.Close()
					}
					mu.Lock()
					if k.accepted > 0 {
						accepted.Add(k.accepted)
					}
					if cutOff(until, k.err) {
						cut++
					}
					mu.Unlock()
					switch {
					case k.err == nil && !k.refused:
						m.Did(1, k.answered)
					case k.err != nil && !cutOff(until, k.err):
						errs[c] = k.err
						return
					}
				}
			})
		}
		all.Wait()
		if after, also := effortOf(postmaster); ok && also {
			work.add(before, after)
		}
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return sweep{}, err
	}
	t.sum()
	way.Figures = append(work.figures(), Figure{offeredRate, float64(rate), "connections per second"}, Figure{acceptedAfter, milliseconds(accepted, 50), "ms"}, Figure{unanswered, float64(cut), "connections"})
	return sweep{rate, way, work.ran}, nil
}

// sweepText says how far the server kept up, and why not further.
func sweepText(all []sweep) string {
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	median := func(w *Way) float64 {
		if w.Latency == nil {
			return 0
		}
		return w.Latency.P50
	}
	because := judgePostmaster(last.way)
	if last.kept() {
		text := fmt.Sprintf("The server kept up with every rate of the sweep, to %d connections per second", last.rate)
		if because != "" {
			text += "; at that rate " + because
		}
		return text + "."
	}
	text := ""
	if len(all) > 1 {
		before := all[len(all)-2]
		text = fmt.Sprintf("At %d connections per second the server kept up, with answers after %s ms. ", before.rate, Number(median(before.way)))
	}
	accept, _ := last.way.Figure(acceptedAfter)
	text += fmt.Sprintf("Of %d per second it answered %s, half of them after %s ms or longer, although TCP accepted half of them within %s ms", last.rate,
		Number(last.way.Rate), Number(median(last.way)), Number(accept))
	if because == "" {
		return text + "."
	}
	if ran, _ := last.way.Figure(postmasterCPU); ran < 90 {
		because += ". This machine can't bring a postmaster to its limit with clients that it runs itself"
	}
	return text + "; " + strings.TrimSuffix(because, ".") + "."
}
