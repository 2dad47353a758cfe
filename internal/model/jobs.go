package model

import "fmt"

// The rows of Weir's tables, reduced to what matters. by is the transaction that inserted a row, and gone the one that truncated it, or 0. tag
// distinguishes a job from all others, even from one that gets the same id after a failover: it is known only to the model.

const forever xid = 63 // truncated, and no fault undoes that

type jobRow struct {
	by, gone, deleted, xid    xid
	id, attempt, segment, tag uint8
}

// seen reports whether a snapshot sees a row. No snapshot sees truncated rows.
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

// cursor is the state of the lane: the contents of the newest batch.
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

// settledRow says that all batches of a worker up to number no have ended, except the listed ones.
type settledRow struct {
	by         xid
	worker, no uint8
	open       set
}

// mark is a row that only exists: a segment that was opened, a job that was committed, an effect of a handler.
type mark struct {
	by     xid
	of, id uint8
}

// held is an attempt that a process has received and not ended yet, as far as it knows.
type held struct{ seq, number, id, attempt, tag uint8 }

// process is the process of a worker: its memory survives every fault of the server.
type process struct {
	alive, acted bool
	doubt        bool  // true after a lost connection: it reconciles before it claims
	worker       uint8 // its id
	heard        uint8 // the newest batch that it has received
	held         [4]held
}

func (p *process) hold(h held) {
	for i := range p.held {
		if p.held[i] == (held{}) {
			p.held[i] = h
			return
		}
	}
	panic(noRoom("a process holds too many attempts"))
}

// forget drops the attempts that satisfy the condition.
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

// op is a call in progress.
type op struct {
	call     call
	phase    uint8
	client   uint8 // number of the process that waits for the answer, from 1; 0: none does any more
	worker   uint8
	xid      xid
	snap     snapshot
	what     held    // for results: the attempt
	saw      cursor  // for claim: the newest batch; for reclaim: its seq
	lane     bool    // for reclaim: the segment has the lane's state
	suspects set     // for reclaim: batches that had unfinished jobs, by seq
	segment  uint8   // for enqueue: the active segment when it was read; for reclaim: the segment
	left     uint8   // for enqueue: remaining rows
	known    [4]held // for reconcile
}

// budget limits how often each of these may still happen.
type budget struct {
	Claims, Retries, Txs, Rotations, Reclaims, Carries, Reconciles, Forgets uint8
	Crashes, Failovers, Losses, Late, Kills, Fences, Moves                  uint8
}

// state is the whole state: server, tables, processes.
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
	begun     uint8 // number of started transactions of producers
	ids       uint8 // job ids assigned
	tags      uint8
	nos       uint8 // batch numbers assigned
	workerIDs uint8 // assigned; a failover sets it back
	timeline  uint8 // number of failovers, if batch numbers contain it
	moved     bool  // restored into another cluster, and not rebased yet
}

// jobs is the machine of the job log.
type jobs struct {
	scenario
	off off
}

// scenario limits what happens.
type scenario struct {
	name         string
	transactions []uint8 // for each transaction of a producer: its number of jobs
	processes    uint8
	quota        int   // maximum jobs of a claim
	settles      int   // maximum attempts in one call of settle; 0: one
	straggler    bool  // enqueues in small steps
	starts       uint8 // number of processes that start during the run
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

// newest returns the lane's newest batch under a snapshot.
func (s *state) newest(at snapshot) cursor {
	var c cursor
	for i := range s.batches.all() {
		if b := &s.batches.row[i]; b.gone == 0 && at.sees(b.by) && b.cursor.seq > c.seq {
			c = b.cursor
		}
	}
	return c
}

// ended returns the outcome of an attempt in a batch, under a snapshot.
func (s *state) ended(at snapshot, seq, number, id uint8) (o outcome) {
	for i := range s.results.all() {
		if r := &s.results.row[i]; r.gone == 0 && at.sees(r.by) && r.seq == seq && r.number == number && r.id == id {
			o = r.outcome
		}
	}
	return o
}

// find looks up an attempt from its batch, like end_attempt: the last attempt at the job between the batch's lowest xid and its highest.
func (s *state) find(at snapshot, b *batchRow, c claimed) (j jobRow, err error) {
	for _, k := range s.jobs.all() {
		if k.seen(at) && k.segment == b.segment && k.xid >= b.from && k.xid <= b.to && k.id == c.id && k.attempt > j.attempt {
			j = k
		}
	}
	if j.attempt != c.attempt || j.tag != c.tag {
		return j, fmt.Errorf("the look-up from batch %d returns attempt %d of job %d (%d), but attempt %d (%d) was claimed", b.cursor.seq, j.attempt, c.id, j.tag, c.attempt, c.tag)
	}
	return j, nil
}

// fenced reports whether a worker is fenced or unknown.
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

// endAttempt records how an attempt ended, and logs the next one.
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

// rollBack removes what transactions have inserted.
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
