package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// Moves of producers and workers: enqueue, claim, record, complete.

func (r *replay) begin() {
	r.tokens++
	c := r.connect(r.url)
	r.exec(c, `BEGIN`)
	r.exec(c, `SELECT pg_current_xact_id()`)
	r.open[r.tokens] = c
	r.take(begin, 0, 0)
	r.s.ops.row[r.s.ops.n-1].what.tag = r.tokens
	r.note("begin of transaction %d", r.tokens)
}

func (r *replay) enqueue(token uint8) {
	id := query[int64](&r.script, r.open[token], `SELECT weir.enqueue('q', 'k')`)
	i := r.producer(token)
	r.s.ops.row[i].segment = r.s.active()
	r.take(enqueue, i, 0)
	r.ids[r.s.tags] = id
	r.note("enqueue of job %d in transaction %d", r.s.tags, token)
}

func (r *replay) commit(token uint8) {
	c := r.open[token]
	if r.rng.IntN(3) == 0 {
		name := fmt.Sprintf("%s %d", c.Config().Database, token)
		r.exec(c, `PREPARE TRANSACTION '`+name+`'`)
		r.exec(r.admin, `COMMIT PREPARED '`+name+`'`)
	} else {
		r.exec(c, `COMMIT`)
	}
	_ = c.Close(r.Context())
	delete(r.open, token)
	r.take(commitOp, r.producer(token), 0)
	r.note("commit of transaction %d", token)
}

func (r *replay) rollback(token uint8) {
	r.exec(r.open[token], `ROLLBACK`)
	_ = r.open[token].Close(r.Context())
	delete(r.open, token)
	r.take(rollback, r.producer(token), 0)
	r.note("rollback of transaction %d", token)
}

// claim claims for a process. If it is held up, it begins, and waits for the lane's lock until claimGoesOn.
func (r *replay) claim(i int, heldUp bool) {
	r.take(claim, int(r.s.process[i].worker), 255-i)
	begun := r.call(func(o *op) bool { return o.call == claiming }) >= 0
	heldUp = heldUp && begun
	if heldUp {
		r.gate = r.connect(r.url)
		r.exec(r.gate, `SELECT pg_advisory_lock(1464158546, q.id * 4 + 1) FROM weir.queue q WHERE q.name = 'q'`)
	}
	r.waiting = make(chan answer, 1)
	conn := r.connect(r.url)
	go func(out chan<- answer) { // ends with the claim, which claimGoesOn or close waits for
		defer conn.Close(context.Background())
		rows, err := conn.Query(context.Background(), `SELECT lane, seq, id FROM weir._claim($1, '{q}', $2)`, r.workers[i], []int32{int32(r.m.quota)})
		a := answer{process: i, err: err}
		if err == nil {
			a.jobs, a.err = pgx.CollectRows(rows, pgx.RowToStructByPos[got])
		}
		out <- a
	}(r.waiting)
	if heldUp {
		r.note("claim by worker %d begins", i+1)
		for end := time.Now().Add(time.Minute); !query[bool](&r.script, r.admin,
			`SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1464158546 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`); {
			if time.Now().After(end) {
				r.fail("the claim did not wait for the lane")
			}
		}
		return
	}
	r.claimGoesOn()
}

func (r *replay) claimGoesOn() {
	if r.gate != nil {
		r.exec(r.gate, `SELECT pg_advisory_unlock_all()`)
		_ = r.gate.Close(r.Context())
		r.gate = nil
	}
	a := pgtest.Receive(r, r.waiting, "the claim returns")
	r.waiting = nil
	p := &r.s.process[a.process]
	before := p.held
	claims := func(o *op) bool { return o.call == claiming }
	var want []int64
	if k := r.call(claims); k >= 0 {
		r.take(claimLane, k, 0)
		picked, _ := r.m.pick(&r.s, &r.s.ops.row[k].saw, r.s.ops.row[k].snap)
		for _, j := range picked {
			want = append(want, r.ids[j.tag])
		}
		r.take(claimBatch, k, 0)
		if k = r.call(claims); k >= 0 {
			r.take(commitOp, k, 0)
		}
	}
	for _, h := range p.held {
		for _, j := range a.jobs {
			if h != (held{}) && r.ids[h.tag] == j.ID && !slices.Contains(before[:], h) {
				r.batches[h] = place{j.Lane, j.Seq}
			}
		}
	}
	var ids []int64
	for _, j := range a.jobs {
		ids = append(ids, j.ID)
	}
	r.note("claim by worker %d returns %v", a.process+1, ids)
	if a.err != nil && (code(a.err) != "WR001" || p.alive) {
		r.fail("claim: %v", a.err)
	}
	if a.err == nil && !p.alive {
		r.fail("a claim of a fenced worker succeeded")
	}
	if !slices.Equal(ids, want) {
		r.fail("claim returned jobs %v, but in the model it is %v", ids, want)
	}
}

// record records the end of an attempt. The model decides whether it is refused.
func (r *replay) record(i, k int, do action) {
	p := &r.s.process[i]
	h := p.held[k]
	outcome := "completed"
	if do == recordRetried {
		outcome = "retried"
	}
	at := r.batches[h]
	var refusal string
	err := r.admin.QueryRow(r.Context(), `SELECT coalesce((SELECT refusal FROM weir._record($1, ARRAY[$2::bigint], ARRAY[$3::bigint], '{1}', ARRAY[$4::bigint], ARRAY[$5::text])), '')`,
		r.workers[i], at.lane, at.seq, r.ids[h.tag], outcome).Scan(&refusal)
	r.note("record by worker %d: job %d %s: %q %v", i+1, h.tag, outcome, refusal, err)
	if err != nil {
		refusal = code(err)
	}
	b, _ := r.s.own(r.s.snapshot(), p.worker, h)
	want := ""
	switch {
	case r.s.fenced(r.s.snapshot(), p.worker):
		want = "WR001"
	case b == nil:
		want = "lost"
	case r.s.ended(r.s.snapshot(), h.seq, h.number, h.id) != 0:
		want = "ended"
	case !r.m.mayEnd(&r.s, p.worker, h.id, false):
		want = "busy"
	}
	if refusal != want {
		r.fail("record returned %q, but in the model it is %q", refusal, want)
	}
	if want == "busy" {
		return
	}
	r.take(do, i, k)
	if want == "" {
		r.take(insert, int(r.s.ops.n)-1, 0)
		r.take(commitOp, int(r.s.ops.n)-1, 0)
	}
}

// complete completes an attempt in a transaction that stays open.
func (r *replay) complete(i, k int) {
	p := &r.s.process[i]
	h := p.held[k]
	at := r.batches[h]
	c := r.connect(r.url)
	r.exec(c, `BEGIN`)
	_, err := c.Exec(r.Context(), `SELECT weir._complete($1, $2, $3, $4)`, r.workers[i], at.lane, at.seq, r.ids[h.tag])
	r.note("complete by worker %d of job %d in a transaction: %v", i+1, h.tag, err)
	r.take(complete, i, k)
	if r.call(func(o *op) bool { return o.call == completing && o.phase == 1 }) < 0 {
		if c := code(err); c != "WR001" && c != "WR002" {
			r.fail("complete returned %v, but the model refuses it", err)
		}
		_ = c.Close(r.Context())
		return
	}
	if err != nil {
		r.fail("complete returned %v, but the model does not refuse it", err)
	}
	r.take(insert, int(r.s.ops.n)-1, 0)
	r.ends[h] = c
}

// end ends the transaction of a completion.
func (r *replay) end(h held, commits bool) {
	c := r.ends[h]
	delete(r.ends, h)
	i := r.call(func(o *op) bool { return o.call == completing && o.what == h })
	if commits {
		r.exec(c, `COMMIT`)
		r.take(commitOp, i, 0)
	} else {
		r.exec(c, `ROLLBACK`)
		r.take(rollback, i, 0)
	}
	_ = c.Close(r.Context())
	r.note("the transaction that completes job %d commits: %v", h.tag, commits)
}

// forget makes a process forget an attempt, as if the answer to the claim had been lost.
func (r *replay) forget(i, k int) {
	h := r.s.process[i].held[k]
	r.s.process[i].forget(func(o held) bool { return o == h })
	r.note("worker %d does not know of job %d", i+1, h.tag)
}
