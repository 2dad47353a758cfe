package work

import (
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/simulation"
	"github.com/weir-pg/weir/internal/store"
)

// simWorker is a remote worker, which does what docs/work-http.md says, by calls of take or over a WebSocket.
type simWorker struct {
	s     *sim
	n     int
	id    string
	life  int // which one it is: a worker that dies and is started again is another
	clock simulation.Clock
	link  simulation.Link
	woken time.Duration // until when it is suspended

	socket bool
	roams  bool // each call reaches any hub
	queues []int
	slots  int // of each queue
	kinds  []string

	hub      *simHub
	visited  []*simHub // by calls, since it had no job
	held     []*task
	number   int64
	call     int64   // that is under way; 0: none
	asked    int     // for so many jobs
	gone     func()  // tells the hub that the call is given up
	reset    func()  // what happens when its connection is
	tells    *simHub // to which it reports ends
	untold   func()  // what happens when that connection is reset; nil: none is under way
	conn     *simConn
	lapses   bool          // it will look whether its lease is over
	records  bool          // it will record soon
	answered time.Duration // when a hub has answered last
	ran      int
	failures int
}

// task is an attempt that a worker has got.
type task struct {
	w      *simWorker
	token  string
	key    key
	job    *simJob
	queue  string
	given  *simHub
	told   time.Duration // when the hub has told it
	sent   time.Duration // when the call was sent from which the lease counts
	runs   bool
	end    *End // how it has ended; nil: it has not
	asking bool // it is being recorded
}

// simConn is a WebSocket.
type simConn struct {
	w           *simWorker
	hub         *simHub
	life        int // of the hub
	call        *simCall
	over        bool
	toHub, back time.Duration // when the last frame arrives, in each direction: they keep their order
	ponged      time.Duration // when the last ping was sent that was answered
}

const (
	impatience = 10 * time.Second // a call that is not answered so long after its wait is given up
	clientPing = 5 * time.Second
	noPong     = 15 * time.Second
)

func newSimWorker(s *sim, n int) *simWorker {
	w := &simWorker{s: s, n: n, clock: s.Clock(), slots: 1 + s.IntN(3)}
	w.link = simulation.Link{Delay: s.Between(200*time.Microsecond, 20*time.Millisecond), Spread: time.Millisecond}
	if s.Chance(0.05) {
		w.link.Spread = s.Between(50*time.Millisecond, time.Second) // over a slow link
	}
	w.socket, w.roams = s.Chance(0.4), s.Chance(0.3)
	w.queues = []int{s.IntN(simQueues)}
	if other := s.IntN(simQueues); s.Chance(0.3) && other != w.queues[0] {
		w.queues = append(w.queues, other)
	}
	if s.Chance(0.3) {
		w.kinds = simKinds[:1+s.IntN(len(simKinds))]
	}
	return w
}

// about names the worker in notes.
func (w *simWorker) about() int64 { return 2e9 + int64(w.n) }

// start makes another worker of it, and begins.
func (w *simWorker) start() {
	w.life++
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], uint32(w.n))
	binary.BigEndian.PutUint32(b[4:], uint32(w.life))
	w.id = base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:])
	w.held, w.number, w.call, w.conn, w.lapses, w.records, w.woken = nil, 0, 0, nil, false, false, 0
	w.visited, w.failures, w.answered, w.untold = nil, 0, w.s.Now(), nil
	w.hub = w.s.anyHub()
	w.later(w.s.Between(0, time.Second), w.begin)
}

func (w *simWorker) begin() {
	if w.socket {
		w.connect()
	} else {
		w.take()
	}
}

// die ends the worker with all that it holds. Its connections are reset, unless the whole machine is gone.
func (w *simWorker) die() {
	w.s.Note(w.about(), "worker %d dies", w.n)
	for _, t := range w.held {
		w.stops(t)
		w.s.mustEnd(t)
	}
	w.hangUp(w.s.Chance(0.5))
	w.life++
	w.held = nil
}

// receive is what arrives at a time, if the worker still lives.
func (w *simWorker) receive(at time.Duration, f func()) {
	life := w.life
	w.s.At(at, func() { w.run(life, f) })
}

func (w *simWorker) run(life int, f func()) {
	switch {
	case w.life != life:
	case w.s.Now() < w.woken:
		w.s.At(w.woken, func() { w.run(life, f) })
	default:
		w.lapse() // a worker that was suspended looks first
		f()
	}
}

func (w *simWorker) later(d time.Duration, f func()) {
	w.receive(w.s.Now()+w.clock.Lasts(d), f)
}

// suspend stops the worker for some time, in which it runs nothing.
func (w *simWorker) suspend(d time.Duration) {
	w.s.Note(w.about(), "worker %d is suspended for %s", w.n, d)
	w.woken = max(w.woken, w.s.Now()+d) // what has come since waits until then
	for _, t := range w.held {
		w.stops(t)
	}
	w.receive(w.woken, func() {
		for _, t := range slices.Clone(w.held) {
			if t.runs {
				w.s.runs(t)
			}
		}
	})
}

// stops says that a job does not run any more.
func (w *simWorker) stops(t *task) {
	if t.job.runs == t {
		t.job.runs = nil
	}
}

// until returns when the lease of an attempt is over.
func (t *task) until() time.Duration { return t.sent + t.w.clock.Lasts(defaultLease) }

// lapse interrupts attempts whose lease is over.
func (w *simWorker) lapse() {
	if w.s.off(ruleLapse) {
		return
	}
	for i := 0; i < len(w.held); {
		t := w.held[i]
		if !t.runs || w.s.Now() < t.until() {
			i++
			continue
		}
		w.s.Note(t.job.id, "worker %d interrupts job %d: its lease is over", w.n, t.job.id)
		w.drop(t)
		w.s.mustEnd(t)
		if c := w.conn; c != nil && !w.s.off(ruleReopens) { // while it is open, the hub renews what it has named
			c.send(c.lost)
			c.broken()
		}
	}
}

// watch looks when the next lease is over.
func (w *simWorker) watch() {
	if w.lapses || len(w.held) == 0 {
		return
	}
	next := w.held[0].until()
	for _, t := range w.held {
		next = min(next, t.until())
	}
	w.lapses = true
	w.receive(max(next, w.s.Now()+100*time.Millisecond), func() {
		w.lapses = false
		w.watch()
	})
}

// drop gives an attempt up.
func (w *simWorker) drop(t *task) {
	w.stops(t)
	t.runs = false
	w.held = slices.DeleteFunc(w.held, func(other *task) bool { return other == t })
	if len(w.held) == 0 {
		w.visited = w.visited[:0]
	}
}

// tokens names what the worker holds.
func (w *simWorker) tokens() []string {
	if w.s.off(ruleHeld) {
		return nil
	}
	all := make([]string, len(w.held))
	for i, t := range w.held {
		all[i] = t.token
	}
	return all
}

// room returns how many jobs of a queue the worker can begin now.
func (w *simWorker) room(queue string) int {
	n := w.slots
	for _, t := range w.held {
		if t.queue == queue {
			n--
		}
	}
	return max(n, 0)
}

// running returns how many jobs of a queue the worker runs.
func (w *simWorker) running(queue string) (n int) {
	for _, t := range w.held {
		if t.queue == queue && t.runs {
			n++
		}
	}
	return n
}

// got begins jobs.
func (w *simWorker) got(from *simHub, jobs []Job, told, sent time.Duration, most map[string]int) {
	for _, j := range jobs {
		k, err := from.d.tokens.parse(j.Token)
		if err != nil {
			w.s.Break([]int64{j.ID, w.about()}, "a token that is none: %v", err)
			return
		}
		if slices.ContainsFunc(w.held, func(t *task) bool { return t.key == k }) {
			if !w.s.off(ruleHeld) && most != nil {
				w.s.Break([]int64{j.ID, w.about()}, "job %d is given again to worker %d, which has it and has said so", j.ID, w.n)
			}
			continue
		}
		if w.kinds != nil && !slices.Contains(w.kinds, j.Kind) {
			w.s.Break([]int64{j.ID, w.about()}, "job %d of kind %s is given to worker %d, which takes %v", j.ID, j.Kind, w.n, w.kinds)
			return
		}
		if most != nil {
			if most[j.Queue]--; most[j.Queue] < 0 {
				w.s.Break([]int64{j.ID, w.about()}, "worker %d gets more jobs of %s than it asked for", w.n, j.Queue)
				return
			}
		} else if w.running(j.Queue) >= w.slots {
			w.s.Break([]int64{j.ID, w.about()}, "worker %d gets job %d beyond its %d slots of %s", w.n, j.ID, w.slots, j.Queue)
			return
		}
		t := &task{w: w, token: j.Token, key: k, job: w.s.centre.jobs[j.ID-1], queue: j.Queue, given: w.s.owner(k, from), told: told, sent: sent, runs: true}
		if w.s.Now() >= t.until() && !w.s.off(ruleLapse) {
			continue // it is too late: if it is still this worker's, it is in the next answer
		}
		w.held = append(w.held, t)
		w.s.Note(j.ID, "worker %d gets job %d, attempt %d, batch %d from hub %d", w.n, j.ID, j.Attempt, k.seq, from.n)
		w.s.runs(t)
		lasts := w.s.Between(time.Second, 15*time.Second)
		if w.s.Chance(0.05) {
			lasts = w.s.Between(30*time.Second, 80*time.Second) // longer than a lease
		}
		w.later(lasts, func() { w.ends(t) })
	}
	w.watch()
}

// ends is the end of a job's handler.
func (w *simWorker) ends(t *task) {
	if !t.runs || t.end != nil {
		return
	}
	w.stops(t)
	t.runs = false
	w.ran++
	text := fmt.Sprintf("worker %d, run %d", w.n, w.ran)
	t.end = &End{Token: t.token, Outcome: "completed"}
	switch p := w.s.Float64(); {
	case p < 0.08:
		t.end.Outcome, t.end.Error = "failed", &text
	case p < 0.10:
		t.end.Outcome, t.end.Delay = "snoozed", new(1.5)
	case p < 0.12:
		t.end.Outcome = "released"
	default:
		t.end.Output, _ = json.Marshal(text)
	}
	w.s.Note(t.job.id, "job %d has %s at worker %d", t.job.id, t.end.Outcome, w.n)
	w.recordSoon(time.Millisecond)
}

// interrupted is told that attempts are to be interrupted.
func (w *simWorker) interrupted(all []Interrupted) {
	for _, i := range all {
		for _, t := range slices.Clone(w.held) {
			if t.token != i.Token {
				continue
			}
			w.s.Note(t.job.id, "worker %d is told to interrupt job %d: %s", w.n, t.job.id, i.Reason)
			switch {
			case i.Reason == Lost:
				w.drop(t)
			case t.runs:
				w.stops(t)
				t.runs, t.end = false, &End{Token: t.token, Outcome: "cancelled"}
				w.recordSoon(time.Millisecond)
			}
		}
	}
}

func (w *simWorker) recordSoon(d time.Duration) {
	if !w.records {
		w.records = true
		w.later(d, func() {
			w.records = false
			w.record()
		})
	}
}

// record tells a hub how jobs have ended.
func (w *simWorker) record() {
	var some []*task
	var ends []End
	for _, t := range w.held {
		if t.end != nil && !t.asking {
			t.asking = true
			some, ends = append(some, t), append(ends, *t.end)
		}
	}
	if len(some) == 0 {
		return
	}
	if !w.socket && w.untold != nil {
		for _, t := range some {
			t.asking = false
		}
		return // one call at a time
	}
	answer := func(results []Result) {
		for i, t := range some {
			t.asking = false
			w.recorded(t, results[i])
		}
		if !w.socket {
			w.recordSoon(time.Millisecond)
			w.takeIfMore()
		}
	}
	if w.socket {
		c := w.conn
		if c == nil || c.call == nil {
			for _, t := range some {
				t.asking = false
			}
			w.recordSoon(500 * time.Millisecond)
			return
		}
		c.send(func() {
			c.call.frame()
			call := c.call
			c.hub.record(ends, func(results []Result) {
				call.c.Ended(results)
				c.pass(func() { answer(results) })
			})
		})
		return
	}
	over := false
	fail := func() {
		if !over {
			over, w.untold = true, nil
			for _, t := range some {
				t.asking = false
			}
			w.hub = w.s.anyHub()
			w.recordSoon(w.s.Between(100*time.Millisecond, 2*time.Second))
		}
	}
	h := w.pick()
	w.tells, w.untold = h, fail
	w.request(h, func(back func(func())) {
		h.record(ends, func(results []Result) {
			back(func() {
				if !over {
					over, w.untold = true, nil
					answer(results)
				}
			})
		})
	}, fail)
	w.later(recordFor+impatience, fail)
}

// recorded is what a hub says of an end.
func (w *simWorker) recorded(t *task, r Result) {
	w.s.Note(t.job.id, "worker %d is told of job %d: recorded %v %s %s", w.n, t.job.id, r.Recorded, r.Refusal, r.Detail)
	if r.Refusal == unavailable || r.Refusal == string(store.Busy) {
		w.recordSoon(time.Second)
		return
	}
	w.s.told(t, r)
	w.drop(t)
}

// pick returns the hub for the next call.
func (w *simWorker) pick() *simHub {
	if w.roams {
		w.hub = w.s.anyHub()
	}
	if !slices.Contains(w.visited, w.hub) {
		w.visited = append(w.visited, w.hub)
	}
	return w.hub
}

// request sends a request to a hub; back passes its answer. If the hub is not there, or dies, fail is called soon, or nothing happens at all.
func (w *simWorker) request(h *simHub, do func(back func(func())), fail func()) {
	life := w.life
	s := w.s
	s.At(s.Arrives(&w.link, &h.front), func() {
		if !h.up || h.stopping && s.Chance(0.5) {
			w.receive(s.Arrives(&w.link, &h.front), fail)
			return
		}
		hub := h.life
		h.run(hub, func() {
			do(func(f func()) {
				if w.life == life {
					w.receive(s.Arrives(&w.link, &h.front), f)
				}
			})
		})
	})
}

// take asks for jobs.
func (w *simWorker) take() {
	if w.socket {
		return
	}
	w.number++
	number := w.number
	w.call = number
	h := w.pick()
	sent := w.s.Now()
	o := Opening{Worker: w.id, Name: "simulated", Queues: map[string]int{}, Kinds: w.kinds, Held: w.tokens(), Number: number}
	w.asked = 0
	for _, q := range w.queues {
		n := w.room(queueName(q))
		o.Queues[queueName(q)] = n
		w.asked += n
	}
	w.s.Note(w.about(), "worker %d (%s) takes from hub %d, call %d, up to %d, holding %d", w.n, w.id, h.n, number, w.asked, len(w.held))
	held := slices.Clone(w.held)
	wait := defaultWait
	var at *simCall
	fail := func() {
		if w.call == number {
			w.call = 0
			w.hub = w.s.anyHub()
			w.failures++
			w.later(w.s.Between(50*time.Millisecond, min(200*time.Millisecond<<min(w.failures, 4), 3*time.Second)), w.take)
		}
	}
	w.request(h, func(back func(func())) {
		at = h.take(o, wait, func(a taken, err error) {
			told := w.s.Now()
			back(func() {
				if w.call != number {
					return // it was given up
				}
				if err != nil {
					fail()
					return
				}
				w.call, w.failures, w.answered = 0, 0, w.s.Now()
				from := w.s.Now()
				if len(o.Held) > 0 {
					from = sent
				} else if !w.s.off(ruleWaited) {
					from = min(from, sent+time.Duration(a.Waited*float64(time.Second)))
				}
				for _, t := range held {
					t.sent = max(t.sent, sent)
				}
				w.interrupted(a.Cancel)
				w.got(h, a.Jobs, told, from, o.Queues)
				if a.Quiet {
					w.hub = w.s.anyHub()
				}
				w.take()
			})
		})
	}, fail)
	gone := func() { // the connection's end reaches the hub
		hub := h.life
		w.s.At(w.s.Arrives(&w.link, &h.front), func() {
			h.run(hub, func() {
				if at != nil && !at.over {
					at.gone = true
					at.finish()
				}
			})
		})
	}
	w.gone, w.reset = gone, fail
	if len(o.Held) > 0 {
		wait = defaultLease / 3
	}
	w.later(wait+impatience, func() {
		if w.call == number {
			gone()
			fail()
		}
	})
}

// takeIfMore ends a call that asks for fewer jobs than there is room for, and makes another.
func (w *simWorker) takeIfMore() {
	free := 0
	for _, q := range w.queues {
		free += w.room(queueName(q))
	}
	if w.call != 0 && free > w.asked {
		w.hangUp(true)
		w.take()
	}
}

// hangUp ends the call or the session; the hub learns of it, or not.
func (w *simWorker) hangUp(known bool) {
	if c := w.conn; c != nil {
		w.conn = nil
		if c.over = true; known {
			c.send(c.lost)
		}
	}
	if w.call != 0 {
		if known {
			w.gone()
		}
		w.call = 0
	}
}

// resets ends the worker's connections to a hub that was killed.
func (w *simWorker) resets(h *simHub) {
	if w.link.IsCut(w.s.Now()) || h.front.IsCut(w.s.Now()) {
		return // it finds out
	}
	at := w.s.Now() + w.s.Between(0, time.Second)
	if c := w.conn; c != nil && c.hub == h {
		w.receive(at, c.broken)
	}
	if w.call != 0 && w.hub == h {
		w.receive(at, w.reset)
	}
	if w.untold != nil && w.tells == h {
		w.receive(at, w.untold)
	}
}

// connect opens a session.
func (w *simWorker) connect() {
	h := w.pick()
	if !h.up {
		w.hub = w.s.anyHub()
		w.later(w.s.Between(100*time.Millisecond, time.Second), func() {
			if w.conn == nil {
				w.connect()
			}
		})
		return
	}
	w.number++
	c := &simConn{w: w, hub: h, life: h.life, ponged: w.s.Now()}
	w.conn = c
	o := Opening{Worker: w.id, Name: "simulated", Queues: map[string]int{}, Kinds: w.kinds, Held: w.tokens(), Number: w.number}
	for _, q := range w.queues {
		o.Queues[queueName(q)] = w.slots
	}
	w.s.Note(w.about(), "worker %d (%s) connects to hub %d, call %d, holding %d", w.n, w.id, h.n, w.number, len(w.held))
	sent, held := w.s.Now(), slices.Clone(w.held)
	c.send(func() {
		h.open(o, func(call *simCall, err error) {
			if err != nil {
				c.pass(c.broken)
				return
			}
			c.call = call
			c.pass(func() {
				c.ponged, w.failures, w.answered = sent, 0, w.s.Now()
				for _, t := range held {
					t.sent = max(t.sent, sent)
				}
			})
		}, func(n News) {
			told := w.s.Now()
			c.pass(func() {
				before, after := n.interrupted()
				w.interrupted(before)
				w.got(h, n.Jobs, told, c.ponged, nil) // the answer to that ping came before these jobs
				w.interrupted(after)
				if n.Quiet {
					c.moves()
				}
			})
		}, func(error) { c.pass(c.broken) })
	})
	w.later(clientPing, c.ping)
}

// send sends a frame, which arrives after those before.
func (c *simConn) send(f func()) {
	s := c.w.s
	c.toHub = max(s.Arrives(&c.w.link, &c.hub.front), c.toHub+1)
	s.At(c.toHub, func() { c.hub.run(c.life, f) })
}

// pass is called at the hub, and passes a frame to the worker.
func (c *simConn) pass(f func()) {
	c.back = max(c.w.s.Arrives(&c.w.link, &c.hub.front), c.back+1)
	c.w.receive(c.back, func() {
		if !c.over {
			f()
		}
	})
}

// lost is the end of the connection at the hub.
func (c *simConn) lost() {
	if c.call != nil && !c.call.over {
		c.call.finish()
	}
}

// ping asks whether the hub is there, and for the lease.
func (c *simConn) ping() {
	w := c.w
	if c.over {
		return
	}
	if w.s.Now()-c.ponged > w.clock.Lasts(noPong)+w.clock.Lasts(clientPing) {
		c.send(c.lost)
		c.broken()
		return
	}
	sent, held := w.s.Now(), slices.Clone(w.held)
	c.send(func() {
		if c.call == nil || c.call.over {
			return
		}
		c.call.frame()
		c.pass(func() {
			c.ponged = sent
			w.answered = w.s.Now()
			for _, t := range held {
				t.sent = max(t.sent, sent)
			}
		})
	})
	w.later(clientPing, c.ping)
}

// broken is the end of the connection at the worker, which opens another.
func (c *simConn) broken() {
	w := c.w
	if c.over {
		return
	}
	c.over = true
	w.conn = nil
	for _, t := range w.held {
		t.asking = false
	}
	w.failures++
	if w.failures > 1 || w.roams {
		w.hub = w.s.anyHub()
	}
	w.later(w.s.Between(50*time.Millisecond, min(200*time.Millisecond<<min(w.failures, 4), 3*time.Second)), func() {
		if w.conn == nil {
			w.connect()
			w.recordSoon(time.Second)
		}
	})
}

// moves goes to another hub, because this one is stopping.
func (c *simConn) moves() {
	c.w.hub = c.w.s.anyHub()
	c.send(c.lost)
	c.broken()
}
