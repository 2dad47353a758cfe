package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Outcome is how an attempt ended: weir.outcome.
type Outcome string

const (
	Completed Outcome = "completed"
	Failed    Outcome = "failed"    // for good
	Cancelled Outcome = "cancelled" // for good
	Retried   Outcome = "retried"   // failed if it was the last attempt
	Snoozed   Outcome = "snoozed"   // put off; does not use up an attempt
	Released  Outcome = "released"  // handed back unstarted; does not use up an attempt
	Lost      Outcome = "lost"      // written by the rescuer only; failed if it was the last attempt
)

// BatchMost is how many jobs weir.claim hands out of one lane at once.
const BatchMost = 960

// Batch names a batch of a lane.
type Batch struct {
	Lane int32
	Seq  int64
}

// Claim is one attempt handed to a worker.
type Claim struct {
	Batch
	Queue       string
	ID          int64
	Attempt     int32
	MaxAttempts int32
	PutOff      int32 // how often this attempt was snoozed or released before
	Kind        string
	Args        []byte
	Meta        []byte
	EnqueuedAt  time.Time
	Cancelled   bool // must not be run, but finished as cancelled
}

// Priority of the lane the job came from, 1 to 4.
func (c *Claim) Priority() int { return int(c.Lane%4) + 1 }

// End is how one attempt ended, for Finish.
type End struct {
	Batch
	ID      int64
	Outcome Outcome
	Error   *string
	Output  *string
	After   *time.Duration // when to run again, by the server's clock; nil: at once
}

const (
	sqlStart     = `SELECT weir.worker_start($1, $2, make_interval(secs => $3))`
	sqlHeartbeat = `SELECT fenced, workers, sharing FROM weir.heartbeat($1, $2, make_interval(secs => $3))`
	sqlWatch     = `SELECT jobs_now, control_now, seen_now::text, upto_now::text, ended FROM weir.watch($1, $2, $3::text::pg_snapshot, $4::text::xid8, $5, $6)`
	sqlGiveBack  = `SELECT weir.give_back($1, $2, $3)`
	sqlClaim     = `SELECT queue, lane, seq, id, attempt, max_attempts, kind, args, meta, enqueued_at, cancelled, put_off FROM weir.claim($1, $2, $3, $4::text::pg_snapshot, $5)`
	sqlComplete  = `SELECT weir.complete($1, $2, $3, $4, $5)`
	sqlFinish    = `SELECT weir.finish($1, $2, $3, $4, $5::text::weir.outcome, $6, $7, clock_timestamp() + make_interval(secs => $8))`
	sqlFence     = `SELECT weir.fence($1, $2)`
	sqlCancelled = `SELECT weir.cancelled_among($1)`
	sqlHasEnded  = `SELECT weir.has_ended($1, $2, $3, $4)`
)

// StartWorker registers a worker for its queues and returns its id.
func (s *Store) StartWorker(ctx context.Context, name string, queues []string, lease time.Duration) (id int32, err error) {
	err = s.row(ctx, sqlStart, []any{name, queues, lease.Seconds()}, &id)
	return id, err
}

// Heartbeat renews the lease. oldest is how long ago the oldest unfinished batch was claimed, 0 for none.
// Of the workers that live, sharing work one of its queues.
func (s *Store) Heartbeat(ctx context.Context, worker int32, running int, oldest time.Duration) (fenced bool, workers, sharing int, err error) {
	err = s.row(ctx, sqlHeartbeat, []any{worker, running, oldest.Seconds()}, &fenced, &workers, &sharing)
	return fenced, workers, sharing, err
}

// Claim hands out up to limits[i] jobs of queues[i]. With since, a snapshot, it looks only for what was committed after it, and in the
// queues of backlog. add is called for each.
func (s *Store) Claim(ctx context.Context, worker int32, queues []string, limits []int32, since *string, backlog []string, add func(Claim)) error {
	return s.query(ctx, sqlClaim, []any{worker, queues, limits, since, backlog}, func(r pgx.Rows) error {
		var c Claim
		var queue, kind repeated
		_, err := pgx.ForEachRow(r, []any{&queue, &c.Lane, &c.Seq, &c.ID, &c.Attempt, &c.MaxAttempts, &kind, &c.Args, &c.Meta, &c.EnqueuedAt, &c.Cancelled, &c.PutOff}, func() error {
			c.Queue, c.Kind = string(queue), string(kind)
			add(c)
			return nil
		})
		return err
	})
}

// Complete records successes: ids[i] are of batches[i].
func (s *Store) Complete(ctx context.Context, worker int32, batches []Batch, ids [][]int64) error {
	lanes, seqs, sizes := make([]int32, len(batches)), make([]int64, len(batches)), make([]int32, len(batches))
	total := 0
	for i, b := range batches {
		lanes[i], seqs[i], sizes[i] = b.Lane, b.Seq, int32(len(ids[i]))
		total += len(ids[i])
	}
	flat := make([]int64, 0, total)
	for _, some := range ids {
		flat = append(flat, some...)
	}
	return s.exec(ctx, sqlComplete, worker, lanes, seqs, sizes, flat)
}

// CompleteTx records one success in a transaction of the caller's.
func CompleteTx(ctx context.Context, tx Querier, worker int32, batch Batch, id int64) error {
	// Scalars only: any driver may be behind tx. The cast makes it a value every driver can read.
	var text string
	return tx.QueryRow(ctx, `SELECT weir.complete($1::int, ARRAY[$2::int], ARRAY[$3::bigint], ARRAY[1], ARRAY[$4::bigint])::text`,
		worker, batch.Lane, batch.Seq, id).Scan(&text)
}

// Finish records how attempts ended, all in one transaction.
func (s *Store) Finish(ctx context.Context, worker int32, ends []End) error {
	return s.call(ctx, func(mode pgx.QueryExecMode) error {
		return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			for _, e := range ends {
				var after *float64
				if e.After != nil {
					seconds := e.After.Seconds()
					after = &seconds
				}
				if _, err := tx.Exec(ctx, sqlFinish, mode, worker, e.Lane, e.Seq, e.ID, string(e.Outcome), e.Error, e.Output, after); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Fence ends a worker and logs its unfinished attempts again; false: it is recording, ask again.
func (s *Store) Fence(ctx context.Context, worker int32, reason string) (bool, error) {
	var n *int32
	err := s.row(ctx, sqlFence, []any{worker, reason}, &n)
	return n != nil, err
}

// CancelledAmong returns those of the ids that were cancelled.
func (s *Store) CancelledAmong(ctx context.Context, ids []int64) (cancelled []int64, err error) {
	err = s.row(ctx, sqlCancelled, []any{ids}, &cancelled)
	return cancelled, err
}

// HasEnded tells whether the attempt has a result.
func (s *Store) HasEnded(ctx context.Context, worker int32, batch Batch, id int64) (ended bool, err error) {
	err = s.row(ctx, sqlHasEnded, []any{worker, batch.Lane, batch.Seq, id}, &ended)
	return ended, err
}

// Probe is what an idle worker looks at: two counters, and which transactions were in progress. The zero value is that of nobody who has looked.
type Probe struct {
	Jobs     int64   // moves with every job logged, even before its commit
	Control  int64   // moves with every cancellation and new queue, even before its commit
	Snapshot *string // taken after the counters were read
	Upto     *string // an xid: every transaction that had moved the counters by then has a smaller one
}

// Watch looks up to so many times, pause apart, until the counters differ from those of p or a transaction below p.Upto has ended that
// had not in p.Snapshot; ended tells of the second. The waiting is done in the server: a look there costs a tenth of a round trip. It
// touches no table.
func (s *Store) Watch(ctx context.Context, p Probe, looks int, pause time.Duration) (now Probe, ended bool, err error) {
	err = s.row(ctx, sqlWatch, []any{p.Jobs, p.Control, p.Snapshot, p.Upto, looks, pause.Seconds()},
		&now.Jobs, &now.Control, &now.Snapshot, &now.Upto, &ended)
	return now, ended, err
}

// GiveBack logs again what was handed to the worker in batches other than those known.
func (s *Store) GiveBack(ctx context.Context, worker int32, known []Batch) (n int, err error) {
	lanes, seqs := make([]int32, len(known)), make([]int64, len(known))
	for i, b := range known {
		lanes[i], seqs[i] = b.Lane, b.Seq
	}
	err = s.row(ctx, sqlGiveBack, []any{worker, lanes, seqs}, &n)
	return n, err
}

// repeated is a text that is mostly the same row after row: it is copied only when it changes.
type repeated string

// ScanBytes implements pgtype.BytesScanner.
func (r *repeated) ScanBytes(v []byte) error {
	if string(v) != string(*r) {
		*r = repeated(v)
	}
	return nil
}
