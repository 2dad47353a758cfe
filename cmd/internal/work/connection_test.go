package work_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestASessionAtAnotherHubKeepsWhatItHolds: a session that names attempts of another hub when it opens keeps them for as long as it is connected.
func TestASessionAtAnotherHubKeepsWhatItHolds(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := newSite(t, shortLease)
	other := s.at(s.hub(func(c *server.Config) { shortLease(c); c.Name = "other" }))
	id := s.enqueue("mail", "welcome", "{}")
	k, f := s.dial(m{"queues": m{"mail": 1}})
	j := k.next().Jobs[0]
	_ = k.conn.CloseNow()
	k, _ = other.dial(m{"queues": m{"mail": 0}, "worker": f.Worker, "held": []string{j.Token}})
	for begin := time.Now(); time.Since(begin) < 6*time.Second; { // three leases
		k.send(m{"type": "ping"})
		if f := k.next(); f.Type != "pong" {
			t.Fatalf("%+v", f)
		}
		if is := s.state(id); is != "running 1" {
			t.Fatal(is)
		}
	}
	s.cancel(id)
	if f := k.next(); f.Type != "cancel" || f.Attempts[0] != (interrupted{j.Token, "cancelled"}) {
		t.Errorf("%+v", f)
	}
}

// TestAsManyAttemptsAreNamedAsMayBe: a worker may name 2,000 attempts in held, in a call and in a session, and is told of each that it does not have it any more.
func TestAsManyAttemptsAreNamedAsMayBe(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	held := make([]string, 2000)
	for i := range held {
		held[i] = fmt.Sprint("lost ", i)
	}
	if a := s.take(m{"queues": m{"mail": 0}, "held": held}); len(a.Cancel) != len(held) {
		t.Errorf("an answer of take says that %d are lost", len(a.Cancel))
	}
	k, _ := s.dial(m{"queues": m{"mail": 0}, "held": held})
	if f := k.next(); f.Type != "cancel" || len(f.Attempts) != len(held) {
		t.Errorf("a session gets %s of %d", f.Type, len(f.Attempts))
	}
	if status, a := s.call("POST", "/v1/work/take", m{"queues": m{"mail": 0}, "held": append(held, "one more")}); status != http.StatusBadRequest {
		t.Errorf("%d %+v", status, a)
	}
}

// TestSlotsCountWhatIsHeldElsewhere: attempts that a session brings from another hub take its slots, until they have ended, wherever that is recorded, or their hub has died.
func TestSlotsCountWhatIsHeldElsewhere(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := newSite(t, shortLease)
	first := startChild(t, s.database)
	old := *s
	old.url = first.url
	for range 3 {
		s.enqueue("mail", "welcome", "{}")
	}
	k, f := old.dial(m{"queues": m{"mail": 3, "files": 1}})
	held := []string{}
	for len(held) < 3 {
		for _, j := range k.next().Jobs {
			held = append(held, j.Token)
		}
	}
	_ = k.conn.CloseNow()
	ids := map[int64]bool{}
	for range 6 {
		ids[s.enqueue("mail", "welcome", "{}")] = true
	}
	k, _ = s.dial(m{"queues": m{"mail": 3, "files": 1}, "worker": f.Worker, "held": held})
	files := s.enqueue("files", "file", "{}")
	if j := k.next().Jobs; len(j) != 1 || j[0].ID != files {
		t.Fatalf("with all slots taken but one, it gets %+v", j)
	}
	gets := func(n int, when string) {
		t.Helper()
		for got := 0; got < n; {
			switch f := k.next(); f.Type {
			case "jobs":
				for _, j := range f.Jobs {
					if got++; !ids[j.ID] {
						t.Fatalf("%s, it gets %+v", when, j)
					}
					delete(ids, j.ID)
				}
			case "recorded", "cancel":
			default:
				t.Fatalf("%s: %+v", when, f)
			}
		}
		k.send(m{"type": "ping", "id": when})
		for {
			f := k.next()
			if f.Type == "jobs" {
				t.Fatalf("%s, it gets %d jobs more", when, len(f.Jobs))
			}
			if f.Type == "pong" {
				return
			}
		}
	}
	k.send(m{"type": "record", "ends": []m{{"token": held[0]}}})
	gets(1, "when it has recorded one")
	if r := old.record(m{"token": held[1]}); r[0] != "" {
		t.Fatal(r)
	}
	gets(1, "when one was recorded elsewhere")
	_ = first.cmd.Process.Kill()
	_ = first.cmd.Wait()
	for lost := false; !lost; {
		f := k.next()
		for _, i := range f.Attempts {
			lost = lost || i == interrupted{held[2], "lost"}
		}
		if f.Type == "jobs" {
			t.Fatalf("its slots are full, and it gets %+v", f.Jobs)
		}
	}
	f = k.next()
	if f.Type != "jobs" || len(f.Jobs) != 1 {
		t.Errorf("when its attempt is lost, it gets %+v", f)
	}
}

// TestAnAnswerHasNoMoreThanWasAskedFor: what was in an answer that got lost is in the next one, instead of further jobs; what is not wanted any more is for others, at once.
func TestAnAnswerHasNoMoreThanWasAskedFor(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	var a answer
	var queue string
	for try := 0; len(a.Jobs) < 4; try++ { // in a queue of its own, if they did not come together: what is released comes back one by one
		if try == 20 {
			t.Fatal("jobs that were enqueued together never come together")
		}
		queue = fmt.Sprintf("mail-%d", try)
		if _, err := s.pool.Exec(t.Context(), `SELECT weir.enqueue_many(queue => array_agg($1::text), kind => array_agg('welcome'::text), args => array_agg('{}'::jsonb)) FROM generate_series(1, 8)`, queue); err != nil {
			t.Fatal(err)
		}
		a = s.take(m{"queues": m{queue: 4}})
	}
	given := map[string]bool{}
	for _, j := range a.Jobs {
		given[j.Token] = true
	}
	again := s.take(m{"queues": m{queue: 4}, "worker": a.Worker, "call": 1})
	for _, j := range again.Jobs {
		if len(again.Jobs) != 4 || !given[j.Token] {
			t.Fatalf("%+v, then %+v", a.Jobs, again.Jobs)
		}
	}
	fewer := s.take(m{"queues": m{queue: 1}, "worker": a.Worker, "call": 2})
	if len(fewer.Jobs) != 1 || !given[fewer.Jobs[0].Token] {
		t.Fatalf("%+v, then %+v", a.Jobs, fewer.Jobs)
	}
	got := map[int64]bool{fewer.Jobs[0].ID: true}
	k, _ := s.dial(m{"queues": m{queue: 8}})
	for len(got) < 8 {
		for _, j := range k.next().Jobs {
			if got[j.ID] || j.Attempt != 1 {
				t.Fatalf("%+v", j)
			}
			got[j.ID] = true
		}
	}
}

// TestASlowDatabaseDoesNotCutSessions: a client that reports faster than the database records is not read for a while, and keeps its session and what it has.
func TestASlowDatabaseDoesNotCutSessions(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := newSite(t, shortLease)
	k, _ := s.dial(m{"queues": m{"mail": 2}})
	ended, kept := s.enqueue("mail", "welcome", "{}"), s.enqueue("mail", "welcome", "{}")
	tokens := map[int64]string{}
	for len(tokens) < 2 {
		for _, j := range k.next().Jobs {
			tokens[j.ID] = j.Token
		}
	}
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The ends of the hub's worker: nothing is recorded meanwhile.
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1464158550, (SELECT max(id) FROM weir.worker))`); err != nil {
		t.Fatal(err)
	}
	ends := make([]m, 1000)
	for i := range ends {
		ends[i] = m{"token": tokens[ended]}
	}
	const frames = 12 // two more than are taken at once
	for range frames {
		k.send(m{"type": "record", "id": 1, "ends": ends})
	}
	for begin := time.Now(); time.Since(begin) < 6*time.Second; { // three leases
		if is := s.state(kept); is != "running 1" {
			t.Fatal(is)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < frames; {
		f := k.next()
		if f.Type != "recorded" {
			t.Fatalf("%+v", f)
		}
		n++
		for _, r := range f.Results {
			if !r.Recorded {
				t.Fatalf("%+v", r)
			}
		}
	}
	k.send(m{"type": "record", "id": 2, "ends": []m{{"token": tokens[kept]}}})
	if f := k.next(); f.Type != "recorded" || !f.Results[0].Recorded {
		t.Errorf("%+v", f)
	}
	s.until(kept, "completed 1")
}

// TestAClientThatSendsIsAlive: also if it answers no ping of the hub, whose answer may be behind what the hub is too slow to read.
func TestAClientThatSendsIsAlive(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := newSite(t, shortLease)
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(s.url, "http", "ws", 1)+"/v1/work/ws", &websocket.DialOptions{Subprotocols: []string{"weir.work.v1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	send := func(text string) {
		t.Helper()
		if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	send(`{"type": "open", "queues": {"mail": 1}}`)
	for begin := time.Now(); time.Since(begin) < 4*time.Second; time.Sleep(100 * time.Millisecond) { // two leases; it answers no ping while it does not read
		send(`{"type": "ping"}`)
	}
	send(`{"type": "ping", "id": "last"}`)
	for {
		_, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var f frame
		if err := json.Unmarshal(b, &f); err != nil {
			t.Fatal(err)
		}
		if f.ID == "last" {
			return
		}
	}
}

// TestOneOfTwoEndsIsRecorded: when two hubs record different ends of an attempt at the same time, one is recorded, and the other is told that it was not.
func TestOneOfTwoEndsIsRecorded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	other := s.at(s.hub(func(c *server.Config) { c.Name = "other" }))
	ends := []struct {
		end m
		is  string
	}{
		{m{"outcome": "completed"}, "completed"}, {m{"outcome": "failed", "final": true}, "failed"}, {m{"outcome": "cancelled"}, "cancelled"}, {m{"outcome": "snoozed", "delay": 3600}, "scheduled"},
	}
	for i := range 36 {
		id := s.enqueue("mail", "welcome", "{}")
		j, _ := s.one(m{"queues": m{"mail": 1}})
		a, b := ends[i%4], ends[(i%4+1+i/4%3)%4]
		refused := make(chan string, 1)
		go func() {
			refused <- other.record(m{"token": j.Token, "outcome": b.end["outcome"], "final": b.end["final"], "delay": b.end["delay"]})[0]
		}()
		here := s.record(m{"token": j.Token, "outcome": a.end["outcome"], "final": a.end["final"], "delay": a.end["delay"]})[0]
		there := pgtest.Receive(t, refused, "the other hub answers")
		want := a.is
		if there == "" {
			want = b.is
		}
		if is := s.state(id); (here == "") == (there == "") || !strings.HasPrefix(is, want+" ") {
			t.Errorf("%v: %q; %v: %q; the job is %s", a.end, here, b.end, there, is)
		}
	}
}
