// Package maintain does the chores of a Weir database: it promotes due jobs, rescues jobs of dead workers, rotates and reclaims segments,
// counts what happens in each minute, and tidies small tables.
//
// Any number of maintainers may run, without an election: each step is one SQL function that tries to take its own transaction-level lock,
// and does nothing if another maintainer holds it. The more maintainers there are, the less often each of them acts, so that a fleet's chores cost
// as much as those of one; where there are many, each also looks at one worker now and then. While none runs, only these chores wait.
package maintain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/internal/outage"
	"github.com/weir-pg/weir/internal/sleep"
	"github.com/weir-pg/weir/internal/store"
)

const (
	maxPromoted  = 5000                   // jobs promoted in one transaction
	promoteEvery = 30 * time.Millisecond  // minimum interval, when poked
	promoteIdle  = time.Second            // interval, when not poked
	failedEvery  = 250 * time.Millisecond // interval after an error
	choresEvery  = time.Second
	choresIdle   = 4                      // rounds per round while nothing is logged
	choresRare   = 8                      // the same, where chores are rare
	rescueEvery  = 500 * time.Millisecond // also the pause before checking whether a missing worker has come back
	tidyEvery    = 10                     // rounds of chores
	tidyMost     = 20                     // small chores in a round
	foldEvery    = 100 * time.Millisecond // if there are flows, when not signalled
	foldIdle     = time.Second            // if there are none
	foldPause    = 5 * time.Millisecond   // minimum interval; and when another session folds, which may not see what this one was signalled for
	operateEvery = time.Second            // minimum interval between looks for operations; and if others do the steps of all that have not ended
	operateIdle  = 10 * time.Second       // if there are none, when not signalled
	stepGrace    = 5 * time.Second        // for a step that has begun when the maintainer stops
	rareAhead    = time.Minute            // where chores are rare, how far a look for due jobs looks ahead
	maxIDs       = 20                     // jobs named in one log line
	maxShare     = 30                     // the fleet size up to which pauses grow; in a larger fleet, each maintainer skips most turns
)

// Maintainer does the chores while Run runs.
type Maintainer struct {
	// Rescued, if set, is called when attempts of a lost worker were logged again. Set it before Run.
	Rescued func(store.Rescued)

	store   *store.Store
	log     *slog.Logger
	outage  *outage.Log
	poked   chan struct{}
	arrived chan struct{}
	begun   chan struct{}
	ended   atomic.Bool // members of flows have, since the last fold
	stirred atomic.Bool // poked since the last round of chores
	workers atomic.Int32
	times   time.Duration // how much longer pauses are than those of a maintainer alone
}

// New returns a Maintainer, which works while Run runs. It reports failures to o, which it shares with its worker.
func New(s *store.Store, log *slog.Logger, o *outage.Log) *Maintainer {
	m := &Maintainer{store: s, log: log, outage: o, poked: make(chan struct{}, 1), arrived: make(chan struct{}, 1), begun: make(chan struct{}, 1), times: 1}
	m.workers.Store(1)
	return m
}

// Poke signals that jobs may have been logged, some of them for later.
func (m *Maintainer) Poke() {
	m.stirred.Store(true)
	select {
	case m.poked <- struct{}{}:
	default:
	}
}

// Arrived signals that members of flows have ended.
func (m *Maintainer) Arrived() {
	m.ended.Store(true)
	select {
	case m.arrived <- struct{}{}:
	default:
	}
}

// Begun signals that a bulk operation may have begun.
func (m *Maintainer) Begun() {
	select {
	case m.begun <- struct{}{}:
	default:
	}
}

// Share sets the number of maintainers.
func (m *Maintainer) Share(workers int) { m.workers.Store(int32(max(workers, 1))) }

// Rarely makes pauses so many times longer, for a database in which nothing happens. Jobs become due in time all the same, if the maintainer stops as soon as
// something is logged: until then, no other jobs become due than those that it knows. Call it before Run.
func (m *Maintainer) Rarely(times int) { m.times = time.Duration(times) }

// Run works until ctx ends.
func (m *Maintainer) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { m.promote(ctx) })
	all.Go(func() { m.rescues(ctx) })
	all.Go(func() { m.chores(ctx) })
	all.Go(func() { m.folds(ctx) })
	all.Go(func() { m.operations(ctx) })
	all.Wait()
}

// shared multiplies an interval by the number of maintainers, and as Rarely says, with jitter.
func (m *Maintainer) shared(d time.Duration) time.Duration {
	return sleep.Jitter(d * m.times * time.Duration(min(m.workers.Load(), maxShare)))
}

// mine reports whether this maintainer takes this turn. It is drawn at random each time, so that the rest of a fleet adapts at once when
// the fleet has shrunk.
func (m *Maintainer) mine() bool {
	n := m.workers.Load()
	return n <= maxShare || rand.Int32N(n) < maxShare
}

// promote logs due jobs: when the next known job is due, and when poked.
func (m *Maintainer) promote(ctx context.Context) {
	attends := false // a job is due now
	for ctx.Err() == nil {
		wait := m.looks()
		if !attends && !m.mine() {
			if !sleep.For(ctx, wait) {
				return
			}
			continue
		}
		attends = false
		step, done := outlast(ctx)
		promoted, next, err := m.promoteDue(step)
		done()
		m.done(ctx, "promote", "", err)
		switch {
		case store.IsRefused(err):
			wait = m.shared(choresEvery)
		case err != nil:
			wait = m.shared(failedEvery)
		case promoted >= maxPromoted:
			continue
		case next != nil && *next < wait && m.attends(*next):
			attends = true
			wait = min(wait, max(*next, 0)+time.Millisecond)
			if m.workers.Load() > 1 {
				wait += rand.N(5 * time.Millisecond)
			}
		}
		// A poke may end the wait early, but not before a minimum pause.
		moment := min(wait, m.shared(promoteEvery))
		if !sleep.For(ctx, moment) || wait > moment && !sleep.Until(ctx, wait-moment, m.poked) {
			return
		}
	}
}

// looks returns the pause between two looks for due jobs.
func (m *Maintainer) looks() time.Duration {
	if m.times > 1 {
		return sleep.Jitter(rareAhead / 2)
	}
	return m.shared(promoteIdle)
}

// promoteDue logs due jobs, and returns when the next one is due, if that may be before the next look.
func (m *Maintainer) promoteDue(ctx context.Context) (promoted int, next *time.Duration, err error) {
	if m.times > 1 {
		return m.store.PromoteAhead(ctx, maxPromoted, rareAhead)
	}
	return m.store.Promote(ctx, maxPromoted)
}

// attends reports whether this maintainer promotes when the next job is due. Every maintainer that has called Promote since the job was
// logged knows of it. The sooner it is due, the more likely each one attends, so that a few do, however many know.
func (m *Maintainer) attends(next time.Duration) bool {
	return m.workers.Load() == 1 || next <= promoteIdle || rand.Float64() < promoteIdle.Seconds()/next.Seconds()
}

// folds counts what has arrived at flows: when signalled that something has, and now and then for what arrived elsewhere.
func (m *Maintainer) folds(ctx context.Context) {
	for wait := m.shared(foldEvery); sleep.Until(ctx, wait, m.arrived); {
		wait = m.shared(foldEvery)
		signalled := m.ended.Swap(false)
		if !signalled && !m.mine() {
			continue
		}
		step, done := outlast(ctx)
		busy, again, used, err := m.foldAll(step)
		done()
		m.done(ctx, "fold", "", err)
		switch {
		case err != nil:
			wait = m.shared(choresEvery)
		case again, busy && signalled:
			m.ended.Store(true)
			wait = foldPause
		case !used:
			wait = m.shared(foldIdle)
		}
		if !sleep.For(ctx, foldPause) {
			return
		}
	}
}

// foldAll counts what has arrived at flows, and what follows from it for others, a bounded number of times; again: there is more.
func (m *Maintainer) foldAll(ctx context.Context) (busy, again, used bool, err error) {
	for range 20 {
		if _, busy, again, used, err = m.store.Fold(ctx); err != nil || !again {
			break
		}
	}
	return busy, again, used, err
}

// operations does steps of bulk operations: one after another, from when it is signalled that one may have begun. It also looks now and then, because
// the maintainer that did them may be gone.
func (m *Maintainer) operations(ctx context.Context) {
	wait := m.shared(operateEvery)
	if m.times > 1 {
		wait = rand.N(m.shared(operateIdle))
	}
	for sleep.Until(ctx, wait, m.begun) {
		step, done := outlast(ctx)
		began := time.Now()
		did, err := m.store.StepOperations(step)
		done()
		said := ""
		if did.Operation > 0 {
			said = fmt.Sprintf("operation %d, which is %s, has changed %d jobs more", did.Operation, did.State, did.Changed)
		}
		m.done(ctx, "step operations", said, err)
		if err == nil && did.Operation > 0 {
			wait = time.Since(began) / 8 // for whoever else needs the database, and this worker's connections
			continue
		}
		if !sleep.For(ctx, m.shared(operateEvery)) {
			return
		}
		wait = 0
		if err == nil && !did.Open {
			wait = m.shared(operateIdle)
		}
	}
}

// chores does all other chores, in rounds.
func (m *Maintainer) chores(ctx context.Context) {
	r := rounds{Maintainer: m, passed: choresIdle, idle: choresIdle}
	if m.times > 1 { // what was to be done, a worker has just done; and many databases do it at different times
		r.idle, r.passed, r.nr = choresRare, rand.N(choresRare), rand.N(tidyEvery)
	}
	for sleep.For(ctx, m.shared(choresEvery)) {
		if m.mine() {
			r.turn(ctx)
		}
	}
}

// rounds are the rounds of the chores. They are owned by the goroutine that does them.
type rounds struct {
	*Maintainer
	passed int // turns since the last round
	idle   int // turns per round while nothing is logged
	nr     int
}

// turn does a round. If nothing was logged, there is little to do, so it skips most turns.
func (r *rounds) turn(ctx context.Context) {
	if r.passed++; !r.stirred.Swap(false) && r.passed < r.idle {
		return
	}
	r.passed = 0
	r.nr++
	steps := []struct {
		name string
		run  func(context.Context) (string, error)
	}{
		{"rotate", r.store.Rotate},
		{"rotate history", r.store.RotateHistory},
		{"rotate later", r.store.RotateLater},
		{"rotate messages", r.store.RotateMessages}, // hubs do this too, but there may be none
		{"survey", r.store.Survey},
		{"count minutes", r.store.CountMinutes},
		{"tidy", r.tidy},
	}
	if r.nr%tidyEvery != 1 {
		steps = steps[:len(steps)-1]
	}
	for _, step := range steps {
		did, err := step.run(ctx)
		r.done(ctx, step.name, did, err)
	}
}

// tidy does small chores, of which there may be many, a few at a time. It returns the last one, or "".
func (r *rounds) tidy(ctx context.Context) (did string, err error) {
	for range tidyMost {
		one, err := r.store.Tidy(ctx)
		if one == "" || err != nil {
			return did, err
		}
		did = one
	}
	return did, nil
}

// rescues checks for lost workers. A maintainer that finds one missing checks again soon, without waiting for its turn.
func (m *Maintainer) rescues(ctx context.Context) {
	missed := false
	for {
		wait := m.shared(rescueEvery)
		if missed {
			wait = rescueEvery
		}
		if !sleep.For(ctx, wait) {
			return
		}
		if !missed && !m.hasTurn(ctx) {
			continue
		}
		var err error
		missed, err = m.rescue(ctx)
		m.done(ctx, "rescue", "", err)
	}
}

// hasTurn reports whether this maintainer is to check for lost workers: because it is its turn, or because one worker that it looks at seems to be lost. When most of a large
// fleet is lost at once, those count as alive until they are fenced, and the few that are left have their turn as rarely as when all were there.
func (m *Maintainer) hasTurn(ctx context.Context) bool {
	if m.mine() {
		return true
	}
	misses, err := m.store.MissesOne(ctx)
	m.done(ctx, "look for lost workers", "", err)
	return misses
}

// rescue logs the jobs of lost workers again, in short steps, of which there may be many. It reports whether one of them found that a worker is
// missing, which may still come back: the last step is too short after the one before to say so.
func (m *Maintainer) rescue(ctx context.Context) (missed bool, err error) {
	for ctx.Err() == nil {
		steps, err := m.rescueStep(ctx)
		more := false
		for _, s := range steps {
			if s.Error != "" {
				err = errors.Join(err, fmt.Errorf("the jobs of lost worker %d (%s) cannot be logged again: %s", s.Worker, s.Reason, s.Error))
			}
			if s.Relogged > 0 {
				m.log.Warn("weir: jobs of lost workers were logged again", "worker", s.Worker, "reason", s.Reason, "jobs", s.Relogged, "more", s.More, "ids", s.Jobs[:min(len(s.Jobs), maxIDs)])
				if m.Rescued != nil {
					m.Rescued(s)
				}
			}
			more = more || s.More || s.Relogged > 0
			missed = missed || s.Missed
		}
		if !more {
			return missed, err
		}
	}
	return false, ctx.Err()
}

// rescueStep does one step, and finishes it: nobody else reports what it did. A worker that was fenced stops its own maintainer just when there is
// something to rescue.
func (m *Maintainer) rescueStep(ctx context.Context) ([]store.Rescued, error) {
	ctx, done := outlast(ctx)
	defer done()
	return m.store.Rescue(ctx)
}

// outlast returns a context for a step that is finished even if ctx ends: the server commits most of them anyway, and what it does not leaves dead rows.
func outlast(ctx context.Context) (lasting context.Context, done func()) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep.For(lasting, stepGrace)
		cancel()
	})
	return lasting, func() {
		stop()
		cancel()
	}
}

func (m *Maintainer) done(ctx context.Context, step, did string, err error) {
	if ctx.Err() != nil {
		return
	}
	passing := !store.IsRefused(err)
	if store.IsNotInstalled(err) {
		err = store.Explain(err, "") // a newer build on an older schema begins like this
	}
	m.outage.Chore(step, err, passing)
	if did != "" {
		m.log.Debug("weir: maintenance", "step", step, "did", did)
	}
}
