package work

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// TestQueuesThatNobodyAsksForMakeRoom: a hub that has worked as many queues as it may works others once nobody has asked for some of them for an hour.
func TestQueuesThatNobodyAsksForMakeRoom(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	d.clock = func() time.Time { return now }
	open := func(queue string) error {
		c, err := d.Open(t.Context(), Opening{Queues: map[string]int{queue: 1}}, true)
		if err == nil {
			c.Close(true)
			d.End(t.Context(), c.ID())
		}
		return err
	}
	for i := range maxQueues {
		if err := open(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if open("another") == nil {
		t.Error("a queue more than the limit is accepted")
	}
	now = now.Add(keepQueue + time.Second)
	if err := open("another"); err != nil {
		t.Error(err)
	}
}

// TestSlotsKeepTheLimitOfAWorker: whatever a session changes, it may not want more jobs at once than a worker may have.
func TestSlotsKeepTheLimitOfAWorker(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 500, "files": 500}}, true)
	if err != nil {
		t.Fatal(err)
	}
	if c.Slots(map[string]int{"mail": 501}) == nil {
		t.Error("more is accepted")
	}
	if err := c.Slots(map[string]int{"mail": 600, "files": 400}); err != nil {
		t.Error(err)
	}
}

// TestAWorkerOpensWithWhatItsRecordsHadNotAnswered: a connection that is lost while ends are recorded leaves a worker with all its slots in use, and these ends besides. It may name
// all of them at once, and gets nothing more.
func TestAWorkerOpensWithWhatItsRecordsHadNotAnswered(t *testing.T) {
	t.Parallel()
	for _, standing := range []bool{true, false} {
		d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
		c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": maxAtOnce}}, true)
		if err != nil {
			t.Fatal(err)
		}
		var held []string
		for i := range int64(2 * maxAtOnce) {
			k := key{1, 2, 3, i}
			a := &attempt{key: k, token: d.tokens.token(k), task: &worker.Task{Claim: store.Claim{ID: i, Queue: "mail", Kind: "any"}}, ended: func(worker.Result) {}}
			d.arrives(a)
			if held = append(held, a.token); i < maxAtOnce {
				d.mu.Lock()
				a.finish(worker.Result{Outcome: store.Completed}) // which is not recorded yet
				d.freed(a)
				d.mu.Unlock()
			}
		}
		if has := c.Session.has("mail"); has != maxAtOnce {
			t.Fatalf("the worker has %d jobs", has)
		}
		c, err = d.Open(t.Context(), Opening{Worker: c.ID(), Queues: map[string]int{"mail": maxAtOnce}, Held: held}, standing)
		if err != nil {
			t.Fatal(err)
		}
		if more := oneMore(d); more.session != nil || len(c.Session.outbox) > 0 {
			t.Errorf("standing: %t: it is given more than it may have", standing)
		}
		if _, err := d.Open(t.Context(), Opening{Worker: c.ID(), Queues: map[string]int{"mail": maxAtOnce}, Held: append(held, held[0])}, standing); err == nil {
			t.Error("a token more than the limit is accepted")
		}
	}
}

// oneMore lets a job of the queue mail arrive.
func oneMore(d *Dispatcher) *attempt {
	k := key{1, 2, 4, 1}
	a := &attempt{key: k, token: d.tokens.token(k), task: &worker.Task{Claim: store.Claim{Queue: "mail", Kind: "any"}}, ended: func(worker.Result) {}}
	d.arrives(a)
	return a
}

// TestQueuesShareTheMemory: what all queues may claim together fits into the memory for jobs.
func TestQueuesShareTheMemory(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	g := &generation{d: d, more: func() {}, running: map[string]int{}}
	const size, n = 1 << 20, 40
	d.now, d.average = g, size
	g.worker = worker.New(worker.Config{})
	for i := range n {
		if _, err := d.Open(t.Context(), Opening{Queues: map[string]int{fmt.Sprint(i): 1000}}, true); err != nil {
			t.Fatal(err)
		}
	}
	sum := 0
	for i := range n {
		sum += g.slots(fmt.Sprint(i))
	}
	if sum > maxBytes/size {
		t.Errorf("%d jobs of %d bytes may be claimed at once", sum, size)
	}
}

// TestTheTimeThatAHubDidNotRunCountsForNoLease: workers whose hub was suspended have the lease that they had before.
func TestTheTimeThatAHubDidNotRunCountsForNoLease(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	d.clock = func() time.Time { return now }
	if _, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, false); err != nil {
		t.Fatal(err)
	}
	a := &attempt{key: key{1, 2, 3, 4}, task: &worker.Task{Claim: store.Claim{Queue: "mail", Kind: "any"}}, ended: func(worker.Result) {}}
	d.mu.Lock()
	d.place(a)
	d.mu.Unlock()
	now = now.Add(2 * d.Lease)
	d.slept(2 * d.Lease)
	if d.sweep(true); a.over {
		t.Error("it has ended")
	}
	now = now.Add(d.Lease + time.Second)
	if d.sweep(true); !a.over {
		t.Error("it has not ended though nothing was heard of its worker")
	}
}

// TestJobsForAClientThatHasGoneAreReleased: they do not wait for its lease to end.
func TestJobsForAClientThatHasGoneAreReleased(t *testing.T) {
	t.Parallel()
	d, a, end := oneJob()
	c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, false)
	if err != nil {
		t.Fatal(err)
	}
	d.arrives(a)
	news, err := c.Wait(t.Context())
	if err != nil || len(news.Jobs) != 1 {
		t.Fatalf("%+v %v", news, err)
	}
	c.Unsent(news.Jobs)
	c.Close(true)
	isReleased(t, end)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sessions) != 0 {
		t.Errorf("%d sessions are left", len(d.sessions))
	}
}

// TestACallThatWasOvertakenReleasesNothing: a client has ended a call and made another, which the hub got first, and whose answer has a job. When the first one comes, it does not name that
// job; its client has gone, and it has no room. With numbers, it changes nothing; without, the job stays the worker's, who may run it.
func TestACallThatWasOvertakenReleasesNothing(t *testing.T) {
	t.Parallel()
	for _, numbered := range []bool{true, false} {
		for _, room := range []int{0, 1} {
			d, a, end := oneJob()
			calls := int64(0)
			opening := func(o Opening) Opening {
				if calls++; numbered {
					o.Number = calls
				}
				return o
			}
			id := newID()
			late := opening(Opening{Worker: id, Queues: map[string]int{"mail": room}})
			c, err := d.Open(t.Context(), opening(Opening{Worker: id, Queues: map[string]int{"mail": 1}}), false)
			if err != nil {
				t.Fatal(err)
			}
			d.arrives(a)
			if news, err := c.Wait(t.Context()); err != nil || len(news.Jobs) != 1 {
				t.Fatalf("%+v %v", news, err)
			}
			c.Close(false)
			overtaken, err := d.Open(t.Context(), late, false)
			var bad *BadError
			switch {
			case numbered && !errors.As(err, &bad):
				t.Errorf("%v, want that it is refused", err)
			case !numbered && err != nil:
				t.Error(err)
			case !numbered:
				overtaken.Close(true)
			}
			if a.over {
				t.Errorf("numbered: %t, room %d: the job was released", numbered, room)
			}
			if c, err = d.Open(t.Context(), opening(Opening{Worker: id, Queues: map[string]int{"mail": 1}}), false); err != nil {
				t.Fatal(err)
			}
			if news, err := c.Wait(t.Context()); err != nil || len(news.Jobs) != 1 {
				t.Errorf("the next call, which does not name the job either, is answered with %+v %v", news, err)
			}
			c.Close(false)
			if c, err = d.Open(t.Context(), opening(Opening{Worker: id, Queues: map[string]int{"mail": 0}}), false); err != nil {
				t.Fatal(err)
			}
			c.Close(false)
			if numbered {
				isReleased(t, end) // the worker has not got it, and does not want it any more
			} else if a.over {
				t.Error("the job was released though the worker may have it")
			}
		}
	}
}

// TestAnAttemptThatIsClaimedTwiceIsGivenOnce: a crash of the database loses claims that it has not flushed, and the worker, which lives on, makes the same one again. Its session may still hold the attempt, or
// its end may wait to be recorded: no slot is lost, whichever it is.
func TestAnAttemptThatIsClaimedTwiceIsGivenOnce(t *testing.T) {
	t.Parallel()
	for _, over := range []bool{false, true} {
		d, first, end := oneJob()
		c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 2}}, true)
		if err != nil {
			t.Fatal(err)
		}
		finish := func() {
			d.mu.Lock()
			first.finish(worker.Result{Outcome: store.Completed})
			d.freed(first)
			d.mu.Unlock()
		}
		d.arrives(first)
		if over {
			finish()
		}
		ends := make(chan worker.Result, 1)
		second := &attempt{key: first.key, token: first.token, task: first.task, ended: func(r worker.Result) { ends <- r }}
		d.arrives(second)
		if n := len(c.Session.outbox); n != 1 {
			t.Errorf("the session is told of %d attempts", n)
		}
		if !over {
			finish()
		}
		select {
		case r := <-ends:
			t.Errorf("before the end of the first is known, the second has one: %+v", r)
		default:
		}
		d.settled(first, store.Completed, nil)
		if r := pgtest.Receive(t, ends, "the second ends with the first"); r.Outcome != store.Released || end.Outcome != store.Completed {
			t.Errorf("%+v after %+v", r, end)
		}
		d.settled(second, store.Lost, nil)
		if c.Session.wants["mail"].credit != 2 || len(c.Session.held) > 0 || len(d.attempts) > 0 {
			t.Errorf("the session has %d attempts, and room for %d more; there are %d", len(c.Session.held), c.Session.wants["mail"].credit, len(d.attempts))
		}
	}
}

// TestAnAttemptThatWasLostIsNotGivenAgain: the worker, which has found out that a crash has lost its claim, has given up the first, and makes the same claim again before the session knows. It would take the second for
// the first, and then interrupt both.
func TestAnAttemptThatWasLostIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	d, first, _ := oneJob()
	c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 2}}, true)
	if err != nil {
		t.Fatal(err)
	}
	d.arrives(first)
	if news, _ := c.take(); len(news.Jobs) != 1 {
		t.Fatalf("%+v", news)
	}
	d.toStop(first, worker.ErrFenced)
	d.settled(first, store.Lost, worker.ErrFenced)
	var end worker.Result
	second := &attempt{key: first.key, token: first.token, task: first.task, ended: func(r worker.Result) { end = r }}
	d.arrives(second)
	isReleased(t, &end)
	if news, _ := c.take(); len(news.Jobs) != 0 || len(news.Interrupted) != 1 || len(c.Session.held) > 0 || c.Session.wants["mail"].credit != 2 {
		t.Errorf("the session is told %+v, and holds %d", news, len(c.Session.held))
	}
	_, third, _ := oneJob()
	third.seq++
	if d.arrives(third); third.session == nil {
		t.Error("the job that comes back by another claim is not given")
	}
}

// oneJob returns a dispatcher without a database, and a job for it, with how it has ended.
func oneJob() (d *Dispatcher, a *attempt, end *worker.Result) {
	d, end = New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)}), &worker.Result{}
	k := key{1, 2, 3, 4}
	return d, &attempt{key: k, token: d.tokens.token(k), task: &worker.Task{Claim: store.Claim{Queue: "mail", Kind: "any"}}, ended: func(r worker.Result) { *end = r }}, end
}

// arrives is what happens when an attempt was claimed.
func (d *Dispatcher) arrives(a *attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.place(a)
}

func isReleased(t *testing.T, end *worker.Result) {
	t.Helper()
	if end.Outcome != store.Released {
		t.Errorf("%+v", end)
	}
}
