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
	Drain   benchDrainCmd   `cmd:"" help:"How fast a backlog of no-op jobs is worked."`
	Steady  benchSteadyCmd  `cmd:"" help:"What enqueuing costs beside a plain INSERT, while a worker works."`
	Latency benchLatencyCmd `cmd:"" help:"How soon a job starts, and what an idle worker costs."`
}

// Help is shown by weir bench --help.
func (benchCmd) Help() string {
	return "Without --database or DATABASE_URL, a private PostgreSQL is started with fsync and synchronous_commit on, and removed at the end. " +
		"WEIR_POSTGRES=/usr/lib/postgresql/15 has it be an installed one, built and set up as your distribution does it. " +
		"On a database of yours Weir's schema is installed if it is missing, or brought up to date, which takes the role that owns it; and finished jobs are left behind. " +
		"Client and server share the machine then, so compare ratios rather than rates between machines."
}

// benchFlags are every bench's.
type benchFlags struct {
	jsonFlag
	Yes        bool   `help:"Measure although the database holds unfinished jobs."`
	CPUProfile string `name:"cpu-profile" type:"path" placeholder:"FILE" help:"Write a CPU profile of this process, for go tool pprof."`
}

type benchDrainCmd struct {
	benchFlags
	Jobs   int `default:"500000" help:"How many in each round."`
	Rounds int `default:"3" help:"How often; the median is shown."`
}

func (c *benchDrainCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Drain(ctx, db, engine.Engine{Log: s.err}, bench.DrainConfig{Jobs: c.Jobs, Rounds: c.Rounds})
	})
}

type benchSteadyCmd struct {
	benchFlags
	Seconds float64 `default:"60" help:"For how long."`
}

func (c *benchSteadyCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Steady(ctx, db, engine.Engine{Log: s.err}, bench.SteadyConfig{Duration: seconds(c.Seconds)})
	})
}

type benchLatencyCmd struct {
	benchFlags
	Seconds float64 `default:"30" help:"For how long jobs are enqueued, and for how long all is idle then."`
}

func (c *benchLatencyCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, func(db *load.Database) (*load.Report, error) {
		return bench.Latency(ctx, db, engine.Engine{Log: s.err}, bench.LatencyConfig{Duration: seconds(c.Seconds)})
	})
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// run runs one bench on the database that the command line names, and prints its report.
func (f *benchFlags) run(ctx context.Context, s *streams, d *database, measure func(*load.Database) (*load.Report, error)) error {
	if err := benchesAsOwner(ctx, s, d); err != nil {
		return err
	}
	weir := engine.Engine{Log: s.err}
	return load.Run(ctx, load.Config{URL: d.url, Yes: f.Yes, Progress: s.err}, f.CPUProfile, func(db *load.Database) error {
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

// benchesAsOwner says on which database of the user's a bench measures, and as whom; any but the owner of Weir's schema is told so before
// anything is done.
func benchesAsOwner(ctx context.Context, s *streams, d *database) error {
	if d.url == "" {
		return nil
	}
	return d.conn(ctx, func(conn *pgx.Conn) error {
		var user, database string
		var owner *string
		if err := conn.QueryRow(ctx, `SELECT current_user, current_database(), (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'weir')`).
			Scan(&user, &database, &owner); err != nil {
			return fmt.Errorf("ask who owns Weir's schema: %w", err)
		}
		if owner != nil && *owner != user {
			return usagef("benches install Weir's schema before they measure, which takes its owner: connect to %s as %s rather than as %s, or leave out --database and DATABASE_URL for a private server",
				database, *owner, user)
		}
		fmt.Fprintf(s.err, "weir: measuring on database %s as %s, who owns Weir's schema\n", printable(database), printable(user))
		return nil
	})
}
