package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
)

type workCmd struct {
	Queue        []string      `short:"q" required:"" sep:"none" placeholder:"QUEUE[=N]" help:"Queue to work, with up to N jobs at the same time. May be repeated."`
	Concurrency  int           `short:"c" default:"8" range:"1 to 10000" help:"Maximum number of jobs per queue at the same time."`
	Kind         []string      `short:"k" sep:"none" help:"Run only this kind; other jobs are released to workers that run them. May be repeated."`
	Timeout      time.Duration `default:"1h" empty:"ok" help:"End attempts that take longer; 0: never."`
	Lease        time.Duration `default:"30s" help:"Silence after which other workers take over the jobs."`
	StopTimeout  time.Duration `default:"30s" help:"How long running jobs may continue after Ctrl-C."`
	List         string        `placeholder:"FILE" help:"Work the queues of each database of a list, a connection string in each line, which share the concurrency; the file is read again every 15 seconds."`
	ExitWhenIdle bool          `help:"Exit when the queues are empty, including retries and scheduled jobs."`
	ListenHTTP   string        `name:"listen-http" placeholder:"ADDRESS" help:"Serve /readyz and /healthz on this address, for probes."`
	Verbose      bool          `short:"v" help:"Log each job, not only failures."`
	Command      []string      `arg:"" optional:"" passthrough:"all" empty:"ok" help:"Command to run, after --."`
}

func (workCmd) Help() string {
	return `The command receives a job's arguments as JSON on standard input. Its environment contains WEIR_JOB_ID, _KIND, _QUEUE, _ATTEMPT and _MAX_ATTEMPTS, WEIR_JOB_FLOW if the job is a member of a flow, WEIR_JOB_DATABASE with --list (as app.db1-5432: ids are unique within a database only), and WEIR_ARG_<name> for each argument that is a string, number or boolean (if the name is short and consists of letters, digits and _).

Exit code 0 completes the job and stores its standard output. Exit code 65 fails the job for good. Any other exit code fails the attempt, stores its standard error, and retries the job. A job that has to stop receives SIGTERM, and SIGKILL 5 s later.

Example:

    weir work --queue files -- sh -c 'sha256sum "$WEIR_ARG_line"'`
}

func (c *workCmd) Run(ctx context.Context, s *streams, db *database, signals *trap) error {
	queues, err := c.queues()
	if err != nil {
		return err
	}
	if c.Lease < time.Second || c.Lease > 5*time.Minute {
		return usagef("--lease must be 1s to 5m, got %s", c.Lease)
	}
	if c.Timeout < 0 || c.StopTimeout < 0 {
		return usagef("--timeout and --stop-timeout must not be negative")
	}
	if c.Timeout == 0 {
		c.Timeout = -1 // none
	}
	argv := c.Command
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	} else if len(argv) > 0 && strings.HasPrefix(argv[0], "-") {
		return usagef("unknown flag %s: weir work --help lists its flags; put the command to run after --", argv[0])
	}
	if len(argv) == 0 {
		return usagef("no command given: put it after --, as in weir work --queue files -- ./handler.sh")
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return usagef("cannot run %s: %s: name an executable file, with its directory or in PATH", argv[0], reason(err))
	}
	var client *weir.Client // nil: of a list
	if c.List == "" {
		var closePool func()
		if client, closePool, err = db.client(ctx); err != nil {
			return err
		}
		defer closePool()
	} else if err := c.checkList(); err != nil {
		return err
	}

	p := newProgress(s.err)
	defer p.done()
	level := slog.LevelWarn
	if c.Verbose {
		level = slog.LevelInfo
	}
	run := &runner{path: path, argv: argv, groups: groups{}, listed: c.List != ""}
	signals.beforeForcedExit(run.groups.kill)
	tally := &tally{log: newLogger(p, level), every: c.Verbose, listed: c.List != ""}
	handlers := weir.NewHandlers()
	weir.HandleRest(handlers, weir.KindOptions{}, func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
		if len(c.Kind) > 0 && !slices.Contains(c.Kind, job.Kind) {
			return weir.ErrUnknownKind
		}
		return run.run(ctx, job)
	})
	works, health, err := c.worker(client, weir.WorkerConfig{
		Handlers: handlers, Queues: queues, Timeout: c.Timeout, Lease: c.Lease, StopTimeout: c.StopTimeout,
		Logger: tally.log, Hooks: []weir.Hooks{{Start: tally.start, End: tally.end}},
	})
	if err != nil {
		return &failure{exitUsage, err}
	}
	if c.ListenHTTP != "" {
		stop, err := serveHTTP("--listen-http", c.ListenHTTP, probesOf(health), "probes", "/readyz", tally.log)
		if err != nil {
			return err
		}
		defer stop()
	}
	ctx, idle := context.WithCancel(ctx)
	defer idle()
	watched := make(chan error, 1)
	go func() { watched <- c.watch(ctx, client, tally, p, idle, queues) }() // ends with ctx; waited for below
	err = works(ctx)
	idle()
	if watchErr := <-watched; err == nil {
		err = watchErr
	}
	p.done()
	fmt.Fprintln(s.err, "weir: "+tally.String())
	return err
}

// queues reads the flags QUEUE and QUEUE=N.
func (c *workCmd) queues() (map[string]int, error) {
	if c.Concurrency < 1 || c.Concurrency > maxConcurrency {
		return nil, usagef("--concurrency must be 1 to %d, got %d", maxConcurrency, c.Concurrency)
	}
	queues := map[string]int{}
	for _, text := range c.Queue {
		name, n := text, c.Concurrency
		if at := strings.LastIndexByte(text, '='); at >= 0 {
			var err error
			if n, err = strconv.Atoi(text[at+1:]); err != nil {
				return nil, usagef("--queue %s: give the number of concurrent jobs after =, as in files=4", text)
			}
			name = text[:at]
		}
		if name == "" || n < 1 || n > maxConcurrency {
			return nil, usagef("--queue %s: give a queue name and 1 to %d concurrent jobs, as in files=4", text, maxConcurrency)
		}
		if _, twice := queues[name]; twice {
			return nil, usagef("--queue %s: the queue %s is given twice: name it once, with the number of concurrent jobs, as in files=4", text, name)
		}
		queues[name] = n
	}
	return queues, nil
}

const (
	maxConcurrency = 10_000

	watchEvery = 100 * time.Millisecond
	askEvery   = 250 * time.Millisecond
	longWait   = 10 * time.Second // a longer silence would look like a fault
)

// watch shows progress, and with --exit-when-idle calls idle when no work is left.
func (c *workCmd) watch(ctx context.Context, client *weir.Client, tally *tally, p *progress, idle func(), queues map[string]int) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	quiet := int64(-1) // tally.moves when the queues were last seen empty
	blind := false
	said := time.Time{} // until when the message that there is nothing to do covers
	asked := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p.show("%s", tally)
		if !c.ExitWhenIdle || tally.running.Load() > 0 || time.Since(asked) < askEvery {
			continue
		}
		asked = time.Now()
		moves := tally.moves.Load()
		left, next, err := c.anyLeft(ctx, client, queues)
		switch {
		case ctx.Err() != nil:
			return nil
		case denied(err):
			idle()
			return fmt.Errorf("check whether any work is left, for --exit-when-idle: %w", err)
		case err != nil:
			if !blind {
				tally.log.Warn("cannot check whether any work is left, trying again", "error", err)
			}
			quiet, blind = -1, true
			continue
		case left || moves != tally.moves.Load():
			quiet = -1
			if now := time.Now(); now.After(said) && next.Sub(now) > longWait {
				fmt.Fprintf(p, "weir: nothing to do for %s, until the next retry or scheduled job; Ctrl-C leaves it in the queue\n", short(next.Sub(now)))
				said = next
			}
		case quiet == moves: // empty twice, and nothing moved in between
			idle()
			return nil
		default:
			quiet = moves
		}
		blind = false
	}
}

// anyLeft reports whether a queue has unfinished jobs, in any worker, now or later: with --kind, jobs that this worker may run. A job may
// change its state between these queries, so one negative answer is not enough. If all jobs left are for later, next is when the first is
// due.
func (c *workCmd) anyLeft(ctx context.Context, client *weir.Client, queues map[string]int) (left bool, next time.Time, err error) {
	for queue := range queues {
		for _, state := range []weir.State{weir.StateAvailable, weir.StateRunning, weir.StateScheduled} {
			list := weir.JobsParams{States: []weir.State{state}, Queue: queue, Limit: 1}
			if state == weir.StateScheduled {
				list.Kinds = c.Kind // jobs of other kinds wait for other workers
			}
			jobs, _, err := listJobs(ctx, client, list, 1, io.Discard)
			if err != nil {
				return true, time.Time{}, err
			}
			if state != weir.StateScheduled {
				if len(jobs) > 0 {
					return true, time.Time{}, nil
				}
				continue
			}
			for _, j := range jobs {
				left = true
				if j.RunAt != nil && (next.IsZero() || j.RunAt.Before(next)) {
					next = *j.RunAt
				}
			}
		}
	}
	return left, next, nil
}

// denied reports whether the role lacks a privilege, so that trying again is pointless.
func denied(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// tally counts how attempts ended, and logs them.
type tally struct {
	log                        *slog.Logger
	every                      bool // log each attempt, not only failures
	listed                     bool // log their databases
	running, moves             atomic.Int64
	completed, retried, failed atomic.Int64
	others, released           atomic.Int64 // cancelled or interrupted; of kinds that other workers run
}

func (t *tally) start(ctx context.Context, _ weir.JobMeta) context.Context {
	t.running.Add(1)
	t.moves.Add(1)
	return ctx
}

func (t *tally) end(ctx context.Context, job weir.JobMeta, outcome weir.Outcome, took time.Duration, err error) {
	defer t.running.Add(-1)
	attrs := []any{"job", job.ID}
	if t.listed {
		attrs = append(attrs, "database", nameOfClient(job.Client()))
	}
	attrs = append(attrs, "kind", job.Kind, "attempt", job.Attempt, "took", took.Round(time.Millisecond))
	switch cause := context.Cause(ctx); {
	case outcome == "completed":
		t.completed.Add(1)
		if t.every {
			t.log.Info("completed", attrs...)
		}
	case errors.Is(err, weir.ErrUnknownKind): // the worker logs this, once
		t.released.Add(1)
	case cause == weir.ErrCancelled || cause == weir.ErrStopping || cause == weir.ErrFenced || cause == weir.ErrLapsed:
		t.others.Add(1)
		t.log.Warn("stopped", append(attrs, "why", cause)...)
	case outcome == "retried":
		t.retried.Add(1)
		t.log.Warn("failed, will be retried", append(attrs, "error", cell(err.Error()))...)
	case outcome == weir.OutcomeFailed: // the worker logs this
		t.failed.Add(1)
	default:
		t.others.Add(1)
		t.log.Warn("stopped", append(attrs, "why", err)...)
	}
}

func (t *tally) String() string {
	text := fmt.Sprintf("%s completed, %s to be retried, %s failed", count(t.completed.Load()), count(t.retried.Load()), count(t.failed.Load()))
	if n := t.others.Load(); n > 0 {
		text += fmt.Sprintf(", %s stopped", count(n))
	}
	if n := t.released.Load(); n > 0 {
		text += fmt.Sprintf(", %s released", count(n))
	}
	if n := t.running.Load(); n > 0 {
		text = fmt.Sprintf("%s running, ", count(n)) + text
	}
	return text
}
