// Package maintain does the chores of a Weir database: it promotes due jobs, rescues those of dead
// workers, rotates and reclaims segments, and tidies small tables.
//
// Any number of maintainers may run, without election: each step is one SQL function that tries its own
// transaction-level lock and does nothing if another has it. The more of them there are, the more
// rarely each looks, so that a fleet costs what one costs. While none runs, these chores wait, and
// nothing else does.
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
	promoteMost  = 5000                   // jobs promoted in one transaction
	promoteEvery = 30 * time.Millisecond  // at most so often when poked
	promoteIdle  = time.Second            // and so often without
	failedEvery  = 250 * time.Millisecond // and after an error
	choresEvery  = time.Second
	choresIdle   = 4                      // of such rounds, in one where nothing was logged
	rescueEvery  = 500 * time.Millisecond // also for who has missed somebody, and looks whether he comes back
	tidyEvery    = 10                     // of the chores' rounds
	idsMost      = 20                     // jobs named in one line of the log
	shareMost    = 30                     // nobody waits longer for its turn than in a fleet of so many; in a larger one most let a turn pass
)

// Maintainer does the chores while Run runs.
type Maintainer struct {
	// Rescued, where set, is called when attempts of a lost worker were logged again. Set it before Run.
	Rescued func(store.Rescued)

	store   *store.Store
	log     *slog.Logger
	outage  *outage.Log
	poked   chan struct{}
	stirred atomic.Bool // poked since the last round of chores
	workers atomic.Int32
}

// New returns a maintainer that Run starts. Failures are told through the outage, which it shares with the worker it runs beside.
func New(s *store.Store, log *slog.Logger, o *outage.Log) *Maintainer {
	m := &Maintainer{store: s, log: log, outage: o, poked: make(chan struct{}, 1)}
	m.workers.Store(1)
	return m
}

// Poke says that jobs may have been logged, some of them for later.
func (m *Maintainer) Poke() {
	m.stirred.Store(true)
	select {
	case m.poked <- struct{}{}:
	default:
	}
}

// Share says how many maintainers there are.
func (m *Maintainer) Share(workers int) { m.workers.Store(int32(max(workers, 1))) }

// Run works until ctx ends.
func (m *Maintainer) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { m.promote(ctx) })
	all.Go(func() { m.rescues(ctx) })
	all.Go(func() { m.chores(ctx) })
	all.Wait()
}

// shared stretches an interval to this maintainer's share, with jitter.
func (m *Maintainer) shared(d time.Duration) time.Duration {
	return sleep.Jitter(d * time.Duration(min(m.workers.Load(), shareMost)))
}

// mine tells whether this maintainer takes its turn. Drawn by lot each time, so that what is left of a fleet notices at once when it has
// shrunk.
func (m *Maintainer) mine() bool {
	n := m.workers.Load()
	return n <= shareMost || rand.Int32N(n) < shareMost
}

// promote logs due jobs: when the next one known is due, and looks again when it was poked.
func (m *Maintainer) promote(ctx context.Context) {
	attends := false // to a job that is due now
	for ctx.Err() == nil {
		wait := m.shared(promoteIdle)
		if !attends && !m.mine() {
			if !sleep.For(ctx, wait) {
				return
			}
			continue
		}
		attends = false
		promoted, next, err := m.store.Promote(ctx, promoteMost)
		m.done(ctx, "promote", "", err)
		switch {
		case store.IsRefused(err):
			wait = m.shared(choresEvery)
		case err != nil:
			wait = m.shared(failedEvery)
		case promoted >= promoteMost:
			continue
		case next != nil && *next < wait && m.attends(*next):
			attends = true
			wait = min(wait, max(*next, 0)+time.Millisecond)
			if m.workers.Load() > 1 {
				wait += rand.N(5 * time.Millisecond)
			}
		}
		// A poke may bring the look forward, but not before a moment has passed.
		moment := min(wait, m.shared(promoteEvery))
		if !sleep.For(ctx, moment) || wait > moment && !sleep.Until(ctx, wait-moment, m.poked) {
			return
		}
	}
}

// attends tells whether this maintainer looks again when the next job is due. All that have looked since it was logged know of it; the
// sooner it is due, the surer one attends, and so a few do, however many know.
func (m *Maintainer) attends(next time.Duration) bool {
	return m.workers.Load() == 1 || next <= promoteIdle || rand.Float64() < promoteIdle.Seconds()/next.Seconds()
}

// chores does everything else, round after round.
func (m *Maintainer) chores(ctx context.Context) {
	r := rounds{Maintainer: m, passed: choresIdle}
	for sleep.For(ctx, m.shared(choresEvery)) {
		if m.mine() {
			r.turn(ctx)
		}
	}
}

// rounds are those of the chores. The goroutine that does them owns it.
type rounds struct {
	*Maintainer
	passed int // turns since the last that did something
	nr     int
}

// turn does a round, unless nothing was logged: then there is little to do, and most are passed.
func (r *rounds) turn(ctx context.Context) {
	if r.passed++; !r.stirred.Swap(false) && r.passed < choresIdle {
		return
	}
	r.passed = 0
	r.nr++
	steps := []struct {
		name string
		run  func(context.Context) (string, error)
	}{
		{"rotate", r.store.Rotate},
		{"rotate later", r.store.RotateLater},
		{"rotate messages", r.store.RotateMessages}, // hubs do it too, but there may be none
		{"survey", r.store.Survey},
		{"tidy", r.store.Tidy},
	}
	if r.nr%tidyEvery != 1 {
		steps = steps[:len(steps)-1]
	}
	for _, step := range steps {
		did, err := step.run(ctx)
		r.done(ctx, step.name, did, err)
	}
}

// rescues looks after workers that are gone. Who has missed one looks again soon, whoever's turn it is.
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
		if !missed && !m.mine() {
			continue
		}
		var err error
		missed, err = m.rescue(ctx)
		m.done(ctx, "rescue", "", err)
	}
}

// rescue has the jobs of lost workers logged again, step by step: each is short, and there may be many. It tells whether a worker is missed
// that may still come back.
func (m *Maintainer) rescue(ctx context.Context) (missed bool, err error) {
	for ctx.Err() == nil {
		steps, err := m.store.Rescue(ctx)
		more := false
		missed = false
		for _, s := range steps {
			if s.Error != "" {
				err = errors.Join(err, fmt.Errorf("what worker %d (%s) left cannot be logged again: %s", s.Worker, s.Reason, s.Error))
			}
			if s.Relogged > 0 {
				m.log.Warn("weir: jobs of lost workers were logged again", "worker", s.Worker, "reason", s.Reason, "jobs", s.Relogged, "more", s.More, "ids", s.Jobs[:min(len(s.Jobs), idsMost)])
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

func (m *Maintainer) done(ctx context.Context, step, did string, err error) {
	if ctx.Err() != nil {
		return
	}
	m.outage.Chore(step, err, !store.IsRefused(err))
	if did != "" {
		m.log.Debug("weir: maintenance", "step", step, "did", did)
	}
}
