package proof

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
)

// Jobs of the torture test that use features, and their handlers in the workers' processes.

// sealedTorn is a job like torn that is encrypted.
type sealedTorn struct {
	torn
	Secret string
}

func (sealedTorn) Kind() string { return "sealed" }

// steps is an encrypted job that counts in its checkpoint, through attempts that fail.
type steps struct{ Key, Secret string }

func (steps) Kind() string { return "steps" }

// tick is a job of the schedule with encrypted args.
type tick struct{ Secret string }

func (tick) Kind() string { return "sealed tick" }

// groupedTorn is a job like torn that is run in groups.
type groupedTorn struct{ torn }

func (groupedTorn) Kind() string { return "grouped" }

// errLater is the text that a retry rule matches.
var errLater = errors.New("later, please")

// byRule leaves it to the retry rules of the database what follows an error.
var byRule = weir.KindOptions{Retry: func(int, error) time.Duration { return -1 }}

// handleFeatures registers the handlers of jobs that use features.
func handleFeatures(handlers *weir.Handlers, pool *pgxpool.Pool) {
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[sealedTorn]) error {
		say("start", job.ID, job.Attempt, job.Args.Key)
		defer say("end", job.ID, job.Attempt)
		job.SetOutput(secret)
		job.SetProgress(50, secret)
		job.Log().Info(secret)
		err := runTorn(ctx, pool, &weir.Job[torn]{JobMeta: job.JobMeta, Args: job.Args.torn})
		if errors.Is(err, errTorture) {
			err = errors.New(secret)
		}
		return err
	})
	weir.Handle(handlers, func(ctx context.Context, job *weir.Job[steps]) error {
		say("start", job.ID, job.Attempt, job.Args.Key)
		defer say("end", job.ID, job.Attempt)
		return runCheckpoints(ctx, pool, job)
	})
	weir.Handle(handlers, func(_ context.Context, job *weir.Job[tick]) error {
		say("start", job.ID, job.Attempt, "")
		defer say("end", job.ID, job.Attempt)
		if job.Args.Secret != secret {
			return weir.Fail(errors.New("the args are others"))
		}
		return nil
	})
	weir.HandleGroup(handlers, weir.GroupOptions[groupedTorn]{KindOptions: byRule, Size: 4, Wait: 100 * time.Millisecond},
		func(ctx context.Context, jobs []*weir.GroupJob[groupedTorn]) error { return runGroup(ctx, pool, jobs) })
	handleFlows(handlers, pool)
	// The other kinds: unique jobs, those of schedules, those that are cancelled, and those that fail at first.
	weir.HandleRest(handlers, byRule, func(ctx context.Context, job *weir.Job[json.RawMessage]) error {
		say("start", job.ID, job.Attempt, "")
		defer say("end", job.ID, job.Attempt)
		if job.Kind == "only" { // others of its key come meanwhile
			select {
			case <-time.After(time.Duration(luck(job.Kind, int(job.ID), job.Attempt, 300)) * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		switch {
		case job.Kind == "dud" && job.Attempt == 1, job.Kind == "scrap":
			return errors.New("a dud")
		case job.Kind != "dud" && luck(job.Kind, int(job.ID), job.Attempt, 10) == 0:
			return errTorture
		case job.Kind != "dud" && job.PutOff == 0 && luck(job.Kind, int(job.ID), job.Attempt, 10) == 1:
			return errLater
		}
		return nil
	})
}

// runGroup completes some jobs of a group in one transaction with their effects; the others end each in its own way.
func runGroup(ctx context.Context, pool *pgxpool.Pool, jobs []*weir.GroupJob[groupedTorn]) error {
	for _, job := range jobs {
		say("start", job.ID, job.Attempt, job.Args.Key)
		defer say("end", job.ID, job.Attempt)
	}
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		for _, job := range jobs {
			switch n := luck(job.Args.Key, job.Attempt, job.PutOff, 40); {
			case n < 4:
				job.End(errTorture)
			case n == 4:
				job.End(errLater)
			case !job.Args.Tx:
				job.End(nil)
			default:
				if _, err := tx.Exec(ctx, `INSERT INTO effect (key) VALUES ($1)`, job.Args.Key); err != nil {
					return err
				}
				if err := job.CompleteTx(ctx, tx); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// runCheckpoints goes on from the checkpoint, and reports which one it has read, and which ones it knows to be stored: with the life of the log, if that
// was the same before and after, and the position of the WAL.
func runCheckpoints(ctx context.Context, pool *pgxpool.Pool, job *weir.Job[steps]) error {
	where := func() (life int32, lsn int64) {
		life = -1
		_ = pool.QueryRow(ctx, `SELECT ('x' || left(pg_walfile_name(l), 8))::bit(32)::integer - 1, l - '0/0'::pg_lsn FROM pg_current_wal_lsn() l`).Scan(&life, &lsn)
		return life, lsn
	}
	report := func(what string, n int, before int32) {
		if life, lsn := where(); life == before && life >= 0 {
			say(what, job.ID, job.Attempt, job.PutOff, n, life, lsn)
		}
	}
	n := 0
	before, _ := where()
	if _, err := job.Checkpoint(ctx, &n); err != nil {
		return err
	}
	report("read", n, before)
	for range 1 + luck(job.Args.Key, job.Attempt, job.PutOff, 3) {
		n++
		before, _ = where()
		if err := job.SetCheckpoint(n); err != nil {
			return err
		}
		job.SetProgress(float64(n), secret)
		job.Log().Info(secret)
		if err := job.Sync(ctx); err != nil {
			return err
		}
		report("stored", n, before)
	}
	if luck(job.Args.Key, job.Attempt, job.PutOff+100, 2) == 0 {
		return errors.New(secret)
	}
	return nil
}

// declare declares the schedule with encrypted args, which exists.
func declare(ctx context.Context, client *weir.Client) {
	if changed, err := client.SetSchedule(ctx, sealedTick); changed {
		slog.Error("a schedule has changed that was declared again", "error", err)
	}
}
