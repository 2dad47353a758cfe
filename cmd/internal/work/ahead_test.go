package work

import (
	"log/slog"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// TestShortJobsAreClaimedAhead: sessions that are all busy with short jobs have the next ones waiting, and the session that ends one gets one of them at once. When jobs take longer, so that
// those wait in vain, they are released, and none is claimed ahead any more.
func TestShortJobsAreClaimedAhead(t *testing.T) {
	t.Parallel()
	const slots = 8
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	d.clock = func() time.Time { return now }
	claims := 0
	g := &generation{d: d, more: func() { claims++ }, running: map[string]int{}}
	g.worker = worker.New(worker.Config{Queues: map[string]int{"mail": maxSlots}})
	d.now = g
	c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": slots}}, true)
	if err != nil {
		t.Fatal(err)
	}
	var held []*attempt
	var released []worker.Result
	claimed := int64(0)
	claim := func(jobs int) {
		for range jobs {
			claimed++
			k := key{1, 2, 3, claimed}
			a := &attempt{key: k, token: d.tokens.token(k), task: &worker.Task{Claim: store.Claim{ID: claimed, Queue: "mail", Kind: "any"}}}
			a.ended = func(r worker.Result) {
				g.running["mail"]--
				if r.Outcome == store.Released {
					released = append(released, r)
				}
			}
			g.running["mail"]++
			d.arrives(a)
			held = append(held, a)
		}
	}
	more := func() int { return g.slots("mail") - g.running["mail"] }
	claim(slots)
	if n := more(); n != 0 {
		t.Fatalf("%d are claimed ahead of jobs of which nothing is known", n)
	}
	for range 10 * averageOf {
		now = now.Add(time.Millisecond) // so each takes as many as there are slots
		d.recordHere([]End{{Token: held[0].token}}, false)
		held = held[1:]
		claim(more())
	}
	if n := len(c.Session.held); n != slots || d.queues["mail"].here != slots/aheadOf {
		t.Fatalf("the session has %d jobs, and %d wait", n, d.queues["mail"].here)
	}

	claims = 0
	next := held[slots]
	d.recordHere([]End{{Token: held[0].token}}, false)
	held = held[1:]
	if next.session != c.Session || claims == 0 || more() != 1 {
		t.Errorf("the session does not have the job that waited: %v, or the worker was not told to claim %d more", next.session, more())
	}

	now = now.Add(waitHere + time.Millisecond)
	d.sweep(false)
	if len(released) != slots/aheadOf-1 || more() != 0 {
		t.Errorf("%d were released, and %d more are to be claimed ahead of jobs that take long", len(released), more())
	}
}

// TestNamedJobsAreAsLongAsTheyTake: a worker that names what it holds again and again, at this hub or at another, has no short jobs because of that.
func TestNamedJobsAreAsLongAsTheyTake(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"this hub", "another"} {
		d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
		now := time.Now()
		d.clock = func() time.Time { return now }
		c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, true)
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(10 * averageOf) {
			k := key{1, 2, 3, i}
			a := &attempt{key: k, token: d.tokens.token(k), task: &worker.Task{Claim: store.Claim{ID: i, Queue: "mail", Kind: "any"}}, ended: func(worker.Result) {}}
			d.arrives(a)
			for range 3 {
				now = now.Add(time.Second)
				if at == "another" {
					d.peers.hear(1, d.peers.encode(note{1, opRenew}, []key{k}))
				} else if c, err = d.Open(t.Context(), Opening{Worker: c.ID(), Queues: map[string]int{"mail": 1}, Held: []string{a.token}}, true); err != nil {
					t.Fatal(err)
				}
			}
			d.recordHere([]End{{Token: a.token}}, false)
		}
		if q := d.queues["mail"]; q.took < 2*time.Second || d.ahead(q, 100) > 0 {
			t.Errorf("named at %s, jobs of 3 s take %v, and %d are claimed ahead", at, q.took, d.ahead(q, 100))
		}
	}
}

// TestMemoryIsNotUsedAhead: jobs are not claimed ahead while those that sessions have take most of the memory for jobs.
func TestMemoryIsNotUsedAhead(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	q := &queue{took: time.Millisecond}
	for _, full := range []bool{false, true} {
		if d.bytes = 0; full {
			d.bytes = maxBytes*3/4 + 1
		}
		if n := d.ahead(q, 100); (n == 0) != full {
			t.Errorf("full: %t: %d are claimed ahead", full, n)
		}
	}
}
