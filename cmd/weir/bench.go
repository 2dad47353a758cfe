package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/bench"
	"github.com/weir-pg/weir/schema"
)

// benchCmd measures Weir on a database given by --database or DATABASE_URL, or else on a private PostgreSQL.
type benchCmd struct {
	Drain   benchDrainCmd   `cmd:"" help:"How fast a backlog of no-op jobs is worked."`
	Steady  benchSteadyCmd  `cmd:"" help:"What enqueuing costs beside a plain INSERT, while a worker works."`
	Latency benchLatencyCmd `cmd:"" help:"How soon a job starts, and what an idle worker costs."`
	Pinned  benchPinnedCmd  `cmd:"" help:"What a long transaction elsewhere in the database does to a flow of jobs."`
	Workers benchWorkersCmd `cmd:"" help:"How fast and how evenly many workers share one queue."`
	Age     benchAgeCmd     `cmd:"" help:"What looks, cancellations, claims and giving space back take in a log that has grown at a steady flow."`
	Memory  benchMemoryCmd  `cmd:"" help:"How much memory a worker takes with many jobs running."`

	Publish   benchPublishCmd   `cmd:"" help:"What publishing costs beside a plain insert, and beside pg_notify."`
	Pingpong  benchPingPongCmd  `cmd:"" help:"How fast two clients notify each other beside ever more idle listeners, and so on PostgreSQL."`
	Fanout    benchFanoutCmd    `cmd:"" help:"How fast messages go out to many subscribers, and how soon."`
	Listeners benchListenersCmd `cmd:"" help:"How much memory an idle subscriber takes."`
	Storm     benchStormCmd     `cmd:"" help:"How soon all are served who connect in the same instant."`
	Child     benchChildCmd     `cmd:"" name:"__child" hidden:""`
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
	return c.run(ctx, s, d, 0, func(db *bench.Database) (*bench.Report, error) {
		return bench.Drain(ctx, db, engine{s.err}, bench.DrainConfig{Jobs: c.Jobs, Rounds: c.Rounds})
	})
}

type benchSteadyCmd struct {
	benchFlags
	Seconds float64 `default:"60" help:"For how long."`
}

func (c *benchSteadyCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, 0, func(db *bench.Database) (*bench.Report, error) {
		return bench.Steady(ctx, db, engine{s.err}, bench.SteadyConfig{Duration: seconds(c.Seconds)})
	})
}

type benchLatencyCmd struct {
	benchFlags
	Seconds float64 `default:"30" help:"For how long jobs are enqueued, and for how long all is idle then."`
}

func (c *benchLatencyCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, 0, func(db *bench.Database) (*bench.Report, error) {
		return bench.Latency(ctx, db, engine{s.err}, bench.LatencyConfig{Duration: seconds(c.Seconds)})
	})
}

type benchPinnedCmd struct {
	benchFlags
	Rate    int     `default:"3000" help:"Jobs enqueued per second."`
	Seconds float64 `default:"300" help:"For how long before, and for how long during the pin."`
	Pin     string  `default:"read" enum:"read,write" help:"read: a snapshot that stays open; write: an idle transaction that holds an xid."`
}

func (c *benchPinnedCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, 0, func(db *bench.Database) (*bench.Report, error) {
		return bench.Pinned(ctx, db, engine{s.err}, bench.PinnedConfig{Duration: seconds(c.Seconds), Rate: c.Rate, Pin: c.Pin})
	})
}

type benchWorkersCmd struct {
	benchFlags
	Workers int     `default:"100" help:"How many, each of concurrency 1."`
	Seconds float64 `default:"60" help:"For how long."`
}

func (c *benchWorkersCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, bench.WorkersConnections(c.Workers), func(db *bench.Database) (*bench.Report, error) {
		return bench.Workers(ctx, db, engine{s.err}, bench.WorkersConfig{Duration: seconds(c.Seconds), Workers: c.Workers})
	})
}

type benchAgeCmd struct {
	benchFlags
	Jobs      int     `default:"60000" help:"How many are worked before."`
	Queues    int     `default:"20" help:"How many queues they are spread over."`
	Scheduled int     `default:"20000" help:"How many wait for a time that is far away."`
	Failing   float64 `default:"5" help:"Percent of the attempts that fail, and are retried."`
}

func (c *benchAgeCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, 0, func(db *bench.Database) (*bench.Report, error) {
		return bench.Age(ctx, db, engine{s.err}, bench.AgeConfig{Jobs: c.Jobs, Queues: c.Queues, Scheduled: c.Scheduled, Failing: c.Failing})
	})
}

type benchMemoryCmd struct {
	benchFlags
	Jobs int `default:"2000" help:"How many run at once."`
}

func (c *benchMemoryCmd) Run(ctx context.Context, s *streams, d *database) error {
	return c.run(ctx, s, d, 0, func(db *bench.Database) (*bench.Report, error) {
		return bench.Running(ctx, db, engine{s.err}, c.Jobs)
	})
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// run runs one bench on the database that the command line names, and prints its report.
func (f *benchFlags) run(ctx context.Context, s *streams, d *database, connections int, measure func(*bench.Database) (*bench.Report, error)) (err error) {
	if err := benchesAsOwner(ctx, s, d); err != nil {
		return err
	}
	db, err := bench.Open(ctx, bench.Config{URL: d.url, Yes: f.Yes, MaxConnections: connections, Progress: s.err}, engine{s.err})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if f.CPUProfile != "" {
		file, err := os.Create(f.CPUProfile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	report, err := measure(db)
	if err != nil {
		return err
	}
	if f.JSON {
		return printJSON(s.out, report)
	}
	return report.Text(s.out)
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

// engine is Weir as the benches see it: through its public API.
type engine struct{ log io.Writer }

func (engine) Name() string   { return "weir" }
func (engine) Tables() string { return `^weir\.` }

func (engine) Install(ctx context.Context, conn *pgx.Conn) error {
	if err := schema.Up(ctx, conn); err != nil {
		return err
	}
	// Clients that use a new queue's name for the first time at the same instant make twins, and setting those aside later updates rows.
	_, err := conn.Exec(ctx, `SELECT weir._queue_id($1)`, bench.Queue)
	return err
}

func (engine) Unfinished(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	client := weir.NewClient(pool)
	for _, state := range []weir.State{weir.StateAvailable, weir.StateRunning, weir.StateLater} {
		jobs, err := client.Jobs(ctx, state, "", 1)
		if errors.Is(err, weir.ErrNotInstalled) {
			return false, nil
		}
		if err != nil || len(jobs) > 0 {
			return len(jobs) > 0, err
		}
	}
	return false, nil
}

func (e engine) Client(pool *pgxpool.Pool) (bench.Client, error) {
	return benchClient{weir.NewClient(pool), pool, e.log}, nil
}

type benchClient struct {
	client *weir.Client
	pool   *pgxpool.Pool
	log    io.Writer
}

// errFails is what an attempt fails with that is to fail.
var errFails = errors.New("bench: this attempt was to fail")

// benchJob does what the bench wants of it. Number 0 is left out, for an args of {}.
type benchJob struct {
	Number int64 `json:"n,omitempty"`
}

func (benchJob) Kind() string { return "bench" }

func (c benchClient) Fill(ctx context.Context, queue string, n int) error {
	jobs := make([]weir.NewJob, min(n, 10_000))
	for i := range jobs {
		jobs[i] = weir.NewJob{Args: benchJob{}, Options: &weir.Options{Queue: queue}}
	}
	for ; n > 0; n -= len(jobs) {
		if _, err := c.client.EnqueueMany(ctx, jobs[:min(n, len(jobs))]); err != nil {
			return err
		}
	}
	return nil
}

func (c benchClient) Enqueue(ctx context.Context, tx pgx.Tx, queue string, number int64) (err error) {
	options := &weir.Options{Queue: queue}
	if tx == nil {
		_, err = c.client.Enqueue(ctx, benchJob{number}, options)
	} else {
		_, err = c.client.EnqueueTx(ctx, tx, benchJob{number}, options)
	}
	return err
}

// EnqueueSQL is the call of programs in other languages.
func (c benchClient) EnqueueSQL(ctx context.Context, queue string, number int64) error {
	_, err := c.pool.Exec(ctx, `SELECT weir.enqueue($1, 'bench', jsonb_build_object('n', $2::bigint))`, queue, number)
	return err
}

func (c benchClient) Work(ctx context.Context, w bench.Work) error {
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[benchJob]) error {
		if w.Run != nil {
			w.Run(ctx, job.Args.Number)
		}
		if w.Fail != nil && w.Fail(job.Args.Number) {
			return errFails
		}
		return nil
	})
	hooks := weir.Hooks{Claimed: w.Claimed}
	if w.Recorded != nil {
		hooks.Recorded = func(jobs int, _ time.Duration) { w.Recorded(jobs) }
	}
	worker, err := c.client.NewWorker(weir.WorkerConfig{
		Handlers: handlers, Queues: w.Queues, Hooks: []weir.Hooks{hooks},
		Logger: slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return worker.Run(ctx)
}
