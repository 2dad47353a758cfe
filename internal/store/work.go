package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Outcome is how an attempt ended: weir.outcome.
type Outcome string

const (
	Completed Outcome = "completed"
	Failed    Outcome = "failed"    // for good
	Cancelled Outcome = "cancelled" // for good
	Retried   Outcome = "retried"   // failed for good if it was the last attempt
	Snoozed   Outcome = "snoozed"   // postponed; does not use up an attempt
	Released  Outcome = "released"  // released unstarted; does not use up an attempt
	Lost      Outcome = "lost"      // written by the rescuer only; failed for good if it was the last attempt
)

// MaxBatch is the maximum number of jobs that weir._claim returns from one lane at once.
const MaxBatch = 960

// Batch identifies a batch of a lane.
type Batch struct {
	Lane int64
	Seq  int64
}

// Claim is one attempt claimed by a worker.
type Claim struct {
	Batch
	Queue       string
	Priority    int
	ID          int64
	Attempt     int32
	MaxAttempts int32
	PutOff      int32 // how many times the job was snoozed or released before this attempt
	Kind        string
	Args        []byte
	Meta        []byte
	Key         string // "": it has none
	Flow        int64  // 0: it is a member of none
	EnqueuedAt  time.Time
	ReadyAt     *time.Time // nil: when it was enqueued
	Dropped     *string    // not nil: must not run, but be recorded as cancelled, with this reason, if it is not empty
}

// Withheld is a queue from which limits have withheld jobs.
type Withheld struct {
	Queue string
	For   *time.Duration // how long its rate will allow none; nil: until attempts have ended
}

// Ready returns when the attempt became available.
func (c *Claim) Ready() time.Time {
	if c.ReadyAt == nil {
		return c.EnqueuedAt
	}
	return *c.ReadyAt
}

// End is how one attempt ended.
type End struct {
	Batch
	ID      int64
	Outcome Outcome
	Error   *string
	Output  *string
	After   *time.Duration // when to run again, by the server's clock; nil: at once; negative: by the retry rules and the queue's backoff
}

// Refusal reports an end that was not recorded, and why; or that it was recorded with another outcome.
type Refusal struct {
	Place   int // from 1
	Why     Why // "": it was recorded
	Detail  string
	Outcome Outcome // in the database, if the attempt has ended there; "": unknown
}

// Why is the reason why an end was not recorded.
type Why string

const (
	HasEnded Why = "ended"   // the attempt has already ended
	NotHeld  Why = "lost"    // this worker no longer holds the attempt
	Busy     Why = "busy"    // an open transaction completes it: try again later
	Invalid  Why = "invalid" // see the detail
)

// MaxRecord is the maximum number of ends in one call of Record.
const MaxRecord = 10_000

// ByQueue, as End.After, leaves the delay before the next attempt to the server: by its retry rules and the backoff of the job's queue.
const ByQueue = -1 * time.Nanosecond

const (
	sqlStart     = `SELECT weir._start($1, $2, make_interval(secs => $3), $4)`
	sqlNeverUsed = `SELECT weir._never_used($1)`
	sqlNames     = `SELECT weir._queue_names()`
	sqlHeartbeat = `SELECT fenced, workers, sharing FROM weir.heartbeat($1, $2)`
	sqlWatch     = `SELECT jobs_now, control_now, seen_now::text, upto_now::text, ended FROM weir._watch($1, $2, $3::text::pg_snapshot, $4::text::xid8, $5, $6)`
	sqlReconcile = `SELECT released, next FROM weir._reconcile($1, $2, $3, $4, $5, $6)`
	sqlClaim     = `SELECT queue, lane, seq, id, attempt, max_attempts, kind, args, meta, enqueued_at, dropped, put_off, ready_at, priority, key, flow FROM weir._claim($1, $2, $3, $4::text::pg_snapshot, $5)`
	sqlRecord    = `SELECT place, coalesce(refusal, ''), coalesce(detail, ''), coalesce(outcome, '') FROM weir._record($1, $2, $3, $4, $5)`
	sqlRecordAll = `SELECT place, coalesce(refusal, ''), coalesce(detail, ''), coalesce(outcome, '') FROM weir._record($1, $2, $3, $4, $5, $6, $7, $8,
		ARRAY(SELECT CASE WHEN a.after < 0 THEN '-infinity' ELSE clock_timestamp() + make_interval(secs => a.after) END FROM unnest($9::float8[]) WITH ORDINALITY a(after, ord) ORDER BY a.ord))`
	sqlProgress      = `SELECT coalesce(token, ''), refusal, detail FROM weir.progress($1, $2)`
	sqlCheckpoint    = `SELECT weir.checkpoint($1)::text`
	sqlSetCheckpoint = `SELECT weir.set_checkpoint($1, $2, $3::text::jsonb)::text`
	sqlComplete      = `SELECT weir._complete($1::int, $2::bigint, $3::bigint, $4::bigint, $5::text, $6::text::jsonb)::text`
	sqlFence         = `SELECT weir._fence($1, $2)`
	sqlLeft          = `SELECT more FROM weir._settle($1)`
	sqlCancelled     = `SELECT weir._cancelled_among($1)`
)

// flowAt is the place of flow among the columns of sqlClaim.
const flowAt = 15

// StartWorker registers a worker for its queues, and for others that fit patterns and that it takes up while it runs (nil: it does not), and returns its id.
func (s *Store) StartWorker(ctx context.Context, name string, queues, others []string, lease time.Duration) (id int32, err error) {
	err = s.row(ctx, sqlStart, []any{name, queues, lease.Seconds(), others}, &id)
	return id, err
}

// NeverUsed returns which of the queues have no jobs and no trace of any.
func (s *Store) NeverUsed(ctx context.Context, queues []string) (names []string, err error) {
	err = s.row(ctx, sqlNeverUsed, []any{queues}, &names)
	return names, err
}

// QueueNames returns the names of all queues, in no order.
func (s *Store) QueueNames(ctx context.Context) (names []string, err error) {
	err = s.row(ctx, sqlNames, nil, &names)
	return names, err
}

// Heartbeat renews the lease. It returns the number of live workers, and how many of them share one of its queues.
func (s *Store) Heartbeat(ctx context.Context, worker int32, running int) (fenced bool, workers, sharing int, err error) {
	err = s.row(ctx, sqlHeartbeat, []any{worker, running}, &fenced, &workers, &sharing)
	return fenced, workers, sharing, err
}

// Claim claims up to limits[i] jobs of queues[i], and calls add for each. With since, a snapshot, it checks only for jobs that were
// committed after it, and in the queues of backlog. It visits a
// limited number of lanes; more: others may have jobs too. withheld are the queues whose limits are reached, though they have jobs.
func (s *Store) Claim(ctx context.Context, worker int32, queues []string, limits []int32, since *string, backlog []string, add func(Claim)) (more bool, withheld []Withheld, err error) {
	err = s.query(ctx, sqlClaim, []any{worker, queues, limits, since, backlog}, func(r pgx.Rows) error {
		var c Claim
		var queue, kind, key repeated
		defer r.Close()
		into := []any{&queue, &c.Lane, &c.Seq, &c.ID, &c.Attempt, &c.MaxAttempts, &kind, &c.Args, &c.Meta, &c.EnqueuedAt, &c.Dropped, &c.PutOff, &c.ReadyAt, &c.Priority, &key, nil}
		for r.Next() {
			values := r.RawValues()
			if values[0] == nil {
				more = true
				continue
			} else if values[3] == nil {
				w, now, until := Withheld{}, time.Time{}, (*time.Time)(nil)
				if err := r.Scan(&w.Queue, nil, nil, nil, nil, nil, nil, nil, nil, &now, nil, nil, &until, nil, nil, nil); err != nil {
					return err
				}
				if until != nil {
					w.For = new(until.Sub(now)) // by the server's clock
				}
				withheld = append(withheld, w)
				continue
			}
			if err := r.Scan(into...); err != nil {
				return err
			}
			c.Queue, c.Kind, c.Key = string(queue), string(kind), string(key)
			if c.Flow = 0; values[flowAt] != nil { // nearly always nil: reading it as the others would take each job longer
				if err := r.Conn().TypeMap().Scan(pgtype.Int8OID, r.FieldDescriptions()[flowAt].Format, values[flowAt], &c.Flow); err != nil {
					return err
				}
			}
			add(c)
		}
		return r.Err()
	})
	return more, withheld, err
}

// Record records ends, with those of a batch next to each other, and returns the refused ones, and those to which a retry rule gave another
// outcome. All others are recorded.
func (s *Store) Record(ctx context.Context, worker int32, ends []End) ([]Refusal, error) {
	var sizes []int32
	var lanes, seqs []int64
	ids := make([]int64, len(ends))
	plain := true
	for i, e := range ends {
		if i == 0 || e.Batch != ends[i-1].Batch {
			lanes, seqs, sizes = append(lanes, e.Lane), append(seqs, e.Seq), append(sizes, 0)
		}
		sizes[len(sizes)-1]++
		ids[i] = e.ID
		plain = plain && e.Outcome == Completed && e.Error == nil && e.Output == nil
	}
	if plain {
		return rows(ctx, s, sqlRecord, []any{worker, lanes, seqs, sizes, ids}, pgx.RowToStructByPos[Refusal])
	}
	outcomes, errs, outputs, afters := make([]string, len(ends)), make([]*string, len(ends)), make([]*string, len(ends)), make([]*float64, len(ends))
	for i, e := range ends {
		outcomes[i], errs[i], outputs[i] = string(e.Outcome), e.Error, e.Output
		if e.After != nil {
			seconds := e.After.Seconds()
			afters[i] = &seconds
		}
	}
	return rows(ctx, s, sqlRecordAll, []any{worker, lanes, seqs, sizes, ids, outcomes, errs, outputs, afters}, pgx.RowToStructByPos[Refusal])
}

// NotStored is an entry that Progress has not stored.
type NotStored struct {
	Token  string
	Why    string
	Detail string
}

// Progress stores what running attempts report, as the text of a JSON array, and returns what was refused.
func (s *Store) Progress(ctx context.Context, worker int32, entries string) ([]NotStored, error) {
	return rows(ctx, s, sqlProgress, []any{worker, entries}, pgx.RowToStructByPos[NotStored])
}

// Checkpoint returns the newest checkpoint of a job; nil: there is none.
func (s *Store) Checkpoint(ctx context.Context, id int64) (checkpoint []byte, err error) {
	var text *string
	if err = s.row(ctx, sqlCheckpoint, []any{id}, &text); err == nil && text != nil {
		checkpoint = []byte(*text)
	}
	return checkpoint, err
}

// CompleteTx records one success in the caller's transaction, with an output as it is stored, and what is added to counters of its flow, as JSON; nil: none.
func CompleteTx(ctx context.Context, tx Querier, worker int32, batch Batch, id int64, output, counts *string) error {
	// Scalars only, for any driver behind tx. The cast makes the result a value that every driver can read.
	var text string
	return tx.QueryRow(ctx, sqlComplete, worker, batch.Lane, batch.Seq, id, output, counts).Scan(&text)
}

// SetCheckpointTx sets the checkpoint of an attempt, in the form in which it is stored, in the caller's transaction.
func SetCheckpointTx(ctx context.Context, tx Querier, worker int32, batch Batch, id int64, checkpoint string) error {
	var text string
	return tx.QueryRow(ctx, sqlSetCheckpoint, worker, fmt.Sprintf("%d.%d.%d", batch.Lane, batch.Seq, id), checkpoint).Scan(&text)
}

// Held lists the attempts that a worker holds: batches, each with the next Sizes[i] of IDs.
type Held struct {
	Lanes []int64
	Seqs  []int64
	Sizes []int32
	IDs   []int64
}

// Reconcile logs attempts again that the database assigns to the worker, but the worker does not hold. It proceeds in steps: start with
// after 0, and while next is not nil, continue with it.
func (s *Store) Reconcile(ctx context.Context, worker int32, held Held, after int64) (released int, next *int64, err error) {
	err = s.row(ctx, sqlReconcile, []any{worker, held.Lanes, held.Seqs, held.Sizes, held.IDs, after}, &released, &next)
	return released, next, err
}

// Fence ends a worker; false: it is claiming or recording, so call Fence again.
func (s *Store) Fence(ctx context.Context, worker int32, reason string) (done bool, err error) {
	err = s.row(ctx, sqlFence, []any{worker, reason}, &done)
	return done, err
}

// Settle logs some of the unfinished attempts of a fenced worker again, and reports whether there may be more.
func (s *Store) Settle(ctx context.Context, worker int32) (more bool, err error) {
	err = s.row(ctx, sqlLeft, []any{worker}, &more)
	return more, err
}

// CancelledAmong returns the ids that were cancelled.
func (s *Store) CancelledAmong(ctx context.Context, ids []int64) (cancelled []int64, err error) {
	err = s.row(ctx, sqlCancelled, []any{ids}, &cancelled)
	return cancelled, err
}

// Probe is what an idle worker polls: two counters, and which transactions were in progress. The zero value means that nothing was polled
// yet.
type Probe struct {
	Jobs     int64   // moves with every job logged, even before its commit
	Control  int64   // moves with every cancellation and new queue, even before its commit
	Snapshot *string // taken after the counters were read
	Upto     *string // an xid: every transaction that had moved the counters by then has a smaller one
}

// Watch polls up to polls times, pause apart, until the counters differ from those of p, or a transaction below p.Upto has ended that had
// not ended in p.Snapshot; ended reports the latter. The server does the waiting, since a poll there costs a tenth of a round trip. It
// reads no table.
func (s *Store) Watch(ctx context.Context, p Probe, polls int, pause time.Duration) (now Probe, ended bool, err error) {
	err = s.row(ctx, sqlWatch, []any{p.Jobs, p.Control, p.Snapshot, p.Upto, polls, pause.Seconds()},
		&now.Jobs, &now.Control, &now.Snapshot, &now.Upto, &ended)
	return now, ended, err
}

// repeated is a text that is usually the same in successive rows: it is copied only when it changes.
type repeated string

// ScanBytes implements pgtype.BytesScanner.
func (r *repeated) ScanBytes(v []byte) error {
	if string(v) != string(*r) {
		*r = repeated(v)
	}
	return nil
}
