package work

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// slow is a dispatcher whose clock the test moves, and an attempt in it.
type slow struct {
	t   *testing.T
	d   *Dispatcher
	now time.Time
	ids int64
}

func newSlow(t *testing.T) *slow {
	s := &slow{t: t, d: New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler), Hubs: silentHubs{}}), now: time.Now()}
	s.d.clock = func() time.Time { return s.now }
	return s
}

func (s *slow) open(o Opening) *Call { return s.opens(o, false, nil) }

// opens opens a call for one job, without asking a database what still runs.
func (s *slow) opens(o Opening, standing bool, seen looks) *Call {
	s.t.Helper()
	o.Queues = map[string]int{"mail": 1}
	names, err := o.check()
	if err != nil {
		s.t.Fatal(err)
	}
	c, _, err := s.d.open(&o, names, standing, seen)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// told returns the tokens of the jobs that a call is told now.
func told(c *Call) (tokens []string) {
	news, _ := c.take()
	for _, j := range news.Jobs {
		tokens = append(tokens, j.Token)
	}
	return tokens
}

// claims hands out a job.
func (s *slow) claims() *attempt {
	s.ids++
	k := key{1, 2, 3, s.ids}
	a := &attempt{key: k, token: s.d.tokens.token(k), task: &worker.Task{Claim: store.Claim{Queue: "mail", Kind: "any"}}, ended: func(worker.Result) {}}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.d.place(a)
	return a
}

// passes lets time pass, and ends what nobody was heard of for. It reports whether the attempt goes on.
func (s *slow) passes(d time.Duration, a *attempt) bool {
	s.now = s.now.Add(d)
	s.d.sweep(true)
	return !a.over
}

// TestALeaseCountsFromWhenAWorkerIsTold: an answer says how long its call had waited when it got a job, so that a worker that reads it late knows from when the lease counts; and what is told again
// because an answer was lost has a whole lease each time. So it is not told for ever: its lease ends.
func TestALeaseCountsFromWhenAWorkerIsTold(t *testing.T) {
	t.Parallel()
	s := newSlow(t)
	c := s.open(Opening{})
	s.now = s.now.Add(8 * time.Second)
	a := s.claims()
	news, _ := c.take()
	c.Close(false)
	if answer, err := c.answer(news); err != nil || answer.Waited != 8 || len(answer.Jobs) != 1 {
		t.Errorf("%+v %v", answer, err)
	}
	for times := 1; ; times++ {
		if !s.passes(25*time.Second, a) {
			t.Fatalf("the attempt was told %d times, the last time 25 s ago, and its lease is over", times)
		}
		c = s.open(Opening{Worker: c.ID()})
		began := s.now
		s.now = s.now.Add(time.Second)
		news, _ = c.take()
		c.Close(false)
		if times == tellings {
			break
		}
		if len(news.Jobs) != 1 || news.Jobs[0].Token != a.token {
			t.Fatalf("%+v", news)
		}
		if answer, err := c.answer(news); err != nil || began.Add(time.Duration(answer.Waited*float64(time.Second))).After(a.since) {
			t.Fatalf("its worker counts the lease from %g s after the call began, the hub from %v after that (%v)", answer.Waited, a.since.Sub(began), err)
		}
	}
	if len(news.Jobs) != 0 {
		t.Errorf("told %d times, of which no answer has arrived, it is told again: %+v", tellings, news)
	}
	if s.passes(5*time.Second, a) {
		t.Error("an attempt whose worker never says that it has it is kept for as long as it calls")
	}
	other := s.claims()
	if got := told(s.open(Opening{Worker: c.ID()})); !slices.Equal(got, []string{other.token}) {
		t.Errorf("the worker gets %q then", got)
	}
}

// TestAnAttemptThatIsNotToldAgainKeepsNoSlotForLonger: nor over connections, which renew what their worker has for as long as they are open.
func TestAnAttemptThatIsNotToldAgainKeepsNoSlotForLonger(t *testing.T) {
	t.Parallel()
	s := newSlow(t)
	c := s.opens(Opening{}, true, nil)
	a := s.claims()
	for range tellings {
		if got := told(c); len(got) != 1 {
			t.Fatalf("told %q", got)
		}
		c.Close(true)
		c = s.opens(Opening{Worker: c.ID()}, true, nil)
	}
	s.claims() // for which it has no room
	if got := told(c); len(got) != 0 {
		t.Errorf("told %q", got)
	}
	for range 2 {
		s.now = s.now.Add(defaultLease * 2 / 3)
		c.Heard()
		s.d.sweep(true)
	}
	other := s.claims()
	if got := told(c); !a.over || !slices.Equal(got, []string{other.token}) {
		t.Errorf("after its lease, %v, the attempt has ended: %v; told %q", defaultLease, a.over, got)
	}
}

// TestTheSlotOfAnAttemptThatHasEndedElsewhereIsFree: in whatever call the worker is when the database says so of an attempt that was to be told again, and no call gets more than it has asked for.
func TestTheSlotOfAnAttemptThatHasEndedElsewhereIsFree(t *testing.T) {
	t.Parallel()
	for _, in := range []struct {
		name            string
		standing, names bool // the call that was opened while the database was asked for another
	}{
		{"a connection", true, false}, {"a connection that names it", true, true}, {"a call", false, false}, {"a call that names it", false, true},
	} {
		s := newSlow(t)
		c := s.opens(Opening{}, true, nil)
		a := s.claims()
		if got := told(c); !slices.Equal(got, []string{a.token}) {
			t.Fatalf("%s: told %q", in.name, got)
		}
		c.Close(true)
		asks := s.opens(Opening{Worker: c.ID()}, true, nil)
		again := asks.again()
		next := Opening{Worker: c.ID()}
		if in.names {
			next.Held = []string{a.token}
		}
		c = s.opens(next, in.standing, nil)
		asks.checked(again, looks{})
		other := s.claims()
		s.claims() // for which it has no room
		if got := told(c); !slices.Equal(got, []string{other.token}) {
			t.Errorf("%s: told %q, want %q", in.name, got, other.token)
		}
	}
}

// TestACallGetsAnotherForWhatEndsBeforeItIsToldAgain: what a call was to be told again ends while the database is asked whether it still runs, because another hub says so, or is cancelled before
// the call is told.
func TestACallGetsAnotherForWhatEndsBeforeItIsToldAgain(t *testing.T) {
	t.Parallel()
	for how, ends := range map[string]func(d *Dispatcher, a *attempt){
		"another hub has recorded it": func(d *Dispatcher, a *attempt) {
			d.peers.hear(a.worker, d.peers.encode(note{a.worker, opEnded}, []key{a.key}))
		},
		"it was cancelled": func(d *Dispatcher, a *attempt) {
			d.mu.Lock()
			defer d.mu.Unlock()
			a.reason = Cancelled
		},
	} {
		s := newSlow(t)
		c := s.opens(Opening{}, false, nil)
		a := s.claims()
		if got := told(c); !slices.Equal(got, []string{a.token}) {
			t.Fatalf("%s: told %q", how, got)
		}
		c.Close(false)
		c = s.opens(Opening{Worker: c.ID()}, false, nil)
		again := c.again()
		ends(s.d, a)
		c.checked(again, looks{a.id: {ID: a.id, State: "running", Worker: a.worker, Queue: "mail"}})
		if got := told(c); len(got) != 0 {
			t.Fatalf("%s: told %q", how, got)
		}
		other := s.claims()
		s.claims() // for which it has no room
		if got := told(c); !slices.Equal(got, []string{other.token}) {
			t.Errorf("%s: told %q, want %q", how, got, other.token)
		}
	}
}

// TestTheSlotOfAnEndThatIsRecordedAfterItsWorkerHasReconnectedIsFree: an attempt of another hub takes a slot of the connection that the worker has opened before this hub knew of the end.
func TestTheSlotOfAnEndThatIsRecordedAfterItsWorkerHasReconnectedIsFree(t *testing.T) {
	t.Parallel()
	s := newSlow(t)
	k := key{9, 1, 1, 100}
	runs := looks{k.id: {ID: k.id, State: "running", Worker: k.worker, Queue: "mail"}}
	before := s.opens(Opening{Held: []string{s.d.tokens.token(k)}}, true, runs)
	now := s.opens(Opening{Worker: before.ID(), Held: []string{s.d.tokens.token(k)}}, true, runs)
	a := s.claims()
	if got := told(now); len(got) != 0 {
		t.Fatalf("told %q", got)
	}
	before.Ended([]Result{{Token: s.d.tokens.token(k), Recorded: true}})
	if got := told(now); !slices.Equal(got, []string{a.token}) {
		t.Errorf("told %q", got)
	}
}

// TestAConnectionThatEndsShortensNoRenewal: a worker has left its connection for one at another hub, which has told of what it holds, before this hub notices that the old one has ended.
func TestAConnectionThatEndsShortensNoRenewal(t *testing.T) {
	t.Parallel()
	s := newSlow(t)
	c, err := s.d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, true)
	if err != nil {
		t.Fatal(err)
	}
	a := s.claims()
	if news, _ := c.take(); len(news.Jobs) != 1 {
		t.Fatalf("%+v", news)
	}
	s.now = s.now.Add(20 * time.Second)
	s.d.peers.hear(1, s.d.peers.encode(note{1, opRenew}, []key{a.key}))
	c.Close(true)
	if !s.passes(defaultLease+defaultLease/3-time.Second, a) {
		t.Error("an attempt ended whose worker may have had an answer of another hub a lease ago")
	}
	if s.passes(2*time.Second, a) {
		t.Error("an attempt lasts for longer than a lease and a third")
	}
}

// TestARenewalThroughAnotherHubLastsUntilTheNext: another hub, which answers a worker's calls, tells of what it holds once in a third of a lease, and the worker counts a whole lease from each answer.
func TestARenewalThroughAnotherHubLastsUntilTheNext(t *testing.T) {
	t.Parallel()
	s := newSlow(t)
	c := s.open(Opening{})
	a := s.claims()
	if news, _ := c.take(); len(news.Jobs) != 1 {
		t.Fatalf("%+v", news)
	}
	c.Close(false)
	s.now = s.now.Add(20 * time.Second)
	s.d.peers.hear(1, s.d.peers.encode(note{1, opRenew}, []key{a.key}))
	if !s.passes(defaultLease+defaultLease/3-time.Second, a) {
		t.Error("an attempt ended whose worker may have had an answer of another hub a lease ago")
	}
	if s.passes(2*time.Second, a) {
		t.Error("an attempt lasts for longer than a lease and a third")
	}
}

// TestAJobThatIsInterruptedBeforeItIsToldIsNotBegun: what is lost while a session's news are gathered, or cancelled before they are, is not told, and its slot is free again; what is cancelled while they are
// gathered is told first, and then to be interrupted.
func TestAJobThatIsInterruptedBeforeItIsToldIsNotBegun(t *testing.T) {
	t.Parallel()
	for _, in := range []struct {
		name     string
		gathered bool // when it is interrupted
		cause    error
		told     bool
	}{
		{"lost while it is gathered", true, worker.ErrFenced, false},
		{"cancelled while it is gathered", true, worker.ErrCancelled, true},
		{"cancelled before", false, worker.ErrCancelled, false},
	} {
		s := newSlow(t)
		c, err := s.d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, true)
		if err != nil {
			t.Fatal(err)
		}
		a := s.claims()
		var news News
		if in.gathered {
			news, _ = c.take()
		}
		s.d.toStop(a, in.cause)
		other := s.claims() // waits for a slot
		more, _ := c.take()
		news.add(more)
		more, _ = c.take() // what a slot has given that has come free meanwhile
		news.add(more)
		want := other
		if in.told {
			want = a
		}
		if len(news.Jobs) != 1 || news.Jobs[0].Token != want.token {
			t.Errorf("%s: jobs %+v", in.name, news.Jobs)
		}
		before, after := news.interrupted()
		if in.told != (len(after) == 1) || in.told != (len(before) == 0) || a.over == in.told {
			t.Errorf("%s: to interrupt before %v, after %v; it has ended: %v", in.name, before, after, a.over)
		}
		if c.Session.has("mail") != 1 {
			t.Errorf("%s: the session has %d jobs", in.name, c.Session.has("mail"))
		}
	}
}
