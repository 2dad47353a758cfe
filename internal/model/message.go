package model

// The log of messages: how they are published, cut into ticks, and read.

type messageRow struct {
	by, gone, xid xid
	id, tag       uint8
}

type tickRow struct {
	by         xid
	seq, epoch uint8
	timeline   uint8 // timeline of the server that cut it
	from       xid   // end of the previous snapshot: from here on, the tick has everything that snap sees
	late       xids  // and these transactions, which were in progress before
	snap       snapshot
	holds      [2]uint8 // tags, known only to the model
}

// subscriber is a reader: its position, and, known only to the model, what it has received since its last gap.
type subscriber struct {
	epoch, seq uint8   // the newest tick that it has read
	next       tickRow // the next tick, which it has not read yet; seq 0: none
	start      uint8
	got        [6]uint8
	n          uint8
}

// mop is a call: a publisher's transaction or a cut.
type mop struct {
	cut  bool
	done bool // true when the tick is inserted
	xid  xid
	snap snapshot
	last tickRow
}

type messages struct {
	messageScenario
	off off
}

type messageScenario struct {
	name                         string
	transactions                 []uint8
	cutters                      int
	limit                        int // maximum messages of a tick
	crashes, failovers, reclaims uint8
}

type messageState struct {
	server
	crashes, failovers, reclaims       uint8
	messages                           table[messageRow]
	ticks                              table[tickRow]
	floor                              table[mark] // ticks up to these have been truncated
	ops                                table[mop]
	logged                             table[mark]
	reader                             subscriber
	begun, ids, tags, epochs, timeline uint8
}

func (m *messages) machine() *machine[messageState] {
	s := messageState{server: server{next: 1}, crashes: m.crashes, failovers: m.failovers, reclaims: m.reclaims}
	s.ticks.add(tickRow{seq: 1, snap: snapshot{max: 1}})
	s.reader = subscriber{seq: 1, start: 1}
	return &machine[messageState]{start: s, steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

const (
	publish action = iota + 100
	publishCommit
	publishRollback
	cut
	cutInsert
	cutCommit
	tick
	read
	reclaimMessages
	messageCrash
	messageFailover
)

func (m *messages) steps(s *messageState, all []step) []step {
	can := func(do action, a int) { all = append(all, step{do, uint8(a), 0}) }
	if int(s.begun) < len(m.transactions) {
		can(publish, 0)
	}
	cuts := 0
	for i := range s.ops.all() {
		o := &s.ops.row[i]
		switch {
		case o.cut && !o.done:
			can(cutInsert, i)
		case o.cut:
			can(cutCommit, i)
		default:
			can(publishCommit, i)
			can(publishRollback, i)
		}
		if o.cut {
			cuts++
		}
	}
	if cuts == 0 || !m.off.holds(cutLock) && cuts < m.cutters {
		can(cut, 0)
	}
	if s.reader.next.seq == 0 {
		can(tick, 0)
	} else {
		can(read, 0)
	}
	if newest := s.newest(s.snapshot()); s.reclaims > 0 && newest.seq > s.truncated() {
		can(reclaimMessages, int(newest.seq))
	}
	if s.crashes > 0 {
		can(messageCrash, 0)
	}
	if s.failovers > 0 {
		for n := range int(s.tail.n) + 1 {
			can(messageFailover, n)
		}
	}
	return all
}

func (m *messages) take(s *messageState, st step) error {
	i := int(st.a)
	switch st.do {
	case publish:
		o := s.ops.add(mop{xid: s.begin()})
		for range m.transactions[s.begun] {
			s.ids++
			s.tags++
			s.messages.add(messageRow{by: o.xid, xid: o.xid, id: s.ids, tag: s.tags})
			s.logged.add(mark{o.xid, s.tags, s.ids})
		}
		s.begun++
	case publishCommit:
		s.commit(s.ops.row[i].xid, true, true)
		s.ops.remove(i)
	case publishRollback:
		var one xids
		one.add(s.ops.row[i].xid)
		s.ops.remove(i)
		s.rollBack(one)
	case cut:
		at := s.snapshot()
		s.ops.add(mop{cut: true, snap: at, last: s.newest(at)})
	case cutInsert:
		m.cutInsert(s, i)
	case cutCommit:
		s.commit(s.ops.row[i].xid, m.off.holds(flushTicks), true)
		s.ops.remove(i)
	case tick:
		m.tick(s)
	case read:
		return m.read(s)
	case reclaimMessages:
		s.reclaims--
		x := s.begin()
		// The floor is raised first; then the rows are deleted, for old snapshots as well.
		s.floor.add(mark{by: x, of: st.a})
		newest := s.newest(s.snapshot())
		for k := range s.messages.all() {
			if r := &s.messages.row[k]; newest.snap.sees(r.xid) {
				r.gone = x
			}
		}
		s.commit(x, true, false)
	case messageCrash:
		s.crashes--
		for k := s.flushed; k < s.tail.n; k++ {
			if s.tail.row[k].acked {
				m.setBack(s, s.flushed)
				return nil // what it returned shows in what the reader has received
			}
		}
		m.setBack(s, s.flushed)
	case messageFailover:
		s.failovers--
		m.setBack(s, st.a)
		s.timeline++
	}
	return nil
}

// newest returns the last tick of the log.
func (s *messageState) newest(at snapshot) (last tickRow) {
	for _, t := range s.ticks.all() {
		if at.sees(t.by) && t.seq > last.seq {
			last = t
		}
	}
	return last
}

// truncated returns the last tick whose messages are deleted.
func (s *messageState) truncated() uint8 {
	if s.floor.n == 0 {
		return 0
	}
	return s.floor.row[s.floor.n-1].of
}

// cutInsert is the single statement of cut: it finds what was committed since the last tick, whole transactions, as many as fit into a tick.
func (m *messages) cutInsert(s *messageState, i int) {
	o := &s.ops.row[i]
	t := tickRow{seq: o.last.seq + 1, from: o.last.snap.max, snap: o.snap, epoch: o.last.epoch, timeline: s.timeline}
	var late xids
	for x := xid(1); x < forever; x++ {
		if o.last.snap.running.has(x) && o.snap.sees(x) && m.off.holds(lateTransactions) {
			late.add(x)
		}
	}
	var stop xid
	n := 0
	for x := xid(1); x < o.snap.max && stop == 0; x++ {
		if !late.has(x) && !(x >= t.from && o.snap.sees(x)) {
			continue
		}
		rows := 0
		for _, r := range s.messages.all() {
			if r.xid == x && r.gone == 0 {
				rows++
			}
		}
		switch {
		case rows > 0 && n > 0 && n+rows > m.limit:
			stop = x
		case rows > m.limit: // this transaction is a tick of its own
			stop = x + 1
		}
		if stop == x {
			break
		}
		for _, r := range s.messages.all() {
			if r.xid == x && r.gone == 0 {
				t.holds[n] = r.tag
				n++
			}
		}
		if rows > 0 && late.has(x) {
			t.late.add(x)
		}
	}
	if n == 0 {
		s.ops.remove(i)
		return
	}
	if stop != 0 {
		// This is as if the rest had not been committed yet.
		var running xids
		top := stop
		if stop < t.from {
			top = t.from
			for x := xid(1); x < forever; x++ {
				if o.last.snap.running.has(x) && (x >= stop || !o.snap.sees(x)) {
					running.add(x)
				}
			}
		} else {
			running = o.snap.running.without(from(stop))
		}
		t.snap = snapshot{top, running}
	}
	if m.off.holds(epochs) && o.last.timeline != s.timeline {
		s.epochs++
		t.epoch = s.epochs
	}
	for _, k := range s.ticks.all() {
		if k.seq == t.seq && m.off.holds(tickKey) {
			s.ops.remove(i)
			return
		}
	}
	o.xid, o.done = s.begin(), true
	t.by = o.xid
	s.ticks.add(t)
}

// tick tells the reader the next tick, or that its position is not in this log.
func (m *messages) tick(s *messageState) {
	r := &s.reader
	at := s.snapshot()
	newest := s.newest(at)
	known := false
	var next tickRow
	for _, t := range s.ticks.all() {
		if !at.sees(t.by) {
			continue
		}
		known = known || t.seq == r.seq && (t.epoch == r.epoch || !m.off.holds(epochs))
		if t.seq == r.seq+1 {
			next = t
		}
	}
	if !known || r.seq < s.truncated() {
		m.gap(s, newest)
		return
	}
	r.next = next
}

// gap reports to the reader that messages may be missing, and moves it to the end of the log.
func (m *messages) gap(s *messageState, newest tickRow) {
	s.reader = subscriber{epoch: newest.epoch, seq: newest.seq, start: newest.seq}
}

// read returns a tick's messages to the reader. Some time has passed since the reader learned of the tick.
func (m *messages) read(s *messageState) error {
	r := &s.reader
	want := r.next
	r.next = tickRow{}
	at := s.snapshot()
	var t tickRow
	for _, k := range s.ticks.all() {
		if at.sees(k.by) && k.seq == want.seq && k.epoch == want.epoch {
			t = k
		}
	}
	if t.seq == 0 {
		return nil // the tick is no longer in this log: the next poll reports it
	}
	n := r.n
	for _, k := range s.messages.all() {
		if k.gone == 0 && at.sees(k.by) && (t.late.has(k.xid) || k.xid >= t.from && t.snap.sees(k.xid)) {
			if int(n) == len(r.got) {
				panic(noRoom("a reader receives too much"))
			}
			r.got[n] = k.tag
			n++
		}
	}
	if t.seq <= s.truncated() && m.off.holds(floorLast) {
		return nil // the next poll reports it
	}
	r.n, r.seq, r.epoch = n, t.seq, want.epoch
	return nil
}

func (m *messages) setBack(s *messageState, n uint8) {
	s.rollBack(s.lose(n))
	s.ops = table[mop]{}
	s.next = 0
	s.eachXid(func(x *xid) { s.next = max(s.next, *x+1) }, func(x *xid) { s.next = max(s.next, *x) })
	s.ids = 0
	for _, l := range s.logged.all() {
		s.ids = max(s.ids, l.id)
	}
}

func (s *messageState) rollBack(lost xids) {
	s.open = s.open.without(lost)
	s.messages.keep(func(r *messageRow) bool { return !lost.has(r.by) })
	s.ticks.keep(func(r *tickRow) bool { return !lost.has(r.by) })
	s.logged.keep(func(r *mark) bool { return !lost.has(r.by) })
	s.floor.keep(func(r *mark) bool { return !lost.has(r.by) })
	for i := range s.messages.all() {
		restore(&s.messages.row[i].gone, lost)
	}
}
