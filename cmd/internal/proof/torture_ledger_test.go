package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// ledger is what the test knows without asking the database: what its producers did, and what its workers reported.
type ledger struct {
	mu      sync.Mutex
	fates   map[string]*txRecord       // of the transactions of jobs and messages, by key
	ran     map[string]int             // how often each job was started
	runs    map[any]map[attemptRun]int // the attempts that each worker is running
	lives   []int64                    // for each life of the log except the last: the WAL position up to which it survived
	late    map[attemptRun]bool        // attempts that are running without a worker for too long
	longest time.Duration              // longest time for which an attempt was running without a worker
}

// txRecord is what a producer knows about its transaction.
type txRecord struct {
	fate fate
	life int32 // life of the log in which it was acknowledged
	lsn  int64 // WAL position afterwards; 0: unknown
	weak bool  // its role commits asynchronously, so a crash may undo it
}

type attemptRun struct {
	id      int64
	attempt int
}

func (b *ledger) begin() {
	b.late = map[attemptRun]bool{}
	b.fates, b.ran, b.runs = map[string]*txRecord{}, map[string]int{}, map[any]map[attemptRun]int{}
}

// lifeEnds records how much of the log has survived a failover.
func (b *ledger) lifeEnds(lsn int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lives = append(b.lives, lsn)
}

// heard records a line that a worker's process has printed.
func (b *ledger) heard(c *child, words []string) {
	id, _ := strconv.ParseInt(words[1], 10, 64)
	attempt, _ := strconv.Atoi(words[2])
	if words[0] == "start" {
		b.started(c, attemptRun{id, attempt}, words[3])
	} else {
		b.stopped(c, attemptRun{id, attempt})
	}
}

func (b *ledger) started(by any, r attemptRun, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.runs[by] == nil {
		b.runs[by] = map[attemptRun]int{}
	}
	b.runs[by][r]++
	if key != "" { // the job is in produced
		b.ran[key]++
	}
}

func (b *ledger) stopped(by any, r attemptRun) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.runs[by][r]--; b.runs[by][r] == 0 {
		delete(b.runs[by], r)
	}
}

func (b *ledger) died(by any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.runs, by)
}

// isRun reports whether any worker is running an attempt.
func (b *ledger) isRun(r attemptRun) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, all := range b.runs {
		if all[r] > 0 {
			return true
		}
	}
	return false
}

// channels are the channels of the messages.
var channels = []string{"torture.a.x", "torture.a.y", "torture.b.x", "torture.b.y"}

// produce enqueues jobs and publishes messages in every isolation level, at once and for a later time, and rolls some back. One producer uses the role
// with harmful settings.
func (w *torture) produce(ctx context.Context, rng *rand.Rand, producer int) {
	address := w.common.url(w.T, w.address)
	if producer == 0 {
		address = w.as("hasty", address)
	}
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	for n := 0; ctx.Err() == nil; w.paces(1) {
		life := w.life.Load()
		conn, err := pgx.Connect(ctx, address)
		for err == nil && ctx.Err() == nil {
			w.paces(1)
			f := &txRecord{life: life, weak: producer == 0}
			if err = w.transact(ctx, conn, rng, levels[rng.IntN(len(levels))], f, &n, producer); err != nil || f.fate != committed {
				continue
			}
			w.acked.Add(1)
			var lsn int64
			if err = conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`).Scan(&lsn); err == nil {
				w.ledger.mu.Lock()
				f.lsn = lsn
				w.ledger.mu.Unlock()
			}
		}
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}
}

// transact runs one transaction of a producer. Its fate is uncertain from before anything is sent until the answer.
func (w *torture) transact(ctx context.Context, conn *pgx.Conn, rng *rand.Rand, level pgx.TxIsoLevel, f *txRecord, n *int, producer int) error {
	decide := func(to fate) {
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		f.fate = to
	}
	name := func(form string) string {
		*n++
		key := fmt.Sprintf(form, producer, *n)
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		w.fates[key] = f
		return key
	}
	decide(uncertain)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		return err
	}
	for range 1 + rng.IntN(3) {
		job := torn{Key: name("%d.%d"), Tx: rng.IntN(2) == 0}
		queue, due := "torture", max(rng.IntN(1000)-800, 0)
		if rng.IntN(100) == 0 && w.long.CompareAndSwap(false, true) {
			// A job that holds a connection of its worker's pool for longer than a lease. There is only one at a time, so that it starts at once.
			queue, due, job = "long", 0, torn{Key: job.Key, Takes: int((w.lease + time.Second).Milliseconds()), Holds: true}
			time.AfterFunc(4*w.lease, func() { w.long.Store(false) })
		} else if rng.IntN(8) == 0 {
			job.Takes = 200 + rng.IntN(800)
		}
		if _, err := tx.Exec(ctx, `WITH j AS (SELECT weir.enqueue($5, 'torn', jsonb_build_object('Key', $1::text, 'Tx', $2::boolean, 'Takes', $6::integer, 'Holds', $7::boolean), priority => $3,
			run_at => now() + $4 * interval '1 millisecond') AS id) INSERT INTO produced SELECT $1, j.id, $2 FROM j`,
			job.Key, job.Tx, 1+rng.IntN(4), due, queue, job.Takes, job.Holds); err != nil {
			return err
		}
	}
	for range rng.IntN(3) {
		if _, err := tx.Exec(ctx, `SELECT weir.publish($1, $2)`, channels[rng.IntN(len(channels))], name("m%d.%d")); err != nil {
			return err
		}
	}
	if rng.IntN(5) == 0 {
		w.paces(rng.IntN(10)) // others commit in the meantime
	}
	if rng.IntN(8) == 0 {
		if err := tx.Rollback(ctx); err != nil {
			return err
		}
		decide(rolledBack)
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	decide(committed)
	return nil
}

// workInSQL is a worker that uses only a connection and the functions. After an error it either starts over under another id, or continues under
// the same one after reporting that it holds nothing.
func (w *torture) workInSQL(rng *rand.Rand) {
	worker := int32(0)
	address := w.common.url(w.T, w.address)
	me := new(int)
	for ; w.ctx.Err() == nil; w.paces(2) {
		conn, err := pgx.Connect(w.ctx, address)
		if err != nil {
			continue
		}
		if worker != 0 && rng.IntN(2) == 0 {
			_, err = reconcile(w.ctx, conn, worker, nil)
		} else {
			err = conn.QueryRow(w.ctx, `SELECT weir._start('torture in SQL', '{torture,shared,order}', $1)`, w.lease).Scan(&worker)
		}
		for err == nil && w.ctx.Err() == nil {
			var all []attempt
			var fenced bool
			if err = conn.QueryRow(w.ctx, `SELECT fenced FROM weir.heartbeat($1)`, worker).Scan(&fenced); err != nil || fenced {
				break
			}
			if all, err = w.claimTorn(conn, worker); len(all) == 0 {
				w.paces(1)
			}
			for _, a := range all {
				if err == nil {
					w.ledger.started(me, attemptRun{a.ID, int(a.Attempt)}, a.Key)
					err = w.runInSQL(conn, worker, a)
					w.ledger.stopped(me, attemptRun{a.ID, int(a.Attempt)})
				}
			}
		}
		if err == nil || sqlstate(err) == "WR001" {
			worker = 0 // it is fenced
		}
		_ = conn.Close(context.Background())
	}
}

func (w *torture) claimTorn(conn *pgx.Conn, worker int32) ([]attempt, error) {
	rows, err := conn.Query(w.ctx, `SELECT queue, lane, seq, id, attempt, max_attempts, args->>'Tx', args->>'Key', dropped, put_off FROM weir._claim($1, '{torture,shared,order}', '{4,3,3}') WHERE id IS NOT NULL`, worker)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[attempt])
}

// runInSQL runs an attempt, whose kind says whether it completes in a transaction.
func (w *torture) runInSQL(conn *pgx.Conn, worker int32, a attempt) error {
	switch n := luck(a.Key, int(a.Attempt), int(a.PutOff), 40); {
	case n < 4:
		_, err := finish(w.ctx, conn, worker, a, "retried", time.Now().Add(100*time.Millisecond))
		return err
	case n == 4:
		_, err := finish(w.ctx, conn, worker, a, "released", time.Time{})
		return err
	case a.Kind == "true":
		return pgx.BeginFunc(w.ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(w.ctx, `INSERT INTO effect (key) VALUES ($1)`, a.Key); err != nil {
				return err
			}
			if _, err := tx.Exec(w.ctx, countEffect, a.ID); err != nil {
				return err
			}
			return completeTx(w.ctx, tx, worker, a)
		})
	}
	return complete(w.ctx, conn, worker, []attempt{a})
}

// watch checks whether the database shows an attempt as running that no worker is running. The time is counted in polls, of at most half a second
// each, and by the clock by which Weir measures leases, and the shorter time counts: while the server is down, no one rescues, or this machine is
// suspended, no attempt is late. A server that starts, after a crash or a failover, counts every lease from its first check on, and so does this.
func (w *torture) watch() {
	type running struct {
		attemptRun
		key     string
		claimed time.Time
	}
	type unattended struct {
		polled time.Duration
		since  int64 // by Weir's clock, in milliseconds
	}
	alone := map[running]unattended{}
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	var conn *pgx.Conn
	var last, started, starts time.Time // when the server of the last poll was started, and that of this one
	for {
		select {
		case <-w.ctx.Done():
			if conn != nil {
				_ = conn.Close(context.Background())
			}
			return
		case <-every.C:
		}
		bounded, cancel := context.WithTimeout(w.ctx, patience)
		var err error
		if conn == nil {
			conn, err = pgx.Connect(bounded, w.common.url(w.T, w.address))
			last = time.Now()
		}
		var found []running
		var now int64
		if err == nil {
			var rows pgx.Rows
			if rows, err = conn.Query(bounded, `SELECT id, attempt, coalesce(args->>'Key', ''), claimed_at, (SELECT last_value FROM weir.watched), pg_postmaster_start_time() FROM weir.jobs('running', max_rows => 1000)`); err == nil {
				var l running
				_, err = pgx.ForEachRow(rows, []any{&l.id, &l.attempt, &l.key, &l.claimed, &now, &starts}, func() error { found = append(found, l); return nil })
			}
		}
		cancel()
		if err != nil {
			if conn != nil {
				_ = conn.Close(context.Background())
				conn = nil
			}
			continue
		}
		passed := min(time.Since(last), 500*time.Millisecond)
		last = time.Now()
		if !starts.Equal(started) {
			started = starts
			clear(alone)
		}
		before := alone
		alone = map[running]unattended{}
		for _, l := range found {
			if w.ledger.isRun(l.attemptRun) {
				continue
			}
			was, known := before[l]
			if !known {
				was = unattended{-passed, now}
			}
			was.polled += passed
			alone[l] = was
			late := min(was.polled, time.Duration(now-was.since)*time.Millisecond)
			w.ledger.mu.Lock()
			w.longest = max(w.longest, late)
			reported := w.late[l.attemptRun]
			w.late[l.attemptRun] = late > 2*w.lease
			w.ledger.mu.Unlock()
			if late > 2*w.lease && !reported {
				w.Errorf("attempt %d of job %d (%s), claimed at %v, has been running without a worker for %v", l.attempt, l.id, l.key, l.claimed, late)
			}
		}
	}
}
