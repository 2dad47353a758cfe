package work_test

import (
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestARepeatedEndIsAnsweredAsRecorded: at any hub, however the attempt has ended; another end of the same attempt is refused, and changes nothing.
func TestARepeatedEndIsAnsweredAsRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	other := s.at(s.hub(func(c *server.Config) { c.Name = "other" }))
	ends := []m{
		{}, {"output": "sent"}, {"output": m{"n": 1}}, {"outcome": "failed", "error": "no\u0000pe", "final": true}, {"outcome": "failed", "error": "later", "delay": 3600}, {"outcome": "failed", "error": "by the queue"},
		{"outcome": "cancelled", "error": "unwanted"}, {"outcome": "snoozed", "delay": 3600}, {"outcome": "released", "delay": 3600, "error": "not me"},
	}
	with := func(token string, end m) m {
		end["token"] = token
		return end
	}
	for i, end := range ends {
		id := s.enqueue("mail", "welcome", "{}")
		j, _ := s.one(m{"queues": m{"mail": 1}})
		at := []*site{s, other}[i%2]
		if r := at.record(with(j.Token, end)); r[0] != "" {
			t.Fatal(r)
		}
		is := s.state(id)
		for _, hub := range []*site{s, other, s} {
			if r := hub.record(with(j.Token, end)); r[0] != "" {
				t.Errorf("%v again: %q", end, r)
			}
			for k, different := range ends {
				if k == i {
					continue
				}
				if r := hub.record(with(j.Token, different)); r[0] != "ended" {
					t.Errorf("%v after %v: %q", different, end, r)
				}
			}
		}
		if now := s.state(id); strings.Replace(now, "available", "scheduled", 1) != strings.Replace(is, "available", "scheduled", 1) { // its time may have come
			t.Errorf("the job was %s, and is %s", is, now)
		}
	}
}

// TestOneOfTwoOutputsIsRecorded: when two hubs record an attempt as completed at the same time, the one whose output the database has says so, and the other not.
func TestOneOfTwoOutputsIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	other := s.at(s.hub(func(c *server.Config) { c.Name = "other" }))
	for i := range 30 {
		id := s.enqueue("mail", "welcome", "{}")
		j, _ := s.one(m{"queues": m{"mail": 1}})
		refused := make(chan string, 1)
		go func() { refused <- other.record(m{"token": j.Token, "output": "there"})[0] }()
		here := s.record(m{"token": j.Token, "output": "here"})[0]
		there := pgtest.Receive(t, refused, "the other hub answers")
		want := "here"
		if there == "" {
			want = "there"
		}
		if is := s.state(id); (here == "") == (there == "") || is != "completed 1 "+want {
			t.Errorf("%d: here %q, there %q; the job is %s", i, here, there, is)
		}
	}
}

// TestACancelledJobsEndIsRepeated: what a worker reports of a job that was cancelled is recorded as a cancellation, also when it repeats it.
func TestACancelledJobsEndIsRepeated(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := s.enqueue("mail", "welcome", "{}")
	j, a := s.one(m{"queues": m{"mail": 1}})
	s.cancel(id)
	pgtest.Until(t, "the worker is told", func() bool {
		return len(s.take(m{"queues": m{"mail": 0}, "worker": a.Worker, "held": []string{j.Token}}).Cancel) == 1
	})
	for range 2 {
		if r := s.record(m{"token": j.Token, "outcome": "failed", "error": "interrupted"}); r[0] != "" {
			t.Error(r)
		}
	}
	if is := s.state(id); is != "cancelled 1 interrupted" {
		t.Error(is)
	}
}
