package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

type enqueueCmd struct {
	Queue       string `short:"q" default:"default" help:"Queue of the jobs."`
	Kind        string `short:"k" required:"" help:"Kind of the jobs, which selects the handler that runs them."`
	Args        string `xor:"input" placeholder:"JSON" help:"Arguments of one job, a JSON object ({})."`
	Lines       bool   `xor:"input" help:"Enqueue one job per line of standard input, with the arguments {\"line\": …}."`
	JSONL       bool   `name:"jsonl" xor:"input" help:"Enqueue one job per line of standard input; the line is its arguments as JSON."`
	Field       string `placeholder:"NAME" help:"With --lines: name of the argument that holds the line (line)."`
	Null        bool   `short:"0" help:"With --lines: lines end with NUL, as printed by find -print0."`
	Priority    int    `default:"2" range:"1 (first) to 4" help:"1 (first) to 4."`
	RunAt       moment `placeholder:"TIME" help:"Earliest start: a time (RFC 3339), or a duration from now such as +10m or 10m."`
	MaxAttempts int    `default:"25" range:"1 to 1000" help:"Maximum number of attempts."`
	Meta        string `placeholder:"JSON" help:"JSON object to store with the jobs."`
	Key         string `placeholder:"TEXT" help:"Whose jobs they are, such as a tenant: keys of a queue take turns, and may have limits."`
	Flow        int64  `placeholder:"ID" range:"1 or more" help:"The flow that the jobs are added to: see weir flows."`
	Once        bool   `help:"With --flow: add a job only if none of its kind with the same arguments was added to the flow before."`
	OnceKey     string `placeholder:"TEXT" help:"With --flow: add the job only if none with this key was added to the flow before, whatever its kind and arguments."`
	JSON        bool   `name:"json" help:"Print {\"count\", \"first\", \"last\", \"duplicates\", \"replaced\"} as JSON."`

	Unique    bool          `help:"Enqueue a job only if no other of its kind with the same arguments waits or runs. The flags below imply this."`
	UniqueKey string        `xor:"unique-by" placeholder:"TEXT" help:"With --unique: jobs of the queue with this key are duplicates, whatever their kind and arguments."`
	Fields    []string      `xor:"unique-by" placeholder:"NAME,…" help:"With --unique: of the arguments, only these fields count: names in their JSON."`
	Until     string        `xor:"unique-until" placeholder:"finished|started" help:"With --unique: an earlier job counts until it has finished (the default) or started."`
	Within    time.Duration `xor:"unique-until" placeholder:"DURATION" most:"366d" help:"With --unique: an earlier job counts if it was enqueued so recently, such as 1h."`
	Replace   bool          `xor:"unique-until" help:"With --unique: enqueue the job in any case, and drop earlier ones that have not started."`
	Wait      bool          `help:"With --unique: first wait for transactions that have asked for the same with --wait, so that there is always one answer."`
}

func (enqueueCmd) Help() string {
	return `All jobs of one call are enqueued in one transaction: if a line is not valid, none of them is.

Examples:

    weir enqueue --kind mail --args '{"to": "ada@example.org"}' --run-at +10m

    find photos -type f | weir enqueue --queue files --kind sha256 --lines

    weir enqueue --kind reindex --unique-key reindex --replace --run-at +5s`
}

// enqueued is the output of the command.
type enqueued struct {
	Count int64 `json:"count"`
	First int64 `json:"first,omitzero"` // ids; the range may contain those of other callers
	Last  int64 `json:"last,omitzero"`

	Duplicates int64 `json:"duplicates,omitzero"` // jobs that were not enqueued: an earlier one is there already
	Replaced   int64 `json:"replaced,omitzero"`   // jobs that were enqueued in place of an earlier one that waits
}

// add counts the answers for some jobs.
func (e *enqueued) add(all []weir.Enqueued, replaced bool) {
	for _, job := range all {
		if job.Duplicate && !replaced {
			e.Duplicates++
			if e.Count > 0 || len(all) > 1 {
				continue
			}
			e.First, e.Last = job.ID, job.ID // of one job, the id is that of the earlier one
			continue
		}
		if job.Duplicate {
			e.Replaced++
		}
		if e.Count == 0 {
			e.First = job.ID
		}
		e.Count++
		e.Last = job.ID
	}
}

func (c *enqueueCmd) Run(ctx context.Context, s *streams, db *database) error {
	options := &weir.Options{Queue: c.Queue, Priority: c.Priority, RunAt: c.RunAt.Time, MaxAttempts: c.MaxAttempts, Key: c.Key, Flow: c.Flow, Once: c.OnceKey, Unique: c.unique()}
	if err := c.check(options); err != nil {
		return err
	}
	pool, err := db.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	var done enqueued
	if c.Lines || c.JSONL {
		done, err = c.stream(ctx, s, pool, options)
	} else {
		var job weir.Enqueued
		job, err = weir.NewClient(pool).Enqueue(ctx, rawArgs{c.Kind, json.RawMessage(c.Args)}, c.once(options, json.RawMessage(c.Args)))
		if err == nil {
			done.add([]weir.Enqueued{job}, c.Replace)
		}
	}
	if err != nil {
		return err
	}
	switch {
	case c.JSON:
		return printJSON(s.out, done)
	case done.Count == 0 && done.Duplicates > 0 && done.First > 0:
		fmt.Fprintf(s.out, "enqueued nothing on queue %s: job %d is there already\n", printable(c.Queue), done.First)
	case done.Duplicates > 0:
		fmt.Fprintf(s.out, "enqueued %s on queue %s; %s there already\n", plural(done.Count, "job"), printable(c.Queue), areOthers(done.Duplicates))
	case done.Count == 0:
		fmt.Fprintln(s.out, "enqueued 0 jobs: standard input was empty")
	case done.Count == 1:
		fmt.Fprintf(s.out, "enqueued job %d on queue %s\n", done.First, printable(c.Queue))
	default:
		fmt.Fprintf(s.out, "enqueued %s on queue %s: ids %d to %d\n", plural(done.Count, "job"), printable(c.Queue), done.First, done.Last)
	}
	return nil
}

func areOthers(n int64) string {
	if n == 1 {
		return "1 other is"
	}
	return fmt.Sprintf("%d others are", n)
}

// once returns the options of a job with these args: with --once, they and its kind are what is done once.
func (c *enqueueCmd) once(o *weir.Options, args json.RawMessage) *weir.Options {
	var text bytes.Buffer
	if !c.Once || json.Compact(&text, args) != nil {
		return o
	}
	one := *o
	one.Once = fmt.Sprintf("%s %x", c.Kind, sha256.Sum256(text.Bytes()))
	return &one
}

// unique returns what the flags say about duplicates; nil: nothing.
func (c *enqueueCmd) unique() *weir.Unique {
	if !c.Unique && c.UniqueKey == "" && len(c.Fields) == 0 && c.Until == "" && c.Within == 0 && !c.Replace && !c.Wait {
		return nil
	}
	return &weir.Unique{Key: c.UniqueKey, Fields: c.Fields, Until: weir.Until(c.Until), Within: c.Within, Replace: c.Replace, Wait: c.Wait}
}

// check validates the flags before any input is read.
func (c *enqueueCmd) check(o *weir.Options) error {
	if c.Args == "" {
		c.Args = "{}"
	}
	if err := checkObject([]byte(c.Args)); err != nil {
		return usagef(`--args %w: write it as '{"name": "value"}'`, err)
	}
	if c.Meta != "" {
		if err := checkObject([]byte(c.Meta)); err != nil {
			return usagef(`--meta %w: write it as '{"name": "value"}'`, err)
		}
		if err := checkKeys("--meta", c.Meta); err != nil {
			return err
		}
		o.Meta = json.RawMessage(c.Meta)
	}
	switch {
	case c.Once && c.OnceKey != "":
		return usagef("--once and --once-key exclude each other: pass one of them")
	case (c.Once || c.OnceKey != "") && c.Flow == 0:
		return usagef("--once and --once-key require --flow, because a job is done once in a flow: without one, see --unique")
	case c.OnceKey != "" && (c.Lines || c.JSONL):
		return usagef("--once-key is the key of one job: for lines, use --once")
	case c.Until != "" && c.Until != "finished" && c.Until != "started":
		return usagef("--until must be finished or started, got %q", c.Until)
	case c.Within < 0:
		return usagef("--within must not be negative, got %s", c.Within)
	case c.Field != "" && !c.Lines:
		return usagef("--field requires --lines: add --lines")
	case c.Null && !c.Lines:
		return usagef("--null requires --lines: add --lines")
	case c.Priority < 1 || c.Priority > 4:
		return usagef("--priority must be 1 (first) to 4, got %d", c.Priority)
	case c.MaxAttempts < 1 || c.MaxAttempts > 1000:
		return usagef("--max-attempts must be 1 to 1000, got %d", c.MaxAttempts)
	}
	return nil
}

// checkKeys refuses keys of a meta that are reserved, as the library does, but before any line is read and blamed for it.
func checkKeys(what, meta string) error {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal([]byte(meta), &fields)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if strings.HasPrefix(key, "weir.") && key != "weir.otel" {
			return usagef("%s: the key %q is reserved for Weir: choose one that does not begin with \"weir.\"", what, key)
		}
	}
	return nil
}

// rawArgs are args that are already JSON.
type rawArgs struct {
	kind string
	json json.RawMessage
}

func (a rawArgs) Kind() string                 { return a.kind }
func (a rawArgs) MarshalJSON() ([]byte, error) { return a.json, nil }

// A batch is sent to the server when it reaches either limit.
const (
	batchJobs  = 10_000
	batchBytes = 8 << 20
)

// stream enqueues a job for each line, in one transaction. The transaction begins when the first batch is complete, so short input that
// arrives slowly keeps no transaction open.
func (c *enqueueCmd) stream(ctx context.Context, s *streams, pool *pgxpool.Pool, o *weir.Options) (enqueued, error) {
	if _, ok := isTerminal(s.in); ok {
		fmt.Fprintln(s.err, "weir: reading lines from the terminal: end with Ctrl-D")
	}
	p := newProgress(s.err)
	defer p.done()
	var done enqueued
	var tx pgx.Tx
	defer func() {
		if tx != nil {
			_ = tx.Rollback(context.WithoutCancel(ctx)) // no effect after a commit
		}
	}()
	client := weir.NewClient(pool)
	var jobs []weir.NewJob
	var lines []int64 // line number of each job
	send := func() (err error) {
		if len(jobs) == 0 {
			return nil
		}
		if tx == nil {
			if tx, err = pool.Begin(ctx); err != nil {
				return fmt.Errorf("begin the transaction: %w", err)
			}
		}
		all, err := client.EnqueueManyTx(ctx, tx, jobs)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_ = tx.Rollback(ctx) // the transaction has failed anyway
			return blame(ctx, client, pool, jobs, lines, err)
		}
		done.add(all, c.Replace)
		p.show("%s sent", plural(done.Count, "job"))
		return nil
	}
	size := 0
	for line, err := range c.read(ctx, s.in) {
		if err != nil {
			return done, err
		}
		jobs = append(jobs, weir.NewJob{Args: rawArgs{c.Kind, line.args}, Options: c.once(o, line.args)})
		lines = append(lines, line.number)
		if size += len(line.args); len(jobs) == batchJobs || size >= batchBytes {
			if err := send(); err != nil {
				return done, err
			}
			jobs, lines, size = jobs[:0], lines[:0], 0
		}
	}
	if ctx.Err() != nil {
		return done, ctx.Err()
	}
	if err := send(); err != nil || tx == nil {
		return done, err
	}
	if err := tx.Commit(ctx); err != nil {
		return done, fmt.Errorf("commit: %w: run weir queues list before you try again, because the jobs may have been enqueued", err)
	}
	return done, nil
}

// blame finds the first job of a refused batch that the server refuses on its own, so that the error can name its line. It bisects the
// batch in transactions that are rolled back.
func blame(ctx context.Context, client *weir.Client, pool *pgxpool.Pool, jobs []weir.NewJob, lines []int64, cause error) error {
	rolledBack := func(f func(pgx.Tx) error) error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		return errors.Join(f(tx), tx.Rollback(ctx))
	}
	refused := func(some []weir.NewJob) error {
		return rolledBack(func(tx pgx.Tx) error {
			_, err := client.EnqueueManyTx(ctx, tx, some)
			return err
		})
	}
	low, high := 0, len(jobs) // the first bad job is in jobs[low:high]
	for high-low > 1 {
		middle := (low + high) / 2
		if refused(jobs[low:middle]) != nil {
			high = middle
		} else {
			low = middle
		}
	}
	why := rolledBack(func(tx pgx.Tx) error { // enqueued alone, so the error is about one job
		_, err := client.EnqueueTx(ctx, tx, jobs[low].Args, jobs[low].Options)
		return err
	})
	if why == nil || ctx.Err() != nil {
		return fmt.Errorf("nothing was enqueued: %w", cause)
	}
	return badLine(lines[low], errors.New("was refused: "+strings.TrimPrefix(reason(why), "weir: ")))
}

// badLine returns an error about a line; err begins with a verb.
func badLine(number int64, err error) error {
	return fmt.Errorf("line %d of standard input %w: nothing was enqueued", number, err)
}

// moment is a time given by a flag.
type moment struct{ time.Time }

func (m *moment) UnmarshalText(text []byte) (err error) {
	if after, err := parseDuration(string(text)); err == nil {
		if after < 0 {
			return fmt.Errorf("%q is in the past: omit the flag to start immediately, or give a future time such as %s", text, text[1:])
		}
		m.Time = time.Now().Add(after)
		return nil
	}
	if m.Time, err = parseTime(string(text)); err != nil {
		return fmt.Errorf("%q is not a valid time: write it as %s, as a date, or as a duration from now such as 90s, 10m, 24h or 7d", text, time.Now().Format(time.RFC3339))
	}
	return nil
}
