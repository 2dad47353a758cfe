package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
)

// benchCmd measures Weir on a database given by --database or DATABASE_URL, or else on a private PostgreSQL.
type benchCmd struct {
	Drain    benchDrainCmd    `cmd:"" help:"Measure how fast a backlog of no-op jobs is processed."`
	Features benchFeaturesCmd `cmd:"" help:"Measure what unique jobs, limits, keys and schedules cost, each in turn with plain jobs."`
	Fair     benchFairCmd     `cmd:"" help:"Measure how long other tenants wait when one of them enqueues a million jobs."`
	Steady   benchSteadyCmd   `cmd:"" help:"Measure what enqueueing costs compared with a plain INSERT, while a worker runs."`
	Latency  benchLatencyCmd  `cmd:"" help:"Measure how soon a job starts, and what an idle worker costs."`
	Tree     benchTreeCmd     `cmd:"" help:"Measure how fast many processes build a tree in tables of their own, beside as many flat jobs."`
	Chord    benchChordCmd    `cmd:"" help:"Measure what it costs to count the members of flows, and how soon callbacks start."`
	DAG      benchDAGCmd      `cmd:"" name:"dag" help:"Measure how fast a graph of tasks is worked that come after others."`

	TreeWorker benchTreeWorkerCmd `cmd:"" hidden:"" help:"A worker process of weir bench tree."`
}

// Help is shown by weir bench --help.
func (benchCmd) Help() string {
	return "Without --database or DATABASE_URL, a private PostgreSQL is started with fsync and synchronous_commit on, and removed at the end. " +
		"To use an installed PostgreSQL, set WEIR_POSTGRES to its directory, such as /usr/lib/postgresql/15. " +
		"On your own database, Weir's schema is installed or upgraded first, which requires the role that owns it, and finished jobs are left behind. " +
		"If client and server share a machine, compare ratios rather than rates between machines."
}

// benchFlags are common to all benches.
type benchFlags struct {
	jsonFlag
	Yes        bool   `help:"Measure even if the database contains unfinished jobs."`
	CPUProfile string `name:"cpu-profile" placeholder:"FILE" help:"Write a CPU profile of this process, for go tool pprof."`

	connections int                          // that the bench needs; 0: the default
	fit         func(connections int) string // see load.Config
}

type benchDrainCmd struct {
	benchFlags
	Jobs   int `default:"500000" help:"Number of jobs in each round."`
	Rounds int `default:"3" help:"Number of rounds; the median is shown."`

	Unique    bool          `help:"Enqueue unique jobs, none of them a duplicate."`
	Limit     int           `placeholder:"N" help:"Limit the queue to this many running jobs."`
	Keys      int           `placeholder:"N" help:"Give the jobs this many keys, as if of so many tenants."`
	PerKey    int           `placeholder:"N" help:"With --keys: limit each key to this many running jobs."`
	JobTime   time.Duration `placeholder:"DURATION" help:"How long each job takes; by default no time."`
	Servers   int           `placeholder:"N" help:"Drain over 1, 2, 4 and so on, up to N private servers, by one process, in turn."`
	Schedules int           `placeholder:"N" help:"Have this many schedules, each due once a minute, fire beside it."`
}

// Help is shown by weir bench drain --help.
func (benchDrainCmd) Help() string {
	return "With --unique, --limit, --keys or --schedules, plain jobs and jobs with all of these are measured in turn, and their ratio is shown. " +
		"With --servers, as many jobs in all are spread over one private server and over several, and one weir.MultiWorker works them."
}

func (c *benchDrainCmd) Run(ctx context.Context, s *streams, d *database) error {
	switch {
	case c.Jobs < 1:
		return usagef("--jobs must be at least 1, got %d", c.Jobs)
	case c.Rounds < 1:
		return usagef("--rounds must be at least 1, got %d", c.Rounds)
	case c.Limit < 0:
		return usagef("--limit must be at least 1, got %d", c.Limit)
	case c.JobTime < 0:
		return usagef("--job-time must not be negative, got %v", c.JobTime)
	case c.Servers < 0 || c.Servers > mostBenchServers:
		return usagef("--servers must be 1 to %d, got %d", mostBenchServers, c.Servers)
	case c.Servers > 0 && d.url != "":
		return usagef("--servers starts private servers: leave out --database and DATABASE_URL")
	case c.Servers > 0 && (c.Unique || c.Limit > 0 || c.Keys > 0 || c.Schedules > 0):
		return usagef("--servers is about plain jobs: leave out --unique, --limit, --keys and --schedules")
	case c.Schedules < 0 || c.Schedules > 100_000:
		return usagef("--schedules must be 1 to 100000, got %d", c.Schedules)
	}
	if c.Keys < 0 || c.PerKey < 0 || c.PerKey > 0 && c.Keys == 0 {
		return usagef("--keys and --per-key must be at least 1, and --per-key goes with --keys")
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		config := bench.DrainConfig{Jobs: c.Jobs, Rounds: c.Rounds, JobTime: c.JobTime}
		if c.Servers > 0 {
			return c.overServers(ctx, s, db, config)
		}
		if c.Unique || c.Limit > 0 || c.Keys > 0 || c.Schedules > 0 {
			config.Features = []bench.Feature{feature(db, engine.Engine{Log: s.err, Unique: c.Unique, Limit: c.Limit, Keys: c.Keys, KeyLimit: c.PerKey}, c.Schedules)}
		}
		return bench.Drain(ctx, db, engine.Engine{Log: s.err}, config)
	})
}

type benchSteadyCmd struct {
	benchFlags
	Seconds float64 `default:"60" help:"Duration."`
}

func (c *benchSteadyCmd) Run(ctx context.Context, s *streams, d *database) error {
	if !(c.Seconds > 0) {
		return usagef("--seconds must be more than 0, got %v", c.Seconds)
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Steady(ctx, db, engine.Engine{Log: s.err}, bench.SteadyConfig{Duration: seconds(c.Seconds)})
	})
}

type benchLatencyCmd struct {
	benchFlags
	Seconds float64 `default:"30" help:"Duration of enqueueing, and of the idle time after it."`
}

func (c *benchLatencyCmd) Run(ctx context.Context, s *streams, d *database) error {
	if !(c.Seconds > 0) {
		return usagef("--seconds must be more than 0, got %v", c.Seconds)
	}
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Latency(ctx, db, engine.Engine{Log: s.err}, bench.LatencyConfig{Duration: seconds(c.Seconds)})
	})
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// run runs one bench on the chosen database and prints its report.
func (f *benchFlags) run(ctx context.Context, s *streams, d *database, measure func(*load.Database) (*load.Report, error)) error {
	if err := benchesAsOwner(ctx, s, d); err != nil {
		return err
	}
	weir := engine.Engine{Log: s.err}
	return load.Run(ctx, load.Config{URL: d.url, Yes: f.Yes, Progress: s.err, MaxConnections: f.connections, Fit: f.fit}, f.CPUProfile, func(db *load.Database) error {
		report, err := measure(db)
		if err != nil {
			return err
		}
		if f.JSON {
			return printJSON(s.out, report)
		}
		return report.Text(s.out)
	}, weir)
}

// benchesAsOwner reports on which of the user's databases a bench measures, and as which role. It returns an error if that role does not own
// Weir's schema.
func benchesAsOwner(ctx context.Context, s *streams, d *database) error {
	if d.url == "" {
		return nil
	}
	return d.conn(ctx, func(conn *pgx.Conn) error {
		var user, database string
		var owner *string
		if err := conn.QueryRow(ctx, `SELECT current_user, current_database(), (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'weir')`).
			Scan(&user, &database, &owner); err != nil {
			return fmt.Errorf("find the owner of Weir's schema: %w", err)
		}
		if owner != nil && *owner != user {
			return usagef("benches install Weir's schema before they measure, which only its owner may do: connect to %s as %s rather than as %s, or leave out --database and DATABASE_URL for a private server",
				database, *owner, user)
		}
		fmt.Fprintf(s.err, "weir: measuring on database %s as %s, the owner of Weir's schema\n", printable(database), printable(user))
		return nil
	})
}
