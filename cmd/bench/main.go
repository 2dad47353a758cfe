// Command bench measures Weir for its developers: next to River, in turn on one PostgreSQL server, and in respects that users need not measure
// themselves; for users there are `weir bench` and `weir lab`. Rates do not carry over from one machine to another; ratios on one machine do.
//
//	go run ./cmd/bench drain --jobs 500000                # next to River
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
	Drain   drainCmd   `cmd:"" help:"Measure how fast a backlog of no-op jobs is worked, next to River."`
	Latency latencyCmd `cmd:"" help:"Measure how soon a job starts, and what an idle worker costs, next to River."`
	Pinned  pinnedCmd  `cmd:"" help:"Measure how a long transaction affects a flow of jobs, next to River."`

	Workers workersCmd `cmd:"" help:"Measure how fast and how evenly many workers share one queue."`
	Fleet   fleetCmd   `cmd:"" help:"Measure what many workers cost that share a limit, and how soon a freed slot is used again."`
	Age     ageCmd     `cmd:"" help:"Measure inspections, cancellations, claims and reclaiming in a log that has grown in a steady flow."`
	Retry   retryCmd   `cmd:"" help:"Measure an operation that retries all failed jobs."`
	UI      uiCmd      `cmd:"" name:"ui" help:"Measure each page of the web UI in a log with very many jobs."`
	Memory  memoryCmd  `cmd:"" help:"Measure the memory of a worker with many running jobs."`

	Publish   publishCmd   `cmd:"" help:"Measure what publishing costs next to a plain insert, and next to pg_notify."`
	Pingpong  pingPongCmd  `cmd:"" help:"Measure how fast two clients notify each other with more and more idle listeners, on a hub and on PostgreSQL."`
	Fanout    fanoutCmd    `cmd:"" help:"Measure how fast, and how soon, messages reach many subscribers."`
	Listeners listenersCmd `cmd:"" help:"Measure the memory of an idle subscriber."`
	Hubs      hubsCmd      `cmd:"" help:"Measure what more hubs cost while messages flow, each for itself, from a standby, and joined over NATS."`
	HTTP      httpCmd      `cmd:"" name:"http" help:"Measure jobs worked over HTTP, next to a worker with a connection to the database."`
	Storm     stormCmd     `cmd:"" help:"Measure how soon clients that connect at the same time are served."`
	Child     childCmd     `cmd:"" name:"__child" hidden:""`
}

// streams are the streams of the process.
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
		kong.Description("Measures Weir for its developers. Without --database, it uses a private PostgreSQL server with fsync and synchronous_commit on."))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return fmt.Errorf("%w (--help lists the commands)", err)
	}
	return parsed.Run()
}

// flags are the flags of every command.
type flags struct {
	Database   string `placeholder:"URL" help:"Database to measure on. Default: a private server."`
	JSON       bool   `name:"json" help:"Print a single JSON object."`
	Yes        bool   `help:"Measure even if the database has unfinished jobs."`
	CPUProfile string `name:"cpu-profile" type:"path" placeholder:"FILE" help:"Write a CPU profile of this process, for go tool pprof."`
}

// with runs a measurement on the database, with this number of connections if it is more than usual.
func (f *flags) with(ctx context.Context, s *streams, connections int, measure func(*load.Database) error, engines ...load.Engine) error {
	config := load.Config{URL: f.Database, Yes: f.Yes, MaxConnections: connections, Progress: s.errs}
	return load.Run(ctx, config, f.CPUProfile, measure, engines...)
}

// alone measures only Weir, and prints the report.
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
