package work

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/simulation"
	"github.com/weir-pg/weir/internal/store"
)

// centre is the database: a log that keeps the promises of Weir's SQL, which internal/model proves. A claim gives each attempt once; an end is recorded once, of the attempt that its worker
// holds; a worker that is not heard of for its lease is fenced, and what it held is to be run again.
type centre struct {
	s        *sim
	jobs     []*simJob
	open     int // that have not ended
	waiting  [simQueues][]*simJob
	idle     [simQueues][]*simHub // hubs that had room for more than they found
	members  map[int32]*member
	newest   int32
	seq      int64
	channels map[int32]*simHub // who hears what is told to a worker
}

// member is a worker of the database: a generation of a hub's.
type member struct {
	id     int32
	h      *simHub
	heard  time.Duration
	fenced bool
	holds  map[int64]*simJob
}

// simJob is a job, and what has become of it.
type simJob struct {
	id        int64
	queue     int
	kind      string
	state     string // waiting, scheduled, running or ended
	attempt   int32
	putOff    int32
	worker    int32 // that has claimed it last
	seq       int64 // in this batch
	cancelled bool
	output    *string
	err       *string
	outcome   store.Outcome // of the last attempt that has ended
	ends      []simEnd
	since     time.Duration // in its state

	runs *task // by a worker that has a lease, as far as it knows; nil: by none
}

// simEnd is how an attempt has ended.
type simEnd struct {
	worker  int32
	seq     int64
	outcome store.Outcome
	output  *string
}

const (
	simQueues   = 12
	simAttempts = 100 // which no job needs
	sqlLease    = 30 * time.Second
	sqlCheck    = 2 * time.Second // rescuers look
)

var simKinds = []string{"a", "b", "c", "d"}

func queueName(q int) string { return fmt.Sprintf("q%02d", q) }

var errSimFenced = &pgconn.PgError{Code: "WR001", Message: "the worker was fenced"}

func newCentre(s *sim) *centre {
	return &centre{s: s, members: map[int32]*member{}, channels: map[int32]*simHub{}}
}

// enqueue commits a job.
func (c *centre) enqueue() {
	j := &simJob{id: int64(len(c.jobs) + 1), queue: c.s.IntN(simQueues), kind: simKinds[c.s.IntN(len(simKinds))], attempt: 1}
	c.jobs = append(c.jobs, j)
	c.open++
	c.s.Note(j.id, "job %d of kind %s is committed to %s", j.id, j.kind, queueName(j.queue))
	c.available(j)
}

// available lets hubs find a job.
func (c *centre) available(j *simJob) {
	j.state, j.since = "waiting", c.s.Now()
	c.waiting[j.queue] = append(c.waiting[j.queue], j)
	c.offer(j.queue)
}

// offer lets a hub that polls find the jobs of a queue; of several, one is first.
func (c *centre) offer(q int) {
	idle := c.idle[q]
	if len(idle) == 0 {
		return
	}
	n := c.s.IntN(len(idle))
	h := idle[n]
	idle[n] = idle[len(idle)-1]
	c.idle[q] = idle[:len(idle)-1]
	h.idles[q] = false
	c.s.After(c.s.Between(time.Millisecond, 10*time.Millisecond), func() {
		if len(c.waiting[q]) > 0 && !h.offer(q) {
			c.offer(q)
		}
		h.after()
	})
}

// claim gives a member up to n jobs of a queue.
func (c *centre) claim(m *member, q, n int) (claims []store.Claim) {
	if m.fenced || n <= 0 {
		return nil
	}
	c.seq++
	for n > 0 && len(c.waiting[q]) > 0 {
		j := c.waiting[q][0]
		if c.waiting[q] = c.waiting[q][1:]; c.s.off(ruleClaimOnce) && c.s.Chance(0.01) {
			c.waiting[q] = append(c.waiting[q], j)
		}
		if j.state == "ended" || j.state == "scheduled" {
			continue
		}
		j.state, j.worker, j.seq, j.since = "running", m.id, c.seq, c.s.Now()
		m.holds[j.id] = j
		n--
		c.s.Note(j.id, "worker %d of the database claims job %d, attempt %d (put off %d), in batch %d", m.id, j.id, j.attempt, j.putOff, j.seq)
		claims = append(claims, store.Claim{Batch: store.Batch{Lane: int64(q + 1), Seq: c.seq}, Queue: queueName(q), Priority: 1, ID: j.id, Attempt: j.attempt, MaxAttempts: simAttempts, PutOff: j.putOff, Kind: j.kind, Args: []byte("{}")})
	}
	return claims
}

// record records ends of a member's attempts, as weir.record does.
func (c *centre) record(m *member, ends []store.End) (refused []store.Refusal, err error) {
	if m == nil || m.fenced {
		return nil, errSimFenced
	}
	for i, e := range ends {
		j := c.jobs[e.ID-1]
		if j.state == "running" && j.worker == m.id && j.seq == e.Seq {
			if outcome := c.end(j, e.Outcome, e.After, e.Output, e.Error); outcome != e.Outcome {
				refused = append(refused, store.Refusal{Place: i + 1, Outcome: outcome})
			}
			continue
		}
		r := store.Refusal{Place: i + 1, Why: store.NotHeld}
		for _, before := range j.ends {
			if before.worker == m.id && before.seq == e.Seq {
				r.Why, r.Outcome = store.HasEnded, before.outcome
			}
		}
		refused = append(refused, r)
	}
	return refused, nil
}

// end ends the attempt that runs, and says how.
func (c *centre) end(j *simJob, outcome store.Outcome, after *time.Duration, output, text *string) store.Outcome {
	switch {
	case outcome == store.Completed || outcome == store.Failed || outcome == store.Cancelled:
	case j.cancelled && outcome != store.Lost:
		outcome = store.Cancelled
	case j.attempt >= simAttempts && (outcome == store.Retried || outcome == store.Lost):
		outcome = store.Failed
	}
	delete(c.members[j.worker].holds, j.id)
	j.ends = append(j.ends, simEnd{j.worker, j.seq, outcome, output})
	j.outcome, j.output, j.err = outcome, output, text
	c.s.Note(j.id, "attempt %d of job %d, batch %d, ends: %s", j.attempt, j.id, j.seq, outcome)
	switch outcome {
	case store.Completed, store.Failed, store.Cancelled:
		j.state, j.since = "ended", c.s.Now()
		c.open--
		return outcome
	case store.Snoozed, store.Released:
		j.putOff++
	default:
		j.attempt, j.putOff = j.attempt+1, 0
	}
	pause := time.Duration(0)
	if after != nil {
		if pause = *after; pause < 0 {
			pause = min(time.Second<<max(min(j.attempt-2, 5), 0), 30*time.Second)
		}
	}
	if pause == 0 {
		c.available(j)
		return outcome
	}
	j.state, j.since = "scheduled", c.s.Now()
	c.s.After(pause, func() {
		if j.state == "scheduled" {
			c.available(j)
		}
	})
	return outcome
}

// register makes a member.
func (c *centre) register(h *simHub) *member {
	c.newest++
	m := &member{id: c.newest, h: h, heard: c.s.Now(), holds: map[int64]*simJob{}}
	c.members[m.id] = m
	return m
}

// fence ends a member: its attempts are to be run again.
func (c *centre) fence(m *member) {
	if m.fenced {
		return
	}
	m.fenced = true
	if len(m.holds) > 0 {
		m.h.troubled = c.s.Now()
	}
	c.s.Note(m.h.about(), "worker %d of the database is fenced with %d attempts", m.id, len(m.holds))
	for _, j := range simulation.InOrder(m.holds) {
		c.end(j, store.Lost, nil, nil, nil)
	}
}

// rescue fences who was not heard of for a lease.
func (c *centre) rescue() {
	for _, m := range simulation.InOrder(c.members) {
		if !m.fenced && c.s.Now()-m.heard > sqlLease+time.Second {
			c.fence(m)
		}
		if m.fenced && c.s.Now()-m.heard > time.Hour {
			delete(c.members, m.id)
		}
	}
	c.s.After(sqlCheck, c.rescue)
}

// reconcile puts back the attempts of a member that it does not know: the answer to its claim was lost.
func (c *centre) reconcile(m *member, known func(key) bool) {
	for _, j := range simulation.InOrder(m.holds) {
		if !known(key{m.id, int64(j.queue + 1), j.seq, j.id}) {
			c.end(j, store.Released, nil, nil, nil)
		}
	}
}

// looks is what the database says of jobs.
func (c *centre) looks(keys []key) looks {
	l := looks{}
	for _, k := range keys {
		l[k.id] = c.glance(k.id)
	}
	return l
}

func (c *centre) glance(id int64) store.Glance {
	j := c.jobs[id-1]
	g := store.Glance{ID: id, Queue: queueName(j.queue), State: j.state, Attempt: j.attempt, Worker: j.worker, Cancelled: j.cancelled, Output: j.output, Error: j.err}
	switch {
	case j.state == "ended":
		g.State = string(j.outcome)
	case j.state == "waiting":
		g.State, g.Worker = "available", 0
	case j.state == "scheduled":
		g.Worker = 0
	}
	return g
}

// cancel cancels a job; if it runs, its hub is told.
func (c *centre) cancel(j *simJob) {
	if j.state == "ended" || j.cancelled {
		return
	}
	j.cancelled = true
	c.s.Note(j.id, "job %d is cancelled while it is %s", j.id, j.state)
	switch j.state {
	case "running":
		if h := c.channels[j.worker]; h != nil {
			k := key{j.worker, int64(j.queue + 1), j.seq, j.id}
			h.receive(c.s.Arrives(&h.base), func() { h.cancelled(k) })
		}
	case "waiting", "scheduled":
		j.state, j.outcome, j.since = "ended", store.Cancelled, c.s.Now()
		c.open--
	}
}

// letter passes on what a hub tells the hub of a worker. It travels through the log: if one of them can't reach the database for long, it is lost.
func (c *centre) letter(from *simHub, l letter) {
	to := c.channels[l.to]
	if to == nil || !to.up || from.base.IsCut(c.s.Now()) || c.s.off(ruleRemind) {
		return
	}
	if to.base.IsCut(c.s.Now()) || c.s.Chance(0.001) {
		to.troubled = c.s.Now() // it does not know what is alive
		return
	}
	to.receive(c.s.Arrives(&from.base, &to.base), func() { to.d.peers.hear(l.to, l.payload) })
}
