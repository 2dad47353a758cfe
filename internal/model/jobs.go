package model

import "fmt"

// The rows of Weir's tables, as far as they decide anything. by is the transaction that inserted a row; gone the one that truncated it, 0
// if none has. tag tells a job from every other, also from one that gets its id after a failover: it is the model's own knowledge.

const forever xid = 63 // gone, and no fault brings it back

type jobRow struct {
	by, gone, deleted, xid    xid
	id, attempt, segment, tag uint8
}

// seen tells whether a snapshot sees a row. Of what is truncated none does.
func (j *jobRow) seen(at snapshot) bool {
	return j.gone == 0 && at.sees(j.by) && !(j.deleted != 0 && at.sees(j.deleted))
}

type position struct {
	xid xid
	id  uint8
}

func (p position) before(x xid, id uint8) bool { return x > p.xid || x == p.xid && id > p.id }

type pending struct {
	xid   xid
	after uint8
}

// cursor is the state of the lane: what the newest batch holds.
type cursor struct {
	seq     uint8
	pos     position
	pending [8]pending
}

type claimed struct{ id, attempt, tag uint8 }

type batchRow struct {
	by, gone, from, to                  xid
	cursor                              cursor
	worker, number, no, segment, origin uint8
	ids                                 [2]claimed
}

type outcome uint8

const (
	completed outcome = iota + 1
	retried
	released
	lost
)

func (o outcome) String() string {
	return [...]string{"", "completed", "retried", "released", "lost"}[o]
}

func (o outcome) final() bool { return o == completed }

type resultRow struct {
	by, gone                 xid
	seq, id, segment, number uint8
	outcome                  outcome
	tag, attempt             uint8
}

type workerRow struct {
	by     xid
	id     uint8
	fenced bool
}

// settledRow says that up to number no a worker's batches have all ended, but for those listed.
type settledRow struct {
	by         xid
	worker, no uint8
	open       set
}

// mark is a row of which nothing but its existence matters: a segment that was opened, a job that was committed, an effect of a handler.
type mark struct {
	by     xid
	of, id uint8
}

// held is an attempt that a process was handed and has not ended yet, as far as it knows.
type held struct{ seq, number, id, attempt, tag uint8 }

// process is a worker's: what it remembers, which survives every fault of the server.
type process struct {
	alive, acted bool
	doubt        bool  // a connection was lost: it reconciles before it claims
	worker       uint8 // its id
	heard        uint8 // the newest batch that it was told of
	held         [4]held
}

func (p *process) hold(h held) {
	for i := range p.held {
		if p.held[i] == (held{}) {
			p.held[i] = h
			return
		}
	}
	panic(noRoom("a process holds too much"))
}

// forget drops what satisfies.
func (p *process) forget(satisfies func(held) bool) {
	n := 0
	for _, h := range p.held {
		if h != (held{}) && !satisfies(h) {
			p.held[n] = h
			n++
		}
	}
	for ; n < len(p.held); n++ {
		p.held[n] = held{}
	}
}

func (p *process) ends() { *p = process{acted: true} }

type call uint8

const (
	producing call = iota + 1
	claiming
	recording   // record as completed, by the worker itself
	retrying    // record as retried
	completing  // complete, in a transaction of the handler's, with the handler's effect
	reconciling // a call that arrives late
	reclaiming
)

// op is a call on its way through the server.
type op struct {
	call     call
	phase    uint8
	client   uint8 // the process that waits for the answer, from 1; 0: nobody does any more
	worker   uint8
	xid      xid
	snap     snapshot
	what     held    // results: the attempt
	saw      cursor  // claim: the newest batch; reclaim: its seq
	lane     bool    // reclaim: the lane was there
	suspects set     // reclaim: batches that had unfinished jobs, by seq
	segment  uint8   // enqueue: the active one when it was read; reclaim: the one
	left     uint8   // enqueue: rows to come
	known    [4]held // reconcile
}

// budget is how often each of these may still happen.
type budget struct {
	Claims, Retries, Txs, Rotations, Reclaims, Carries, Reconciles, Forgets uint8
	Crashes, Failovers, Losses, Late, Kills, Fences, Moves                  uint8
}

// state is everything: server, tables, processes.
type state struct {
	server
	left      budget
	jobs      table[jobRow]
	batches   table[batchRow]
	results   table[resultRow]
	workers   table[workerRow]
	opened    table[mark]
	logged    table[mark] // tags of enqueued jobs
	effects   table[mark] // tags
	settled   table[settledRow]
	ops       table[op]
	process   [3]process
	begun     uint8 // transactions of producers
	ids       uint8 // job ids given out
	tags      uint8
	nos       uint8 // batches' numbers given out
	workerIDs uint8 // given out; a failover sets it back
	timeline  uint8 // how many failovers there were, where batches' numbers tell
	moved     bool  // restored into another cluster, and not re-based yet
}

// jobs is the machine of the job log.
type jobs struct {
	scenario
	off off
}

// scenario says how much there is to do.
type scenario struct {
	name         string
	transactions []uint8 // of producers: how many jobs each enqueues
	processes    uint8
	quota        int   // of a claim
	settles      int   // attempts in one call of settle; 0: one
	straggler    bool  // enqueue in small steps
	starts       uint8 // so many of the processes begin during the run
	budget
}

func (m *jobs) machine() *machine[state] {
	return &machine[state]{start: m.start(), steps: m.steps, take: m.take, check: m.check, tidy: m.tidy, say: m.say}
}

func (m *jobs) start() state {
	var s state
	s.left = m.budget
	s.next = 1
	s.opened.add(mark{of: 1})
	for i := range m.processes {
		s.process[i] = process{alive: true}
		if id := i + 1; i < m.processes-m.starts {
			s.process[i].worker, s.workerIDs = id, id
			s.workers.add(workerRow{id: id})
		}
	}
	return s
}

func (s *state) active() uint8 { return s.opened.row[s.opened.n-1].of }

// newest reads the lane's newest batch under a snapshot.
func (s *state) newest(at snapshot) cursor {
	var c cursor
	for i := range s.batches.all() {
		if b := &s.batches.row[i]; b.gone == 0 && at.sees(b.by) && b.cursor.seq > c.seq {
			c = b.cursor
		}
	}
	return c
}

// ended finds the result of an attempt in a batch, under a snapshot.
func (s *state) ended(at snapshot, seq, number, id uint8) (o outcome) {
	for i := range s.results.all() {
		if r := &s.results.row[i]; r.gone == 0 && at.sees(r.by) && r.seq == seq && r.number == number && r.id == id {
			o = r.outcome
		}
	}
	return o
}

// find looks an attempt up from its batch, as end_attempt does: the last attempt at the job between the batch's least xid and its greatest.
func (s *state) find(at snapshot, b *batchRow, c claimed) (j jobRow, err error) {
	for _, k := range s.jobs.all() {
		if k.seen(at) && k.segment == b.segment && k.xid >= b.from && k.xid <= b.to && k.id == c.id && k.attempt > j.attempt {
			j = k
		}
	}
	if j.attempt != c.attempt || j.tag != c.tag {
		return j, fmt.Errorf("the look-up from batch %d gives attempt %d of job %d (%d), and attempt %d (%d) was handed out", b.cursor.seq, j.attempt, c.id, j.tag, c.attempt, c.tag)
	}
	return j, nil
}

// fenced tells whether a worker is fenced or unknown.
func (s *state) fenced(at snapshot, id uint8) bool {
	known := false
	for _, w := range s.workers.all() {
		if w.id == id && at.sees(w.by) {
			if w.fenced {
				return true
			}
			known = true
		}
	}
	return !known
}

// endAttempt writes how an attempt ended and logs the one that follows.
func (s *state) endAttempt(by xid, at snapshot, b *batchRow, c claimed, o outcome) error {
	if !o.final() {
		j, err := s.find(at, b, c)
		if err != nil {
			return err
		}
		j.by, j.xid, j.segment, j.attempt = by, by, s.active(), j.attempt+1
		s.jobs.add(j)
	}
	s.results.add(resultRow{by: by, seq: b.cursor.seq, number: b.number, id: c.id, segment: b.segment, outcome: o, tag: c.tag, attempt: c.attempt})
	return nil
}

// rollBack takes away what transactions inserted.
func (s *state) rollBack(lost xids) {
	s.open = s.open.without(lost)
	s.jobs.keep(func(r *jobRow) bool { return !lost.has(r.by) || r.by == 0 })
	s.batches.keep(func(r *batchRow) bool { return !lost.has(r.by) || r.by == 0 })
	s.results.keep(func(r *resultRow) bool { return !lost.has(r.by) || r.by == 0 })
	s.settled.keep(func(r *settledRow) bool { return !lost.has(r.by) || r.by == 0 })
	s.workers.keep(func(r *workerRow) bool { return !lost.has(r.by) || r.by == 0 })
	for _, t := range []*table[mark]{&s.opened, &s.logged, &s.effects} {
		t.keep(func(r *mark) bool { return !lost.has(r.by) || r.by == 0 })
	}
	for i := range s.jobs.all() {
		restore(&s.jobs.row[i].gone, lost)
		restore(&s.jobs.row[i].deleted, lost)
	}
	for i := range s.batches.all() {
		restore(&s.batches.row[i].gone, lost)
	}
	for i := range s.results.all() {
		restore(&s.results.row[i].gone, lost)
	}
}

func restore(gone *xid, lost xids) {
	if *gone != forever && *gone != 0 && lost.has(*gone) {
		*gone = 0
	}
}

// drop ends a call that has not committed.
func (s *state) drop(i int) {
	if x := s.ops.row[i].xid; x != 0 {
		var one xids
		one.add(x)
		s.rollBack(one)
	}
	s.ops.remove(i)
}
