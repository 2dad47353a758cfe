package model

// eachXid visits every transaction id in a state: those of transactions, and those that are only bounds.
func (s *state) eachXid(of, bound func(*xid)) {
	bound(&s.next)
	for i := range s.tail.all() {
		of(&s.tail.row[i].by)
	}
	for i := range s.jobs.all() {
		r := &s.jobs.row[i]
		of(&r.by)
		of(&r.gone)
		of(&r.deleted)
		of(&r.xid)
	}
	for i := range s.batches.all() {
		r := &s.batches.row[i]
		of(&r.by)
		of(&r.gone)
		of(&r.from)
		of(&r.to)
		s.batches.row[i].cursor.eachXid(of)
	}
	for i := range s.results.all() {
		of(&s.results.row[i].by)
		of(&s.results.row[i].gone)
	}
	for i := range s.workers.all() {
		of(&s.workers.row[i].by)
	}
	for i := range s.settled.all() {
		of(&s.settled.row[i].by)
	}
	for _, t := range [...]*table[mark]{&s.opened, &s.logged, &s.effects} {
		for i := range t.all() {
			of(&t.row[i].by)
		}
	}
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		of(&o.xid)
		bound(&o.snap.max)
		o.saw.eachXid(of)
	}
}

func (c *cursor) eachXid(of func(*xid)) {
	of(&c.pos.xid)
	for i := range c.pending {
		of(&c.pending[i].xid)
	}
}

// unsettled forgets the place in the order of commits of those that no fault can undo any more, and returns the transactions that may still be lost: open ones, and those that
// have committed last. crashes and failovers: how many are still to come.
func unsettled(tail *table[commit], flushed *uint8, open xids, crashes, failovers uint8) xids {
	safe := tail.n
	switch {
	case failovers > 0:
		safe = 0
	case crashes > 0:
		safe = *flushed
	}
	for ; safe > 0; safe-- {
		tail.remove(0)
		if *flushed > 0 {
			*flushed--
		}
	}
	for _, c := range tail.all() {
		open.add(c.by)
	}
	return open
}

// tidy gives equivalent states the same form: what can't be lost any more, and what every snapshot sees, needs no transaction; ids of transactions
// are renumbered, and rows are sorted.
func (m *jobs) tidy(s *state) {
	kept := unsettled(&s.tail, &s.flushed, s.open, s.left.Crashes, s.left.Failovers) // transactions that may be lost, or that some snapshot does not see
	for i := range s.tail.all() {
		if c := &s.tail.row[i]; uint8(i) < s.flushed {
			c.acked = false // never lost silently: a failover may lose it
		}
	}
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		if o.phase == 0 || o.call == producing || o.call == reclaiming || o.phase == 3 || o.phase == 2 && o.call != claiming || o.call == claiming && o.phase == 1 {
			o.snap = snapshot{} // no longer used
			continue
		}
		kept = kept.with(o.snap.running).with(from(o.snap.max))
	}
	settled := func(x *xid) {
		if *x != forever && !kept.has(*x) {
			*x = 0
		}
	}
	truncated := func(x *xid) {
		if *x != 0 && *x != forever && !kept.has(*x) {
			*x = forever
		}
	}
	newest := uint8(0)
	for i := range s.jobs.all() {
		settled(&s.jobs.row[i].by)
		truncated(&s.jobs.row[i].gone)
		truncated(&s.jobs.row[i].deleted)
	}
	for i := range s.batches.all() {
		b := &s.batches.row[i]
		settled(&b.by)
		truncated(&b.gone)
		if b.by == 0 && b.gone == 0 {
			newest = max(newest, b.cursor.seq)
		}
	}
	s.jobs.keep(func(r *jobRow) bool { return r.gone != forever && r.deleted != forever })
	s.batches.keep(func(r *batchRow) bool { return r.gone != forever })
	for i := range s.batches.all() {
		if c := &s.batches.row[i].cursor; c.seq < newest {
			c.pos, c.pending = position{}, [8]pending{} // no fault can make it the newest again
		}
	}
	for i := range s.results.all() {
		r := &s.results.row[i]
		settled(&r.by)
		if truncated(&r.gone); r.gone == forever {
			r.segment = 0
		}
	}
	for i := range s.workers.all() {
		settled(&s.workers.row[i].by)
	}
	for i := range s.settled.all() {
		settled(&s.settled.row[i].by)
	}
	s.settled.keep(func(r *settledRow) bool { // all but the newest that can't be lost
		for _, k := range s.settled.all() {
			if k.by == 0 && k.worker == r.worker && k.no > r.no {
				return false
			}
		}
		return true
	})
	s.settled.sort(func(r *settledRow) uint64 { return key(r.worker, r.no, r.by, 0) })
	for _, t := range [...]*table[mark]{&s.opened, &s.logged, &s.effects} {
		for i := range t.all() {
			settled(&t.row[i].by)
		}
	}
	for s.opened.n > 1 && s.opened.row[1].by == 0 {
		s.opened.remove(0)
	}
	if !s.moved {
		s.renumber()
	}
	s.jobs.sort(func(r *jobRow) uint64 { return key(r.tag, r.attempt, r.by, r.segment) })
	s.batches.sort(func(r *batchRow) uint64 { return key(r.cursor.seq, r.number, r.by, r.segment<<4|r.origin) })
	s.results.sort(func(r *resultRow) uint64 { return key(r.tag, r.attempt, r.by, uint8(r.outcome)) })
	s.workers.sort(func(r *workerRow) uint64 { return key(r.id, r.by, 0, 0) })
	s.logged.sort(func(r *mark) uint64 { return key(r.of, 0, 0, 0) })
	s.effects.sort(func(r *mark) uint64 { return key(r.of, r.by, 0, 0) })
	s.ops.sort(func(o *op) uint64 { return key(uint8(o.call), o.xid, o.client, o.phase<<4|o.what.id) })
}

func key(a, b, c, d uint8) uint64 { return uint64(a)<<24 | uint64(b)<<16 | uint64(c)<<8 | uint64(d) }

// renumber numbers the ids of transactions again, in their order.
func (s *state) renumber() {
	var used xids
	s.eachXid(func(x *xid) {
		if *x != 0 && *x != forever {
			used.add(*x)
		}
	}, func(*xid) {})
	s.eachXid(func(x *xid) {
		if *x != 0 && *x != forever {
			*x = xid(used.below(*x) + 1)
		}
	}, func(x *xid) {
		if *x != 0 {
			*x = xid(used.below(*x) + 1)
		}
	})
	squeeze := func(ids *xids) {
		var n xids
		for x := xid(1); x < forever; x++ {
			if ids.has(x) && used.has(x) {
				n.add(xid(used.below(x) + 1))
			}
		}
		*ids = n
	}
	squeeze(&s.open)
	for i := range s.ops.all() {
		squeeze(&s.ops.row[i].snap.running)
	}
}

// longAgo is a transaction that has committed, and that every snapshot sees which still matters.
const longAgo xid = 1

// numbering gives those ids of transactions that still matter new numbers, after longAgo, in their order.
type numbering struct {
	used xids
	to   [64]xid
	next xid
}

func numberingOf(used xids) (n numbering) {
	n.used, n.next = used, longAgo+1
	for x := longAgo + 1; x < 62; x++ {
		if n.to[x] = n.next; used.has(x) {
			n.next++
		}
	}
	n.to[62], n.to[63] = n.next, n.next
	return n
}

func (n *numbering) of(x *xid) {
	if *x > longAgo {
		*x = n.to[*x]
	}
}

func (n *numbering) ofSet(s *xids) {
	var all xids
	for x := longAgo + 1; x < 62; x++ {
		if s.has(x) && n.used.has(x) {
			all.add(n.to[x])
		}
	}
	*s = all
}

func (n *numbering) ofSnapshot(s *snapshot) {
	n.ofSet(&s.running)
	n.of(&s.max)
}
