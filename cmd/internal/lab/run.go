package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// Config selects what to measure. Scenario is required.
type Config struct {
	Scenario string // one of Scenarios

	Database      string // URL; "": use a private server, removed at the end
	AllowNonempty bool   // allow a database that contains something else
	Major         int    // of the private server, 14 to 18; 0: that of WEIR_POSTGRES, or 18

	// Duration is how long each way is measured; default 10 s, and 16 s for scenario pinned. Scenarios with many short measurements divide it
	// among them.
	Duration time.Duration

	// Sizes of the scenarios' loads. Zero fields mean the defaults.
	Notify    NotifySize
	Listeners ListenersSize
	Storm     StormSize
	Tree      TreeSize
	Pinned    PinnedSize

	Command  string         // the command that repeats this run, for the result
	Follows  bool           // another run has just ended, so the load average before this one is the lab's own
	Progress func(Progress) // default: none
}

// Progress is the progress of a run.
type Progress struct {
	Scenario string
	Way      string        // "": between ways
	Step     int           // of Steps, from 1: a way, or a round of one
	Steps    int           //
	Elapsed  time.Duration // of this step
	Total    time.Duration // that it takes
	Rates    []float64     // of the way so far, newest last
	Unit     string
	Wait     string  // the most frequent wait of sessions now
	Share    float64 // of the sessions' time
	Say      string  // a sentence, while nothing is measured
}

// scenario is one collapse with its fixes.
type scenario struct {
	title, about string
	needs        func(c *Config) needs // also fills in the defaults of the sizes
	run          func(ctx context.Context, r *run) error
	load         func(ctx context.Context, s *site, c LoadConfig) error
}

// scenarios are listed here only, by name.
var scenarios = map[string]*scenario{
	"notify":    notifyScenario,
	"listeners": listenersScenario,
	"storm":     stormScenario,
	"tree":      treeScenario,
	"pinned":    pinnedScenario,
}

// run is a scenario in progress.
type run struct {
	Config
	site   *site
	result *Result
	step   int
	steps  int
	closes []func()
}

// Run measures all ways of one scenario. It cleans up afterwards, even if it fails or ctx ends. A result with an error has what was measured before, and says
// in Failed what went wrong; there is none if the Config is wrong.
func Run(ctx context.Context, c Config) (*Result, error) {
	s, ok := scenarios[c.Scenario]
	if !ok {
		return nil, unknownScenario(c.Scenario)
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	if err := c.Usable(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if c.Duration < 0 {
		return nil, fmt.Errorf("lab: the duration must not be negative, got %s", c.Duration)
	}
	if c.Duration == 0 {
		c.Duration = 10 * time.Second
		if c.Scenario == "pinned" {
			c.Duration = 16 * time.Second
		}
	}
	r := &run{Config: c, result: &Result{
		Scenario: c.Scenario, Title: s.title, About: s.about, StartedAt: time.Now().UTC().Truncate(time.Second), Command: c.Command, Ways: []*Way{}, Charts: []Chart{},
	}}
	err := r.scenario(ctx, s)
	if err != nil {
		r.result.fail(ctx, err)
	}
	return r.result, err
}

// scenario prepares where to measure, runs the scenario there, and cleans up.
func (r *run) scenario(ctx context.Context, s *scenario) (err error) {
	conditions := watchConditions(ctx, r.Database == "", !r.Follows)
	defer conditions()
	n := s.needs(&r.Config)
	r.site, err = openSite(ctx, r.Database, r.Major, r.AllowNonempty, n, r.say)
	if err != nil {
		return err
	}
	defer func() {
		r.say("cleaning up")
		for _, f := range r.closes {
			f()
		}
		err = errors.Join(r.site.explain(err), r.site.close())
	}()
	r.result.Notes = r.site.notes
	if r.result.Server, err = r.site.facts(ctx); err != nil {
		return err
	}
	begun := time.Now()
	err = s.run(ctx, r)
	r.result.Seconds = round(time.Since(begun).Seconds())
	seen := conditions()
	r.result.Conditions = &seen
	if err != nil {
		return fmt.Errorf("lab: %s: %w", r.Scenario, err)
	}
	return nil
}

// runLoad implements Load.
func runLoad(ctx context.Context, s *scenario, c LoadConfig) (err error) {
	if c.Database == "" {
		return errors.New("lab: LoadConfig.Database is empty: name the database that the load runs in")
	}
	site, err := openSite(ctx, c.Database, 0, true, needs{}, func(text string) { c.Log.Debug("lab: " + text) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	if err := s.load(ctx, site, c); err != nil && ctx.Err() == nil {
		return fmt.Errorf("lab: load %s: %w", c.Scenario, err)
	}
	return nil
}

// say reports what happens between measurements.
func (r *run) say(text string) {
	r.Progress(Progress{Scenario: r.Scenario, Step: r.step, Steps: r.steps, Say: text})
}

// note adds a note to the result.
func (r *run) note(format string, args ...any) {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, args...))
}

// set records a size of the load.
func (r *run) set(name string, value any) {
	r.result.Settings = append(r.result.Settings, Setting{name, fmt.Sprint(value)})
}

// watchers opens two sessions that only observe: a sampler of waits, and a connection for gauges. They are closed at the end of the run.
func (r *run) watchers(ctx context.Context) (*activity, *pgx.Conn, error) {
	conn, err := connect(ctx, r.site.url, watcherName, nil)
	if err != nil {
		return nil, nil, err
	}
	r.closes = append(r.closes, func() { closeConn(conn) })
	a, err := newActivity(ctx, r.site.url, r.site.guard, conn)
	if err != nil {
		return nil, nil, err
	}
	r.closes = append(r.closes, a.close)
	return a, conn, nil
}

// measure measures one step of a track, and reports progress.
func (r *run) measure(ctx context.Context, t *track, d time.Duration, s sampler, gauges []gauge, work func(until context.Context, m *load.Tally) error) error {
	r.step++
	tell := func(t *track, elapsed time.Duration) {
		p := Progress{
			Scenario: r.Scenario, Way: t.way.Name, Step: r.step, Steps: r.steps, Elapsed: min(elapsed, d), Total: d,
			Rates: t.rate, Unit: t.way.Unit,
		}
		p.Wait, p.Share = t.waits.last()
		r.Progress(p)
	}
	if err := t.measure(ctx, d, s, gauges, tell, work); err != nil {
		return fmt.Errorf("%s: %w", t.way.Name, err)
	}
	return nil
}

// chart adds a chart to the result, with the command and the settings that produced it. A line without points that can be drawn is left out, and so is a chart
// without lines.
func (r *run) chart(c Chart, more ...Setting) {
	c.Lines = slices.DeleteFunc(c.Lines, func(l Line) bool { // on a logarithmic axis zero is nowhere
		return len(l.X) == 0 || c.Y.Log && !slices.ContainsFunc(l.Y, func(y float64) bool { return y > 0 })
	})
	if len(c.Lines) == 0 {
		return
	}
	c.Command = r.Command
	c.Settings = append(append([]Setting{}, r.result.Settings...), more...)
	r.result.Charts = append(r.result.Charts, c)
}

// chartTracks adds the charts common to all scenarios: throughput and latency over time, and the waits of each way's sessions.
func (r *run) chartTracks(tracks []*track, about string) {
	if len(tracks) == 0 {
		return
	}
	line := func(t *track, y []float64) Line { return Line{t.way.Name, t.way.Kind, t.at, y} }
	rates := Chart{Title: about + " over time", Kind: Lines, X: Axis{Label: "seconds"}, Y: Axis{Label: tracks[0].way.Unit + " per second"}}
	slow := Chart{Title: "Latency over time, 99th percentile", Note: tracks[0].latencyOf, Kind: Lines, X: Axis{Label: "seconds"}, Y: Axis{Label: "ms", Log: true}}
	for _, t := range tracks {
		rates.Lines = append(rates.Lines, line(t, rounded(t.rate)))
		slow.Lines = append(slow.Lines, line(t, t.p99))
	}
	r.chart(rates)
	r.chart(slow)
	for _, t := range tracks {
		r.chartWaits(t, Chart{Title: "What sessions wait for: " + t.way.Name})
	}
}

// chartWaits adds a chart of what a way's sessions wait for, if there are enough samples for one.
func (r *run) chartWaits(t *track, c Chart) {
	if c.Lines = t.waits.lines(t.at); len(c.Lines) == 0 {
		return
	}
	c.Kind, c.X, c.Y = Stack, Axis{Label: "seconds"}, Axis{Label: "sessions, stacked"}
	c.Note = strings.TrimPrefix(fmt.Sprintf("%s; %d samples", c.Note, t.waits.taken), "; ")
	r.chart(c, t.way.Settings...)
}

// chartGauge adds a chart of one gauge of all tracks that have it.
func (r *run) chartGauge(tracks []*track, name string, c Chart) {
	for _, t := range tracks {
		if from := t.blank[name]; from < len(t.gauges[name]) {
			c.Lines = append(c.Lines, Line{t.way.Name, t.way.Kind, t.at[from:], t.gauges[name][from:]})
		}
	}
	c.Kind, c.X = Lines, Axis{Label: "seconds"}
	r.chart(c)
}

func rounded(values []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = round(v)
	}
	return out
}
