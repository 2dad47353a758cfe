package work

import (
	"io"
	"log/slog"
	"testing"
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
		c, err := d.Open(t.Context(), Opening{Queues: map[string]int{"mail": 3, "files": 1}}, i%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		c.Close(false)
		d.End(c.ID())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, q := range d.queues {
		if len(q.takers) > 100 || len(q.kinds) > 0 || q.all > 1 || name == "mail" && q.credit != 1 {
			t.Errorf("queue %s: %d takers, %d kinds, %d sessions, credit %d", name, len(q.takers), len(q.kinds), q.all, q.credit)
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
