package work

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
	"github.com/weir-pg/weir/internal/worker"
)

// TestWorkersThatLeaveTakeNoMemory: calls that name no worker, and workers that end, leave nothing behind in their queues.
func TestWorkersThatLeaveTakeNoMemory(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	stays, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, true)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		o := Opening{Queues: map[string]int{"mail": 3, "files": 1}}
		if i%4 > 1 {
			o.Kinds = []string{"a", fmt.Sprint(i % 10)}
		}
		c, err := d.Open(t.Context(), o, i%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		c.Close(false)
		d.End(t.Context(), c.ID())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, q := range d.queues {
		if len(q.all.takers) > 100 || len(q.kinds) > 0 || q.all.wanting > 1 || name == "mail" && q.credit != 1 {
			t.Errorf("queue %s: %d takers, %d kinds, %d sessions, credit %d", name, len(q.all.takers), len(q.kinds), q.all.wanting, q.credit)
		}
	}
	if len(d.sessions) != 1 || d.queues["mail"].free("any") != stays.Session {
		t.Errorf("%d sessions", len(d.sessions))
	}
}

// TestTokensAreSigned: a token names an attempt, and whoever changes one has none.
func TestTokensAreSigned(t *testing.T) {
	t.Parallel()
	s := newSigner("secret", "test")
	k := key{-7, 1 << 62, 3, 1<<63 - 1}
	token := s.token(k)
	if back, err := s.parse(token); err != nil || back != k {
		t.Errorf("%+v %v", back, err)
	}
	for i := range token {
		b := []byte(token)
		if b[i]++; b[i] == '{' || b[i] == ':' {
			b[i] = 'A'
		}
		if _, err := s.parse(string(b)); err == nil {
			t.Errorf("changed at %d, it is accepted", i)
		}
	}
	if _, err := newSigner("secret", "another").parse(token); err == nil {
		t.Error("a token of another purpose is accepted")
	}
}

// TestALostConnectionLeavesTheWholeLease: an attempt is its worker's as long as the connection lasts, and then for the lease, however long it has run before.
func TestALostConnectionLeavesTheWholeLease(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	d.clock = func() time.Time { return now }
	c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, true)
	if err != nil {
		t.Fatal(err)
	}
	var end worker.Result
	a := &attempt{key: key{1, 2, 3, 4}, task: &worker.Task{Claim: store.Claim{Queue: "mail", Kind: "any"}}, ended: func(r worker.Result) { end = r }}
	d.mu.Lock()
	d.place(a)
	d.mu.Unlock()
	if news, err := c.Wait(t.Context()); err != nil || len(news.Jobs) != 1 {
		t.Fatalf("%+v %v", news, err)
	}
	for range 10 {
		now = now.Add(d.Lease - time.Second)
		c.Heard()
		if d.sweep(true); a.over {
			t.Fatal("it has ended though its connection is alive")
		}
	}
	c.Close(true)
	now = now.Add(d.Lease - time.Second)
	if d.sweep(true); a.over {
		t.Fatal("it has ended within the lease")
	}
	now = now.Add(2 * time.Second)
	d.sweep(true)
	if end.Outcome != store.Retried {
		t.Errorf("%+v", end)
	}
}

// TestAQueueThatCantBeWorkedYetIsRefused: while as many generations as may be have jobs, a worker that asks for another queue is told so rather than left waiting.
func TestAQueueThatCantBeWorkedYetIsRefused(t *testing.T) {
	t.Parallel()
	d := New(Config{Secret: "secret", Log: slog.New(slog.DiscardHandler)})
	for range maxGenerations {
		d.places <- struct{}{}
	}
	d.now = &generation{d: d, more: func() {}, worker: worker.New(worker.Config{Queues: map[string]int{"mail": 1}}), running: map[string]int{}}
	var limit *LimitError
	if _, err := d.Open(t.Context(), Opening{Queues: map[string]int{"files": 1}}, true); !errors.As(err, &limit) {
		t.Errorf("another queue: %v", err)
	}
	if _, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 1}}, true); err != nil {
		t.Error(err)
	}
	<-d.places
	if _, err := d.Open(t.Context(), Opening{Queues: map[string]int{"files": 1}}, true); err != nil {
		t.Error(err)
	}
}
