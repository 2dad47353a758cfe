// Command bench runs the same work on Weir and on a peer, in turn, on one PostgreSQL server, and prints both
// figures and their ratio. Rates do not carry from one machine to another; ratios on one machine do better.
//
//	cd bench && go run . drain --jobs 500000
//	cd bench && go run . pinned --seconds 60 --pin write
//	cd bench && go run . latency --seconds 10
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/bench"
)

const usage = `usage: go run . drain  [--jobs N] [--rounds N] [--json] [--database URL]
       go run . pinned [--rate N] [--seconds N] [--pin read|write] [--json] [--database URL]
       go run . latency [--seconds N] [--rounds N] [--json] [--database URL]`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// comparison is what is printed with --json.
type comparison struct {
	Bench   string          `json:"bench"`
	Weir    []*bench.Report `json:"weir"`
	River   []*bench.Report `json:"river"`
	Ratio   bench.Spread    `json:"ratio"` // of jobs per second, Weir's to River's, round by round; of latency's medians, River's to Weir's
	Targets []bench.Target  `json:"targets,omitempty"`
}

func run(ctx context.Context, args []string, out, errs io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() { fmt.Fprintln(errs, usage) }
	url := flags.String("database", "", "")
	yes := flags.Bool("yes", false, "")
	asJSON := flags.Bool("json", false, "")
	jobs := flags.Int("jobs", 500_000, "")
	rounds := flags.Int("rounds", 3, "")
	rate := flags.Int("rate", 3000, "")
	seconds := flags.Float64("seconds", 60, "")
	pin := flags.String("pin", "read", "")
	if len(args) == 0 {
		return errors.New(usage)
	}
	name := args[0]
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}

	engines := []bench.Engine{weirEngine{errs}, riverEngine{errs}}
	var measure func(*bench.Database, bench.Engine) (*bench.Report, error)
	switch name {
	case "drain":
		connections := map[string]int{"river": 20}
		measure = func(d *bench.Database, e bench.Engine) (*bench.Report, error) {
			return bench.Drain(ctx, d, e, bench.DrainConfig{Jobs: *jobs, Concurrency: 2000, Connections: connections[e.Name()]})
		}
	case "pinned":
		*rounds = 1
		measure = func(d *bench.Database, e bench.Engine) (*bench.Report, error) {
			duration := time.Duration(*seconds * float64(time.Second))
			return bench.Pinned(ctx, d, e, bench.PinnedConfig{Duration: duration, Rate: *rate, Pin: *pin})
		}
	case "latency":
		measure = func(d *bench.Database, e bench.Engine) (*bench.Report, error) {
			return bench.Latency(ctx, d, e, bench.LatencyConfig{Duration: time.Duration(*seconds * float64(time.Second))})
		}
	default:
		return errors.New(usage)
	}

	d, err := bench.Open(ctx, bench.Config{URL: *url, Yes: *yes, Progress: errs}, engines...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	c := comparison{Bench: name}
	var ratios []float64
	for range *rounds {
		weir, err := measure(d, engines[0])
		if err != nil {
			return fmt.Errorf("weir: %w", err)
		}
		river, err := measure(d, engines[1])
		if err != nil {
			return fmt.Errorf("river: %w", err)
		}
		river.Targets = nil // they are Weir's promises
		c.Weir, c.River = append(c.Weir, weir), append(c.River, river)
		if name == "latency" {
			ratios = append(ratios, *river.P50 / *weir.P50)
		} else {
			ratios = append(ratios, speed(weir)/speed(river))
		}
	}
	c.Ratio = *bench.SpreadOf(ratios)
	if name == "drain" {
		c.Targets = []bench.Target{{What: "ratio to River", Got: c.Ratio.Median, Want: 8, Met: c.Ratio.Median >= 8}}
	}
	if *asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(c)
	}
	for _, r := range slices.Concat(c.Weir, c.River) {
		if err := r.Text(out); err != nil {
			return err
		}
	}
	what := "Weir to River"
	if name == "latency" {
		what = "latency's median, River to Weir"
	}
	_, err = fmt.Fprintf(out, "%s: %.1f (%.1f to %.1f in %d rounds)\n", what, c.Ratio.Median, c.Ratio.Min, c.Ratio.Max, c.Ratio.Samples)
	return err
}

// speed is the rate that is compared: under the pin, where there is one.
func speed(r *bench.Report) float64 {
	if r.During != nil {
		return r.During.JobsPerSecond
	}
	return r.JobsPerSecond
}
