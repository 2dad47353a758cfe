package proof

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimer acts as a worker: it claims, ends attempts in every way, dies, and continues under a new id.
type claimer struct {
	*load
	rng    *rand.Rand
	conn   *pgx.Conn
	worker int32 // 0: not registered yet
	mortal bool  // dies silently and is fenced by the rescuer
	held   []*evidence
	lanes  []int64 // of the batches that it holds
	seqs   []int64
	unsure bool // whether a result was recorded is unknown, and only a fence decides
}

func (l *load) work(n int) {
	c := &claimer{load: l, rng: rand.New(rand.NewPCG(l.seed, uint64(2000+n)))}
	for c.ctx.Err() == nil && !closed(l.drained) {
		if c.conn == nil || c.conn.IsClosed() {
			if c.conn = c.dial("victim claimer"); c.conn == nil {
				return
			}
			c.recover()
			continue
		}
		if c.worker == 0 {
			c.start()
			continue
		}
		if got := c.claim(); got == 0 && l.draining.Load() && len(c.held) == 0 {
			c.pause(5 * time.Millisecond)
		}
		if c.mortal && len(c.held) > 0 && !c.conn.IsClosed() {
			c.model.abandon(c.held)
			c.worker, c.held, c.lanes, c.seqs = 0, nil, nil, nil
			continue
		}
		c.finishSome()
	}
	if c.conn != nil {
		_ = c.conn.Close(context.Background())
	}
}

func (c *claimer) start() {
	c.mortal = !c.draining.Load() && c.rng.IntN(4) == 0
	lease := "5 minutes"
	if c.mortal {
		lease = "1 second"
	}
	var id int32
	err := c.conn.QueryRow(c.ctx, `SELECT weir._start('claimer', $1, $2::text::interval)`, c.queues, lease).Scan(&id)
	if !c.check(c.conn, "worker_start", err) {
		c.worker = id
	}
}

func (c *claimer) claim() int {
	if !c.mortal && c.rng.IntN(100) == 0 {
		_, err := c.conn.Exec(c.ctx, `SELECT weir.heartbeat($1)`, c.worker)
		if c.check(c.conn, "heartbeat", err) {
			return 0
		}
	}
	queues := slices.Clone(c.queues)
	c.rng.Shuffle(len(queues), func(i, j int) { queues[i], queues[j] = queues[j], queues[i] })
	queues = queues[:1+c.rng.IntN(len(queues))]
	limits := make([]int32, len(queues))
	for i := range limits {
		limits[i] = int32(1 + c.rng.IntN(40))
	}
	began := time.Now()
	got, err := claim(c.ctx, c.conn, c.worker, queues, limits)
	if sqlstate(err) == "WR001" && c.mortal { // the rescuer was faster
		c.worker, c.lanes, c.seqs = 0, nil, nil
		return 0
	}
	if c.check(c.conn, "claim", err) {
		return 0
	}
	c.held = append(c.held, c.model.claimed(c.worker, began, got)...)
	for i, a := range got {
		if i == 0 || a.Lane != got[i-1].Lane {
			c.lanes, c.seqs = append(c.lanes, a.Lane), append(c.seqs, a.Seq)
		}
	}
	return len(got)
}

// recover continues after a lost connection. It either keeps its worker and records its results again,
// or gives the worker up.
func (c *claimer) recover() {
	if c.worker == 0 {
		return
	}
	// A claim whose answer was lost is in the log, and only a fence gives its jobs to others. After a crash of the
	// server, this worker's claims may be lost too, so it keeps its attempts and tries to record them.
	if c.crashing && c.rng.IntN(2) == 0 {
		held := c.held
		c.held = nil
		for i, e := range held {
			err := complete(c.ctx, c.conn, c.worker, []attempt{e.attempt})
			switch {
			case err == nil:
				c.model.ended(final, e)
			case sqlstate(err) == "WR002": // the claim was lost
				c.model.abandon([]*evidence{e})
			case c.check(c.conn, "complete after a crash", err):
				c.model.ended(unsure, e)
			}
			if c.conn.IsClosed() {
				c.held = held[i+1:] // it keeps those too
				return
			}
		}
	}
	if !c.crashing && !c.mortal && !c.unsure && c.rng.IntN(2) == 0 {
		_, err := c.takeStock(func(tx pgx.Tx) (bool, error) {
			var held []attempt
			for _, e := range c.held {
				held = append(held, e.attempt)
			}
			_, err := reconcile(c.ctx, tx, c.worker, held)
			return true, err
		})
		c.check(c.conn, "reconcile", err)
		return // with the same worker and its attempts
	}
	c.bury()
}

// bury fences its own worker, to start over.
func (c *claimer) bury() {
	for end := time.Now().Add(patience); ; c.pause(5 * time.Millisecond) {
		done, err := c.takeStock(func(tx pgx.Tx) (done bool, err error) {
			err = tx.QueryRow(c.ctx, `SELECT weir._fence($1)`, c.worker).Scan(&done)
			for more := done; more && err == nil; {
				err = tx.QueryRow(c.ctx, `SELECT more FROM weir._settle($1)`, c.worker).Scan(&more)
			}
			return done, err
		})
		if c.check(c.conn, "fence", err) {
			return // and start over
		}
		if done {
			c.model.abandon(c.held)
			c.worker, c.held, c.lanes, c.seqs, c.unsure = 0, nil, nil, nil, false
			return
		}
		if time.Now().After(end) {
			c.fail(errStillHeld)
			return
		}
	}
}

// takeStock fences or reconciles, and finds in the same transaction the claims whose answers were lost. It returns false if fence
// finds a result in flight.
func (c *claimer) takeStock(call func(pgx.Tx) (bool, error)) (bool, error) {
	tx, err := c.conn.Begin(c.ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if done, err := call(tx); err != nil || !done {
		return false, err
	}
	began := time.Now()
	rows, err := tx.Query(c.ctx, `SELECT q.name, b.lane, b.seq, j.id, j.attempt, j.max_attempts, j.kind, j.args->>'k', NULL, j.put_off
		FROM weir.batch b CROSS JOIN unnest(b.ids) i(id) JOIN weir.queue q ON q.id = b.lane >> 39
		CROSS JOIN LATERAL (
			SELECT j.* FROM weir.job j
			WHERE j.segment = b.segment AND j.lane = coalesce(b.lanes[array_position(b.ids, i.id)], b.lane) AND j.xid >= b.from_xid AND j.xid <= b.to_xid AND j.id = i.id
			ORDER BY j.attempt DESC, j.put_off DESC LIMIT 1) j
		WHERE b.worker = $1 AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::bigint[]) k(lane, seq) WHERE k.lane = b.lane AND k.seq = b.seq)`,
		c.worker, c.lanes, c.seqs)
	if err != nil {
		return false, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[attempt])
	if err != nil {
		return false, err
	}
	var unseen []attempt
	for _, a := range found {
		if !c.model.has(a.ID, a.step()) {
			unseen = append(unseen, a)
		}
	}
	c.model.abandon(c.model.claimed(c.worker, began, unseen))
	return true, tx.Commit(c.ctx)
}

// finishSome ends a random part of the held attempts, or all of them while the load is draining.
func (c *claimer) finishSome() {
	if c.conn.IsClosed() || len(c.held) == 0 {
		return
	}
	draining := c.draining.Load()
	c.rng.Shuffle(len(c.held), func(i, j int) { c.held[i], c.held[j] = c.held[j], c.held[i] })
	n := len(c.held)
	if !draining && n < 300 {
		n = c.rng.IntN(n + 1)
	}
	now := c.held[:n]
	c.held = slices.Clone(c.held[n:])
	var done []*evidence
	for i, e := range now {
		if draining || c.rng.IntN(6) > 0 {
			done = append(done, e)
			continue
		}
		if c.finishOne(e); c.conn.IsClosed() {
			c.held = append(append(c.held, done...), now[i+1:]...)
			return
		}
	}
	var flat []attempt
	for _, e := range done {
		flat = append(flat, e.attempt)
	}
	if len(done) == 0 {
		return
	}
	if c.check(c.conn, "complete", complete(c.ctx, c.conn, c.worker, flat)) {
		c.model.ended(unsure, done...)
		c.unsure = true
		if c.crashing {
			c.held = append(c.held, done...) // and record them again later
		}
		return
	}
	c.model.ended(final, done...)
}

func (c *claimer) finishOne(e *evidence) {
	outcome := [...]string{"completed", "failed", "cancelled", "retried", "retried", "retried", "snoozed", "released"}[c.rng.IntN(8)]
	end := final
	if outcome == "retried" && e.Attempt < e.Max || outcome == "snoozed" || outcome == "released" {
		end = followed
	}
	var runAt time.Time
	if outcome == "snoozed" || outcome == "retried" && c.rng.IntN(2) == 0 {
		runAt = time.Now().Add(time.Duration(c.rng.IntN(300)) * time.Millisecond)
	}
	if outcome == "completed" && c.rng.IntN(2) == 0 {
		c.completeInTx(e)
		return
	}
	times := 1 + c.rng.IntN(8)/7 // some calls are repeated
	for i := range times {
		first, err := finish(c.ctx, c.conn, c.worker, e.attempt, outcome, runAt)
		if i > 0 && sqlstate(err) == "WR002" {
			return // the segment, with the batch, was reclaimed between the calls
		}
		if c.check(c.conn, "finish", err) {
			if i == 0 {
				c.model.ended(unsure, e)
				c.unsure = true
			}
			return
		}
		if first != (i == 0) {
			c.t.Errorf("finish call %d of %s returned %v", i+1, describe(e), first)
		}
		c.model.ended(end, e)
	}
}

// completeInTx completes an attempt in a transaction of its handler, which stays open for a moment and may roll back.
func (c *claimer) completeInTx(e *evidence) {
	tx, err := c.conn.Begin(c.ctx)
	if err == nil {
		err = completeTx(c.ctx, tx, c.worker, e.attempt)
	}
	if err != nil || c.rng.IntN(3) == 0 {
		if tx != nil {
			_ = tx.Rollback(c.ctx)
		}
		if sqlstate(err) == "WR002" && c.crashing {
			c.model.abandon([]*evidence{e})
			return
		}
		c.check(c.conn, "complete in a transaction", err)
		c.held = append(c.held, e)
		return
	}
	c.pause(time.Duration(c.rng.IntN(20)) * time.Millisecond)
	if c.check(c.conn, "commit of a completion", tx.Commit(c.ctx)) {
		c.model.ended(unsure, e)
		c.unsure = true
		return
	}
	c.model.ended(final, e)
}
