package model

// Moves of recovery and of reclaiming: reconcile, fence, settle, forget_ended, rotate, reclaim.

func (r *replay) reconcile(i int) {
	p := &r.s.process[i]
	var sizes []int32
	var lanes, seqs, ids []int64
	for _, h := range p.held {
		if h != (held{}) {
			lanes, seqs, sizes, ids = append(lanes, r.batches[h].lane), append(seqs, r.batches[h].seq), append(sizes, 1), append(ids, r.ids[h.tag])
		}
	}
	before := r.s.results.n
	released := 0
	for after := new(int64); after != nil; {
		var some int
		if err := r.admin.QueryRow(r.Context(), `SELECT released, next FROM weir._reconcile($1, $2, $3, $4, $5, $6)`, r.workers[i],
			append([]int64{}, lanes...), append([]int64{}, seqs...), append([]int32{}, sizes...), append([]int64{}, ids...), *after).Scan(&some, &after); err != nil {
			r.fail("reconcile: %v", err)
		}
		released += some
	}
	r.take(reconcile, i, 0)
	r.note("reconcile of worker %d releases %d", i+1, released)
	if want := int(r.s.results.n - before); released != want {
		r.fail("reconcile released %d, but in the model it is %d", released, want)
	}
}

func (r *replay) fence(i int) {
	w := r.s.process[i].worker
	done := query[bool](&r.script, r.admin, `SELECT weir._fence($1)`, r.workers[i])
	r.note("fence of worker %d: %v", i+1, done)
	if want := r.m.mayFence(&r.s, w); done != want {
		r.fail("fence returned %v, but in the model it is %v", done, want)
	}
	if done {
		r.take(fence, int(w), 0)
		r.s.process[i].ends()
	}
}

func (r *replay) settle(i int) {
	n := 0
	for more := true; more; {
		var some int
		if err := r.admin.QueryRow(r.Context(), `SELECT relogged, more FROM weir._settle($1)`, r.workers[i]).Scan(&some, &more); err != nil {
			r.fail("settle: %v", err)
		}
		n += some
	}
	before := r.s.results.n
	if _, _, found, _ := r.m.toSettle(&r.s, uint8(i+1)); found {
		r.take(settle, i+1, 0)
	}
	want := int(r.s.results.n - before)
	r.note("settle of worker %d logs %d again", i+1, n)
	if n != want {
		r.fail("settle logged %d attempts again, but in the model it is %d", n, want)
	}
}

// forgetEnded makes an idle lane forget pending transactions that have ended. The server may leave a few.
func (r *replay) forgetEnded() {
	n := query[int](&r.script, r.admin, `SELECT weir._forget_ended()`)
	_, fewer := r.m.kept(&r.s, r.s.snapshot())
	r.note("forget_ended trims %d lanes", n)
	switch {
	case n == 0:
	case !fewer || n > 1:
		r.fail("forget_ended trimmed %d lanes, but in the model there is nothing to forget", n)
	default:
		r.take(forgetEnded, 0, 0)
	}
}

// rotate opens the next segment, as if it were due.
func (r *replay) rotate() {
	if r.s.used(3 - r.s.active()) {
		return
	}
	r.exec(r.admin, `UPDATE weir.segment SET at = at - interval '1 day' WHERE event = 'opened'`)
	did := query[string](&r.script, r.admin, `SELECT coalesce(weir._rotate(), '')`)
	r.note("rotate: %s", did)
	if len(did) > 6 && did[:6] == "opened" {
		r.take(rotate, 0, 0)
	}
}

// reclaim reclaims the closed segment. The server may always postpone it.
func (r *replay) reclaim() {
	closed := query[int](&r.script, r.admin, `SELECT coalesce(max(s), 0) FROM generate_series(1, 4) s WHERE weir._segment_state('job', s) = 'closed'`)
	if closed == 0 {
		return
	}
	done := query[bool](&r.script, r.admin, `SELECT weir._reclaim($1)`, closed)
	r.note("reclaim of segment %d: %v", closed, done)
	if !done {
		return
	}
	if !r.m.mayReclaim(&r.s, 3-r.s.active()) {
		r.fail("a segment was reclaimed although a transaction in flight has rows there")
	}
	r.take(reclaim, 0, 0)
	i := r.call(func(o *op) bool { return o.call == reclaiming })
	r.take(reclaimLook, i, 0)
	if !r.m.mayCarry(&r.s, r.s.ops.row[i].segment) {
		r.fail("a segment was reclaimed although a claim or a result is in flight")
	}
	r.take(reclaimCarry, i, 0)
}
