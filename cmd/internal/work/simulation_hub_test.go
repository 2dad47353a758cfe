package work

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/simulation"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// simHub is a hub: a Dispatcher, whose methods are called by events instead of goroutines. What the database and the network do in between takes time, and may never come back.
type simHub struct {
	s     *sim
	n     int
	clock simulation.Clock
	front simulation.Link // to workers
	base  simulation.Link // to the database, and through it to other hubs

	up       bool
	life     int           // which one it is: nothing outlives a hub that is killed
	asleep   time.Duration // until when it is suspended
	resumed  time.Duration // when it was last suspended
	troubled time.Duration // when something was last the matter that may have its jobs run twice: it was killed, suspended for longer than its lease, away from the database, or stopped before its workers were done
	stopping bool

	d       *Dispatcher
	gens    []*simGeneration
	calls   []*simCall
	records []*simRecord
	ended   []*ended
	idles   [simQueues]bool
	ticks   int
	tick    time.Time
	grows   bool // a generation is about to be made
	tells   bool // other hubs are about to be told
}

// simGeneration does what worker.Worker does for a generation.
type simGeneration struct {
	*generation
	h       *simHub
	member  *member // nil: it is not registered yet
	lives   map[key]*ended
	ends    []*ended      // to be recorded
	records bool          // soon
	claims  bool          // a claim is under way
	again   bool          // and another is to follow
	beat    time.Duration // when the last heartbeat that arrived was sent
	since   time.Duration // it is registered
	lapsed  bool
	old     bool // it claims nothing more
}

// ended is an attempt with its end.
type ended struct {
	g *simGeneration
	*attempt
	result worker.Result
	cause  error // for which it was stopped
}

// simCall is a call of take, or a session, as serve.go and websocket.go have it.
type simCall struct {
	h       *simHub
	c       *Call
	asked   map[string]int // how many jobs of which queues; nil: a session
	waits   bool
	gathers bool
	gone    bool
	over    bool
	news    News
	answer  func(taken, error) // of take
	pass    func(News)         // to a session
	closed  func(err error)    // of a session
	heard   time.Duration      // of a session
}

func newSimHub(s *sim, n int) *simHub {
	h := &simHub{s: s, n: n, clock: s.Clock()}
	h.front = simulation.Link{Delay: s.Between(100*time.Microsecond, 2*time.Millisecond), Spread: 500 * time.Microsecond}
	h.base = simulation.Link{Delay: s.Between(100*time.Microsecond, time.Millisecond), Spread: 300 * time.Microsecond}
	h.start()
	return h
}

// about names the hub in notes.
func (h *simHub) about() int64 { return 1e9 + int64(h.n) }

// now is the time by the hub's clock.
func (h *simHub) now() time.Time { return h.clock.Read(h.s.Now()) }

func (h *simHub) start() {
	h.life++
	h.up, h.stopping, h.asleep = true, false, 0
	h.d = New(Config{Secret: "the secret of a simulation", Name: "simulated", Log: slog.New(slog.DiscardHandler), Hubs: silentHubs{}})
	h.d.clock, h.d.draw = h.now, h.s.IntN
	h.d.jitter = func(d time.Duration) time.Duration { return d } // the order of queues in a map must not decide who gets which
	h.gens, h.calls, h.records, h.ended, h.grows, h.tells, h.ticks, h.idles = nil, nil, nil, nil, false, false, 0, [simQueues]bool{}
	h.tick = h.now()
	h.later(h.s.Between(0, sweepEvery), h.sweeps)
}

// silentHubs is there, so that hubs tell each other something: see centre.letter.
type silentHubs struct{}

func (silentHubs) Publish(context.Context, string, []byte) error { return nil }

func (silentHubs) Hear(context.Context, string, func([]byte)) error { return nil }

// kill ends the hub at once: nothing of it is left, and its connections are reset, which workers notice if they can be reached.
func (h *simHub) kill() {
	h.up = false
	h.life++
	h.troubled = h.s.Now()
	for _, g := range h.gens {
		if g.member != nil {
			delete(h.s.centre.channels, g.member.id)
			if m := g.member; h.n%2 == 0 { // its session stands for it, and the server notices
				h.s.After(h.s.Between(3*time.Second, 5*time.Second), func() { h.s.centre.fence(m) })
			}
		}
	}
	h.calls, h.records, h.gens = nil, nil, nil
	for _, w := range h.s.workers {
		w.resets(h)
	}
}

// inTrouble reports whether something was the matter, since a time, that may have jobs of the hub run twice.
func (h *simHub) inTrouble(since time.Duration) bool {
	return !h.up || h.troubled >= since || h.base.IsCut(h.s.Now())
}

// receive is what arrives at a time, if the hub still lives; while it is suspended, it waits.
func (h *simHub) receive(at time.Duration, f func()) {
	life := h.life
	h.s.At(at, func() { h.run(life, f) })
}

func (h *simHub) run(life int, f func()) {
	switch {
	case h.life != life || !h.up:
	case h.s.Now() < h.asleep:
		h.s.At(h.asleep, func() { h.run(life, f) })
	default:
		f()
		h.after()
	}
}

// later is what the hub does itself after some time.
func (h *simHub) later(d time.Duration, f func()) { h.receive(h.s.Now()+h.clock.Lasts(d), f) }

// ask has the database do something, and continues with its answer, which may be late.
func (h *simHub) ask(f, then func()) {
	life := h.life
	h.s.At(h.s.Arrives(&h.base), func() {
		f() // though the hub may be gone
		if h.life == life {
			h.receive(h.s.Arrives(&h.base), then)
		}
	})
}

// askFor is ask for so long, after which it continues without an answer.
func (h *simHub) askFor(d time.Duration, f func(), then func(answered bool)) {
	over := false
	h.ask(f, func() {
		if !over {
			over = true
			then(true)
		}
	})
	if h.base.IsCut(h.s.Now()) {
		h.later(d, func() {
			if !over {
				over = true
				then(false)
			}
		})
	}
}

// after does what goroutines of the hub would be woken for by what has just happened.
func (h *simHub) after() {
	if !h.up {
		return
	}
	for first := true; first || len(h.ended) > 0; first = false {
		h.wake()
		some := h.ended
		h.ended = nil
		slices.SortFunc(some, func(a, b *ended) int { return a.compare(b.key) })
		for _, e := range some {
			e.result = worker.Settle(e.result, e.cause)
			h.s.Note(e.id, "hub %d ends the attempt at job %d, batch %d: %s", h.n, e.id, e.seq, e.result.Outcome)
			e.g.over(e.attempt)
			e.g.ends = append(e.g.ends, e)
			e.g.recordSoon()
		}
	}
	select {
	case <-h.d.again:
		if !h.grows {
			h.grows = true
			h.later(growAfter<<(2*max(len(h.d.places)-1, 0)), h.grow)
		}
	default:
	}
	if !h.tells {
		select {
		case <-h.d.peers.more:
			h.tells = true
			h.later(time.Millisecond, h.tell)
		default:
		}
	}
	for len(h.d.peers.heard) > 0 {
		h.s.centre.channels[(<-h.d.peers.heard).worker] = h
	}
}

// wake continues calls that are signalled, or at an end.
func (h *simHub) wake() {
	h.records = slices.DeleteFunc(h.records, func(r *simRecord) bool {
		if !r.over && r.w.left.Load() == 0 {
			r.known()
		}
		return r.over
	})
	for _, c := range h.calls {
		switch {
		case c.over:
		case c.c.Session.call != c.c:
			c.finish()
		case c.waits && len(c.c.Session.wake) > 0:
			<-c.c.Session.wake
			c.look()
		}
	}
	h.calls = slices.DeleteFunc(h.calls, func(c *simCall) bool { return c.over })
}

// tell tells other hubs, as peers.run does.
func (h *simHub) tell() {
	for _, l := range h.d.peers.letters() {
		h.s.centre.letter(h, l)
	}
	h.later(tellEvery, func() { h.tells = false })
}

// sweeps is Dispatcher.sweeps.
func (h *simHub) sweeps() {
	if h.tick = h.d.tick(h.ticks, h.tick); h.s.off(ruleSweep) {
		h.ticks = 1 // never what is due once in four times
	} else {
		h.ticks++
	}
	for _, g := range h.gens {
		g.keep()
	}
	h.late()
	h.later(sweepEvery, h.sweeps)
}

// grow is a turn of Dispatcher.generations.
func (h *simHub) grow() {
	select {
	case h.d.places <- struct{}{}:
	default:
		h.later(100*time.Millisecond, h.grow)
		return
	}
	h.grows = false
	_, g := h.d.grow(context.Background())
	if g == nil {
		<-h.d.places
		return
	}
	for _, before := range h.gens {
		before.old = true
	}
	one := &simGeneration{generation: g, h: h, lives: map[key]*ended{}}
	g.more = func() {
		if !h.s.off(ruleMore) {
			h.later(time.Microsecond, one.claim)
		}
	}
	h.gens = append(h.gens, one)
	one.register()
}

// register makes the generation known to the database.
func (g *simGeneration) register() {
	sent := g.h.s.Now()
	var m *member
	g.h.ask(func() { m = g.h.s.centre.register(g.h) }, func() {
		g.member, g.beat, g.since, g.lapsed = m, sent, g.h.s.Now(), false
		g.h.s.Note(g.h.about(), "hub %d is worker %d of the database", g.h.n, m.id)
		g.beats()
		g.claim()
		g.h.later(g.h.s.Between(2*time.Second, 4*time.Second), func() { g.polls(m) })
	})
}

// polls looks for what nobody was told of, as a worker does that has heard of nothing for long.
func (g *simGeneration) polls(m *member) {
	if g.old || g.member != m {
		return
	}
	if !g.h.s.off(ruleMore) { // a guard: signals, and not this, are what makes hubs claim
		g.claim()
	}
	g.h.later(g.h.s.Between(20*time.Second, 30*time.Second), func() { g.polls(m) })
}

// offer has the hub look for jobs of a queue that it may not know of; false: it has no room for any.
func (h *simHub) offer(q int) bool {
	if !h.up || h.asleep > h.s.Now() {
		return false
	}
	for _, g := range h.gens {
		if !g.old && g.member != nil && !g.lapsed && g.room(q) > 0 {
			g.claim()
			return true
		}
	}
	return false
}

// room returns how many more jobs of a queue the generation may claim.
func (g *simGeneration) room(q int) int {
	name := queueName(q)
	if !g.works(name) {
		return 0
	}
	d := g.h.d
	d.mu.Lock()
	running := g.running[name]
	d.mu.Unlock()
	return g.slots(name) - running
}

// claim claims as many jobs as sessions are free for.
func (g *simGeneration) claim() {
	h := g.h
	switch {
	case g.old || g.member == nil || g.lapsed:
		return
	case g.claims:
		g.again = true
		return
	}
	var room [simQueues]int
	some := false
	for q := range simQueues {
		room[q] = g.room(q)
		some = some || room[q] > 0
	}
	if !some {
		return
	}
	g.claims, g.again = true, false
	m := g.member
	var claims []store.Claim
	h.ask(func() {
		for q, n := range room {
			got := h.s.centre.claim(m, q, n)
			claims = append(claims, got...)
			if len(got) < n && !h.idles[q] {
				h.idles[q] = true
				h.s.centre.idle[q] = append(h.s.centre.idle[q], h)
			}
		}
	}, func() {
		g.claims = false
		if g.member != m {
			if g.again {
				g.claim()
			}
			return
		}
		if len(claims) > 0 && h.s.Chance(0.002) { // the answer is lost with its connection
			h.later(h.s.Between(time.Second, 3*time.Second), func() { g.reconcile(m) })
			g.claim()
			return
		}
		for _, c := range claims {
			e := &ended{g: g}
			e.attempt = g.begin(&worker.Task{Claim: c, Worker: m.id}, nil, func(r worker.Result) {
				e.result = r
				h.ended = append(h.ended, e)
			})
			g.lives[e.key] = e
		}
		if g.again || len(claims) > 0 {
			g.claim()
		}
	})
}

// says notes what a call is told.
func (c *simCall) says(jobs []Job) {
	for _, j := range jobs {
		c.h.s.Note(j.ID, "hub %d tells job %d to worker %s", c.h.n, j.ID, c.c.Session.id)
	}
}

// reconcile releases what the database assigns to the worker and it does not know. Claims wait for it, so that none is under way.
func (g *simGeneration) reconcile(m *member) {
	if g.claims {
		g.h.later(10*time.Millisecond, func() { g.reconcile(m) })
		return
	}
	if g.member != m {
		return
	}
	g.claims = true
	known := maps.Clone(g.lives)
	g.h.ask(func() {
		if !m.fenced {
			g.h.s.centre.reconcile(m, func(k key) bool { return known[k] != nil })
		}
	}, func() {
		g.claims = false
		g.claim()
	})
}

// beats sends heartbeats.
func (g *simGeneration) beats() {
	sent, m := g.h.s.Now(), g.member
	if g.old && len(g.lives) == 0 && len(g.ends) == 0 && !g.claims {
		g.leave()
		return
	}
	fenced := false
	g.h.ask(func() {
		if fenced = m.fenced; !fenced {
			m.heard = g.h.s.Now()
		}
	}, func() {
		if g.member != m {
			return
		}
		if fenced {
			g.wasFenced()
			return
		}
		if g.beat = sent; g.lapsed {
			g.lapsed = false
			g.claim()
		}
	})
	g.h.later(sqlLease/4, func() {
		if g.member == m {
			g.beats()
		}
	})
}

// leave ends a generation that was replaced, with its last attempt.
func (g *simGeneration) leave() {
	m := g.member
	g.h.ask(func() { g.h.s.centre.fence(m) }, func() {})
	delete(g.h.s.centre.channels, m.id)
	g.member = nil
	g.h.gens = slices.DeleteFunc(g.h.gens, func(other *simGeneration) bool { return other == g })
	<-g.h.d.places
}

// keep is what the worker does about its lease.
func (g *simGeneration) keep() {
	if g.member == nil || g.lapsed || g.h.s.Now()-g.beat < sqlLease-sqlLease/6 {
		return
	}
	g.lapsed = true
	g.h.troubled = g.h.s.Now()
	g.stopAll(worker.ErrLapsed)
}

// stopAll interrupts all attempts.
func (g *simGeneration) stopAll(cause error) {
	for _, e := range g.inOrder() {
		e.stop(cause)
	}
}

// inOrder returns the attempts in their order.
func (g *simGeneration) inOrder() []*ended {
	all := make([]*ended, 0, len(g.lives))
	for _, e := range g.lives {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *ended) int { return a.compare(b.key) })
	return all
}

// stop interrupts an attempt.
func (e *ended) stop(cause error) {
	if !e.over && e.cause == nil {
		e.cause = cause
		e.g.h.d.toStop(e.attempt, cause)
	}
}

// cancelled interrupts an attempt whose job was cancelled.
func (h *simHub) cancelled(k key) {
	for _, g := range h.gens {
		if e := g.lives[k]; e != nil {
			e.stop(worker.ErrCancelled)
		}
	}
}

// wasFenced drops everything: others have the attempts. The generation goes on as another worker.
func (g *simGeneration) wasFenced() {
	h := g.h
	h.troubled = h.s.Now()
	delete(h.s.centre.channels, g.member.id)
	all := g.inOrder()
	for _, e := range all {
		e.cause = nil // a handler whose session is over does not wait
		e.stop(worker.ErrFenced)
	}
	for _, e := range h.ended {
		if e.g == g {
			g.over(e.attempt)
		}
	}
	h.ended = slices.DeleteFunc(h.ended, func(e *ended) bool { return e.g == g })
	for _, e := range all {
		h.d.settled(e.attempt, store.Lost, errors.New("the worker was fenced"))
	}
	g.lives, g.ends, g.member = map[key]*ended{}, nil, nil
	g.register()
}

// recordSoon records what has ended, after a moment in which more may end.
func (g *simGeneration) recordSoon() {
	if g.records {
		return
	}
	g.records = true
	g.h.later(2*time.Millisecond, func() {
		g.records = false
		g.record()
	})
}

// record is what the worker's completer does.
func (g *simGeneration) record() {
	h, m, some := g.h, g.member, g.ends
	g.ends = nil
	if len(some) == 0 || m == nil {
		return
	}
	ends := make([]store.End, len(some))
	for i, e := range some {
		r := remote{key: e.key, result: e.result}
		ends[i] = r.end()
	}
	var refused []store.Refusal
	var err error
	h.ask(func() { refused, err = h.s.centre.record(m, ends) }, func() {
		if g.member != m {
			return // it has told what became of them
		}
		if err != nil {
			g.wasFenced()
			return
		}
		why := map[int]store.Refusal{}
		for _, r := range refused {
			why[r.Place-1] = r
		}
		for i, e := range some {
			delete(g.lives, e.key)
			outcome, r := ends[i].Outcome, why[i]
			if r.Outcome != "" {
				outcome = r.Outcome
			}
			var because error
			if r.Why == store.HasEnded {
				if e.found = true; outcome != ends[i].Outcome && !(outcome == store.Failed && ends[i].Outcome == store.Retried) {
					because = worker.ErrEnded
				}
			}
			if r.Why == store.NotHeld {
				outcome = store.Lost
			}
			h.d.settled(e.attempt, outcome, because)
		}
	})
}

// take serves a call of take, as endpoints.take does.
func (h *simHub) take(o Opening, wait time.Duration, answer func(taken, error)) *simCall {
	if before := h.d.sessions[o.Worker]; before != nil && h.s.off(ruleNumbers) {
		o.Number = before.newest + 1 // as if it came in order
	}
	if len(o.Held) > 0 {
		wait = min(wait, h.d.Lease/3)
	}
	names, err := o.check()
	if err != nil {
		answer(taken{}, err)
		return nil
	}
	c, away, err := h.d.open(&o, names, false, nil)
	if err != nil {
		answer(taken{}, err)
		return nil
	}
	one := &simCall{h: h, c: c, asked: o.Queues, answer: answer}
	h.calls = append(h.calls, one)
	begin := func() {
		if len(c.Interrupted()) > 0 {
			wait = 0
		}
		one.waits = true
		one.look()
		h.later(wait, one.finish)
	}
	again := c.again()
	if h.s.off(ruleChecked) {
		again = nil
	}
	due := h.d.remind(away)
	if len(away) == 0 && len(again) == 0 {
		begin()
		return one
	}
	due = h.d.sample(due)
	var still looks
	var cancelled []Interrupted
	var l looks
	h.askFor(lookFor, func() {
		all := h.s.centre.looks(away)
		for _, k := range away {
			if all[k.id].Cancelled && all[k.id].State == "running" {
				cancelled = append(cancelled, Interrupted{h.d.tokens.token(k), Cancelled})
			}
		}
		l, still = h.s.centre.looks(due), h.s.centre.looks(again)
	}, func(answered bool) {
		if answered {
			c.checked(again, still)
			c.Lost = append(append(c.Lost, cancelled...), h.d.lostAmong(due, l)...)
		}
		begin()
	})
	return one
}

// look is a turn of Call.Wait.
func (c *simCall) look() {
	if c.over || c.gathers {
		return
	}
	news, gathers := c.c.take()
	c.news.add(news)
	if !gathers {
		c.conclude()
		return
	}
	c.gathers = true
	pause := gatherTake
	if c.c.Standing {
		pause = gatherStanding
	}
	c.h.later(pause, func() {
		c.gathers = false
		more, _ := c.c.take()
		c.news.add(more)
		c.conclude()
	})
}

func (c *simCall) conclude() {
	n := c.news
	if c.over || len(n.Jobs) == 0 && len(n.Interrupted) == 0 && !n.Quiet && n.Trouble == nil {
		return
	}
	if !c.c.Standing {
		c.finish()
		return
	}
	c.news = News{}
	c.says(n.Jobs)
	c.pass(n)
}

// finish ends a call: its client has gone, its time is over, there is something to tell, or another has taken its place.
func (c *simCall) finish() {
	if c.over {
		return
	}
	c.over = true
	if c.c.Standing {
		why := c.c.why
		c.c.Close(true)
		c.closed(why)
		return
	}
	if err := c.c.why; c.c.Session.call != c.c && !errors.Is(err, errRenewed) {
		c.answer(taken{}, &BadError{err.Error(), "begin without worker"})
		return
	}
	c.keepsItsCredit()
	if c.gone {
		c.c.Unsent(c.news.Jobs)
	}
	c.news.add(c.c.Close(c.gone))
	if !c.gone {
		c.says(c.news.Jobs)
		c.answer(c.c.answer(c.news))
	}
}

// keepsItsCredit checks that a call could have been told as many jobs as it has asked for.
func (c *simCall) keepsItsCredit() {
	s := c.c.Session
	if s.call != c.c || len(c.news.Interrupted) > 0 || len(s.outbox) > 0 {
		return
	}
	told := map[string]int{}
	for _, j := range c.news.Jobs {
		told[j.Queue]++
	}
	for name, n := range c.asked {
		if may := told[name] + s.wants[name].credit; may < n {
			c.h.s.Break([]int64{c.h.about()}, "worker %s asks hub %d for %d jobs of %s, and could get %d", s.id, c.h.n, n, name, may)
		}
	}
}

// open serves a session, as session.serve does.
func (h *simHub) open(o Opening, opened func(*simCall, error), pass func(News), closed func(error)) {
	names, err := o.check()
	if err != nil {
		opened(nil, err)
		return
	}
	begin := func(seen looks) {
		c, away, err := h.d.open(&o, names, true, seen)
		if err != nil {
			opened(nil, err)
			return
		}
		one := &simCall{h: h, c: c, pass: pass, closed: closed, heard: h.s.Now()}
		h.calls = append(h.calls, one)
		opens := func() {
			h.d.remind(away)
			c.Lost = append(c.Lost, h.d.interruptions(away, seen)...)
			one.waits, one.heard = true, h.s.Now()
			opened(one, nil)
			if len(c.Lost) > 0 {
				pass(News{Interrupted: c.Lost})
			}
			one.look()
			h.later(pingEvery, one.pings)
		}
		again := c.again()
		if len(again) == 0 || h.s.off(ruleChecked) {
			opens()
			return
		}
		var still looks
		h.askFor(lookFor, func() { still = h.s.centre.looks(again) }, func(answered bool) {
			if answered {
				c.checked(again, still)
			}
			opens()
		})
	}
	away := h.d.elsewhere(o.Held)
	if len(away) == 0 {
		begin(nil)
		return
	}
	var seen looks
	h.askFor(lookFor, func() { seen = h.s.centre.looks(away) }, func(answered bool) {
		if !answered {
			seen = nil
		}
		begin(seen)
	})
}

// pings is a turn of session.ping: frames of the client stand for its pongs.
func (c *simCall) pings() {
	h := c.h
	if c.over {
		return
	}
	if h.s.Now()-c.heard > h.clock.Lasts(2*pingEvery) {
		c.finish()
		return
	}
	h.later(pingEvery, c.pings)
	keys := c.c.elsewhere()
	if len(keys) == 0 {
		return
	}
	h.d.remind(keys)
	var l looks
	h.askFor(lookFor, func() { l = h.s.centre.looks(keys) }, func(answered bool) {
		if answered && !c.over {
			if told := c.c.renewed(keys, l); len(told) > 0 {
				c.pass(News{Interrupted: told})
			}
		}
	})
}

// frame is called for each frame of a session's client.
func (c *simCall) frame() {
	c.heard = c.h.s.Now()
	c.c.Heard()
}

// simRecord is a call of record.
type simRecord struct {
	h      *simHub
	w      *waiting
	all    []remote
	since  time.Duration
	answer func([]Result)
	asks   bool
	over   bool
}

// record serves a call of record, as endpoints.record does.
func (h *simHub) record(ends []End, answer func([]Result)) {
	w, all, elsewhere := h.d.recordHere(ends, false)
	h.records = append(h.records, &simRecord{h: h, w: w, all: all, since: h.s.Now(), answer: answer})
	for _, some := range simulation.InOrder(elsewhere) {
		id, forms := some[0].worker, endsOf(some)
		var refused []store.Refusal
		var err error
		h.ask(func() { refused, err = h.s.centre.record(h.s.centre.members[id], forms) }, func() {
			if err != nil {
				h.d.unrecorded(some, err, w)
			} else {
				h.d.recorded(id, some, refused, w)
			}
		})
	}
}

// known is called when all results are.
func (r *simRecord) known() {
	if r.asks {
		return
	}
	r.asks = true
	ids := r.w.endedBefore(r.all)
	if len(ids) == 0 || r.h.s.off(ruleRepeats) {
		r.done(r.w.results)
		return
	}
	var found []store.Glance
	r.h.ask(func() {
		for _, id := range ids {
			found = append(found, r.h.s.centre.glance(id))
		}
	}, func() {
		r.w.repeats(r.all, found)
		r.done(r.w.results)
	})
}

func (r *simRecord) done(results []Result) {
	if !r.over {
		r.over = true
		r.answer(slices.Clone(results))
	}
}

// late answers calls whose results take too long.
func (h *simHub) late() {
	for _, r := range h.records {
		if !r.over && h.s.Now()-r.since > recordFor {
			results := slices.Clone(r.w.results)
			for i := range results {
				results[i] = Result{Token: results[i].Token, Refusal: unavailable}
			}
			r.done(results)
		}
	}
}

// shutDown is what SIGTERM does: sessions are told, and what has not ended in time is released.
func (h *simHub) shutDown(drain time.Duration) {
	if h.stopping {
		return
	}
	h.stopping = true
	h.d.stop()
	h.later(drain, func() {
		if len(h.d.attempts) > 0 {
			h.troubled = h.s.Now() // what they still run is given to others
		}
		h.d.releaseAll()
		h.later(2*time.Second, func() {
			for _, c := range slices.Clone(h.calls) {
				c.finish()
			}
			h.later(time.Second, func() {
				for _, g := range h.gens {
					if g.member != nil {
						m := g.member
						h.ask(func() { h.s.centre.fence(m) }, func() {})
					}
				}
				h.kill()
			})
		})
	})
}
