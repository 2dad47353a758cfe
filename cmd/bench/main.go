// Command bench measures Weir for those who make it: beside a peer, in turn on one PostgreSQL server, and what users need not measure for themselves,
// for which there are `weir bench` and `weir lab`. Rates do not carry from one machine to another; ratios on one machine do better.
//
//	go run ./cmd/bench drain --jobs 500000                # beside River
//	go run ./cmd/bench pinned --seconds 60 --pin write
//	go run ./cmd/bench fanout --subscribers 10000
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/alecthomas/kong"

	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// command is the command line.
type command struct {
	Drain   drainCmd   `cmd:"" help:"How fast a backlog of no-op jobs is worked, beside River."`
	Latency latencyCmd `cmd:"" help:"How soon a job starts, and what an idle worker costs, beside River."`
	Pinned  pinnedCmd  `cmd:"" help:"What a long transaction elsewhere in the database does to a flow of jobs, beside River."`

	Workers workersCmd `cmd:"" help:"How fast and how evenly many workers share one queue."`
	Age     ageCmd     `cmd:"" help:"What looks, cancellations, claims and giving space back take in a log that has grown at a steady flow."`
	Memory  memoryCmd  `cmd:"" help:"How much memory a worker takes with many jobs running."`

	Publish   publishCmd   `cmd:"" help:"What publishing costs beside a plain insert, and beside pg_notify."`
	Pingpong  pingPongCmd  `cmd:"" help:"How fast two clients notify each other beside ever more idle listeners, and so on PostgreSQL."`
	Fanout    fanoutCmd    `cmd:"" help:"How fast messages go out to many subscribers, and how soon."`
	Listeners listenersCmd `cmd:"" help:"How much memory an idle subscriber takes."`
	Storm     stormCmd     `cmd:"" help:"How soon all are served who connect in the same instant."`
	Child     childCmd     `cmd:"" name:"__child" hidden:""`
}

// streams are those of the process.
type streams struct {
	in        io.Reader
	out, errs io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], &streams{os.Stdin, os.Stdout, os.Stderr}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, s *streams) error {
	var line command
	parser, err := kong.New(&line, kong.Name("bench"), kong.Writers(s.out, s.errs), kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(s),
		kong.Description("Measures Weir for those who make it. Without --database, on a private PostgreSQL with fsync and synchronous_commit on."))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return fmt.Errorf("%w (--help lists the commands)", err)
	}
	return parsed.Run()
}

// flags are every command's.
type flags struct {
	Database   string `placeholder:"URL" help:"Where to measure. Default: on a private server."`
	JSON       bool   `name:"json" help:"Print one JSON object."`
	Yes        bool   `help:"Measure although the database holds unfinished jobs."`
	CPUProfile string `name:"cpu-profile" type:"path" placeholder:"FILE" help:"Write a CPU profile of this process, for go tool pprof."`
}

// with has something measured on the database, with so many connections if more than usual.
func (f *flags) with(ctx context.Context, s *streams, connections int, measure func(*load.Database) error, engines ...load.Engine) error {
	config := load.Config{URL: f.Database, Yes: f.Yes, MaxConnections: connections, Progress: s.errs}
	return load.Run(ctx, config, f.CPUProfile, measure, engines...)
}

// alone measures Weir, and prints the report.
func (f *flags) alone(ctx context.Context, s *streams, connections int, measure func(*load.Database, load.Engine) (*load.Report, error)) error {
	weir := engine.Engine{Log: s.errs}
	return f.with(ctx, s, connections, func(d *load.Database) error {
		report, err := measure(d, weir)
		if err != nil {
			return err
		}
		if f.JSON {
			return printJSON(s.out, report)
		}
		return report.Text(s.out)
	}, weir)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
