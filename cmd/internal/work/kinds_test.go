package work

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// crowd is many workers of many kinds at one queue.
type crowd struct {
	d     *Dispatcher
	q     *queue
	kinds int
	next  int64
}

// newCrowd opens sessions of three kinds each, of so many.
func newCrowd(t testing.TB, sessions, kinds int) *crowd {
	c := &crowd{d: New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)}), kinds: kinds}
	for i := range sessions {
		some := []string{fmt.Sprint(i % kinds), fmt.Sprint((i*7 + 1) % kinds), fmt.Sprint((i*13 + 2) % kinds)}
		if _, err := c.d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}, Kinds: some}, true); err != nil {
			t.Fatal(err)
		}
	}
	c.q = c.d.queues["mail"]
	return c
}

// claims places a job of a kind.
func (c *crowd) claims(kind string) *attempt {
	c.next++
	a := &attempt{key: key{1, 2, 3, c.next}, task: &worker.Task{Claim: store.Claim{Queue: "mail", Kind: kind}}, ended: func(worker.Result) {}}
	c.d.place(a)
	return a
}

// ends has the session of an attempt complete it.
func (c *crowd) ends(a *attempt) {
	a.finish(worker.Result{Outcome: store.Completed})
	c.d.freed(a)
	delete(c.d.attempts, a.key)
	a.session.outbox = a.session.outbox[:0]
}

// TestManyKindsCostNoMore: a job finds its worker among ten thousand with other kinds nearly as soon as among a hundred. Were they asked one after the other, it would take a hundred
// times as long.
func TestManyKindsCostNoMore(t *testing.T) {
	t.Parallel()
	const few, many, turns, jobs = 100, 10_000, 100, 500
	var took [2]time.Duration
	crowds := [2]*crowd{newCrowd(t, few, few), newCrowd(t, many, many)}
	for range turns { // in turn, so that what else the machine does slows both
		for i, c := range crowds {
			begin := time.Now()
			c.d.mu.Lock()
			for range jobs {
				a := c.claims(fmt.Sprint(rand.IntN(c.kinds)))
				if a.session == nil || !a.session.takes(a.task.Kind) {
					t.Fatalf("the job of kind %s got the session %+v", a.task.Kind, a.session)
				}
				c.ends(a)
			}
			c.d.mu.Unlock()
			took[i] += time.Since(begin)
		}
	}
	if took[1] > 20*took[0] {
		t.Errorf("%d jobs take %s among %d workers, and %s among %d", turns*jobs, took[1], many, took[0], few)
	}
	t.Logf("%s among %d, %s among %d", took[1], many, took[0], few)
}

// TestWorkersTakeTurns: a job goes to whoever has waited longest of those that are free for its kind, and a worker that is free gets the job that has waited longest of those that it takes,
// whatever happens: workers come and go, change their kinds and their numbers.
func TestWorkersTakeTurns(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	c := &crowd{d: d, q: d.queueOf("mail")}
	kinds := []string{"a", "b", "c", "d", "e"}
	calls, running := []*Call{}, []*attempt{}
	open := func(id string) *Call {
		o := Opening{Worker: id, Queues: map[string]int{"mail": random.IntN(4)}}
		if n := random.IntN(len(kinds)); n > 0 {
			random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			o.Kinds = append([]string{}, kinds[:n]...)
		}
		call, err := d.Open(t.Context(), o, true)
		if err != nil {
			t.Fatal(err)
		}
		return call
	}
	for step := range 20_000 {
		switch what := random.IntN(20); {
		case what == 0 && len(calls) < 8:
			calls = append(calls, open(""))
		case what == 1 && len(calls) > 0:
			i := random.IntN(len(calls))
			calls[i] = open(calls[i].ID())
		case what == 2 && len(calls) > 0:
			if err := calls[random.IntN(len(calls))].Slots(map[string]int{"mail": random.IntN(4)}); err != nil {
				t.Fatal(err)
			}
		case what == 3 && len(calls) > 2:
			i := random.IntN(len(calls))
			d.mu.Lock()
			calls[i].Session.leave()
			d.mu.Unlock()
			calls = slices.Delete(calls, i, i+1)
		case what < 12:
			d.mu.Lock()
			kind := kinds[random.IntN(len(kinds))]
			var first *want
			for _, s := range d.sessions {
				if w := s.wants["mail"]; w.credit > 0 && s.takes(kind) && (first == nil || w.turn < first.turn) {
					first = w
				}
			}
			a := c.claims(kind)
			if first == nil && a.session != nil || first != nil && a.session != first.session {
				t.Fatalf("step %d (seed %d): a job of kind %s went to another session", step, seed, kind)
			}
			running = append(running, a)
			d.mu.Unlock()
		case len(running) > 0:
			d.mu.Lock()
			i := random.IntN(len(running))
			if a := running[i]; a.session != nil || a.over {
				if running = append(running[:i], running[i+1:]...); !a.over {
					c.ends(a)
				}
			}
			d.mu.Unlock()
		}
		d.mu.Lock()
		here := 0
		for _, some := range c.q.waiting {
			here += len(some)
		}
		credit := 0
		for _, s := range d.sessions {
			w := s.wants["mail"]
			credit += max(w.credit, 0)
			if a := c.q.oldest(s); w.credit > 0 && a != nil {
				t.Fatalf("step %d (seed %d): a job of kind %s waits for a session that is free", step, seed, a.task.Kind)
			}
		}
		if here != c.q.here || credit != c.q.credit {
			t.Fatalf("step %d (seed %d): %d jobs wait, not %d; the credit is %d, not %d", step, seed, here, c.q.here, credit, c.q.credit)
		}
		d.mu.Unlock()
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, sessions := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(sessions), func(b *testing.B) {
			c := newCrowd(b, sessions, sessions)
			c.d.mu.Lock()
			defer c.d.mu.Unlock()
			for b.Loop() {
				a := c.claims(fmt.Sprint(rand.IntN(sessions)))
				if a.session == nil {
					b.Fatal("nobody is free")
				}
				c.ends(a)
			}
		})
	}
}

// TestAnotherWorkerIsWarnedWhenTheNewestHasLeft: of a job for which nobody has a handler.
func TestAnotherWorkerIsWarnedWhenTheNewestHasLeft(t *testing.T) {
	t.Parallel()
	s := newSlow(t)
	kinds := []string{"welcome"}
	stays, leaves := s.opens(Opening{Kinds: kinds}, true, nil), s.opens(Opening{Kinds: kinds}, true, nil)
	s.claims()
	if news, _ := leaves.take(); len(news.Warnings) != 1 {
		t.Fatalf("the newest is warned of %q", news.Warnings)
	}
	s.d.mu.Lock()
	leaves.Session.leave()
	s.d.mu.Unlock()
	s.claims()
	if news, _ := stays.take(); len(news.Warnings) != 1 {
		t.Errorf("the other is warned of %q", news.Warnings)
	}
}
