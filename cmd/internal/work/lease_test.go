package work_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

func shortLease(c *server.Config) { c.JobsLease = 2 * time.Second }

// one takes one job.
func (s *site) one(body m) (job, answer) {
	s.t.Helper()
	for range 10 {
		if a := s.take(body); len(a.Jobs) == 1 {
			return a.Jobs[0], a
		}
	}
	s.t.Fatal("there is no job")
	return job{}, answer{}
}

// TestALostAnswerIsGivenAgain: an attempt that the worker does not name in held is in its next answer again, the same attempt; one that it names is not.
func TestALostAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := s.enqueue("mail", "welcome", "{}")
	first, a := s.one(m{"queues": m{"mail": 1}})
	again, _ := s.one(m{"queues": m{"mail": 1}, "worker": a.Worker})
	if again.Token != first.Token || again.ID != id || again.Attempt != 1 {
		t.Errorf("got %+v, then %+v", first, again)
	}
	if b := s.take(m{"queues": m{"mail": 1}, "worker": a.Worker, "held": []string{first.Token}, "wait": 0}); len(b.Jobs) != 0 || len(b.Cancel) != 0 {
		t.Errorf("%+v", b)
	}
	if r := s.record(m{"token": first.Token}); r[0] != "" {
		t.Error(r)
	}
	// Over a WebSocket, too.
	id = s.enqueue("mail", "welcome", "{}")
	k, f := s.dial(m{"queues": m{"mail": 1}})
	before := k.next().Jobs[0]
	_ = k.conn.CloseNow()
	k, _ = s.dial(m{"queues": m{"mail": 1}, "worker": f.Worker})
	if after := k.next().Jobs[0]; after.Token != before.Token || after.ID != id {
		t.Errorf("got %+v, then %+v", before, after)
	}
}

// TestASilentWorkersJobsRunAgain: an attempt that is not renewed for its lease ends as failed, and its late end is refused; one that is renewed, by takes or by an open connection, goes on.
func TestASilentWorkersJobsRunAgain(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := newSite(t, shortLease)
	silent, held := s.enqueue("mail", "silent", "{}"), int64(0)
	lost, _ := s.one(m{"queues": m{"mail": 1}, "name": "sleeper"})
	held = s.enqueue("mail", "held", "{}")
	kept, a := s.one(m{"queues": m{"mail": 1}})
	k, _ := s.dial(m{"queues": m{"files": 1}})
	connected := s.enqueue("files", "connected", "{}")
	open := k.next().Jobs[0]
	for !strings.HasPrefix(s.state(silent), "scheduled 2") && !strings.HasPrefix(s.state(silent), "available 2") {
		if b := s.take(m{"queues": m{"mail": 0}, "worker": a.Worker, "held": []string{kept.Token}, "wait": 0.5}); len(b.Cancel) != 0 {
			t.Fatalf("%+v", b)
		}
	}
	if is := s.state(silent); !strings.Contains(is, `the worker "sleeper" was not heard of for 2s`) {
		t.Error(is)
	}
	if r := s.record(m{"token": lost.Token}, m{"token": kept.Token}, m{"token": open.Token}); r[0] != "ended" && r[0] != "lost" || r[1] != "" || r[2] != "" {
		t.Error(r)
	}
	s.until(held, "completed 1")
	s.until(connected, "completed 1")
}

// TestCancellationsReachWorkers: of a running job, by take and over a WebSocket, and the job ends as cancelled whatever failure the worker reports.
func TestCancellationsReachWorkers(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := s.enqueue("mail", "welcome", "{}")
	j, a := s.one(m{"queues": m{"mail": 1}})
	told := make(chan answer, 1)
	go func() {
		told <- s.take(m{"queues": m{"mail": 0}, "worker": a.Worker, "held": []string{j.Token}, "wait": 60})
	}()
	s.cancel(id)
	b := pgtest.Receive(t, told, "take answers")
	if len(b.Cancel) != 1 || b.Cancel[0] != (interrupted{j.Token, "cancelled"}) {
		t.Errorf("%+v", b)
	}
	if r := s.record(m{"token": j.Token, "outcome": "failed", "error": "interrupted"}); r[0] != "" {
		t.Error(r)
	}
	s.until(id, "cancelled 1 interrupted")

	k, _ := s.dial(m{"queues": m{"mail": 1}})
	id = s.enqueue("mail", "welcome", "{}")
	j = k.next().Jobs[0]
	s.cancel(id)
	if f := k.next(); f.Type != "cancel" || f.Attempts[0] != (interrupted{j.Token, "cancelled"}) {
		t.Errorf("%+v", f)
	}
	k.send(m{"type": "record", "ends": []m{{"token": j.Token}}})
	s.until(id, "completed 1") // it was faster
}

// TestACancellationIsToldAgain: over a connection that follows one that was lost; and an attempt that the worker never got ends.
func TestACancellationIsToldAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k, f := s.dial(m{"queues": m{"mail": 1, "files": 1}})
	got, lost := s.enqueue("mail", "welcome", "{}"), s.enqueue("files", "file", "{}")
	tokens := map[int64]string{}
	for len(tokens) < 2 {
		for _, j := range k.next().Jobs {
			tokens[j.ID] = j.Token
		}
	}
	s.cancel(got)
	s.cancel(lost)
	for n := 0; n < 2; {
		n += len(k.next().Attempts)
	}
	_ = k.conn.CloseNow()
	k, _ = s.dial(m{"queues": m{"mail": 1, "files": 1}, "worker": f.Worker, "held": []string{tokens[got]}})
	if f := k.next(); f.Type != "cancel" || len(f.Attempts) != 1 || f.Attempts[0] != (interrupted{tokens[got], "cancelled"}) {
		t.Errorf("%+v", f)
	}
	s.until(lost, "cancelled 1")
}

func (s *site) cancel(id int64) {
	s.t.Helper()
	if _, err := s.pool.Exec(context.Background(), `SELECT weir.cancel($1)`, id); err != nil {
		s.t.Fatal(err)
	}
}

// TestKindsWithoutAHandlerAreLeftToOthers: without using up an attempt; if a session with a handler is only busy, its jobs wait for it.
func TestKindsWithoutAHandlerAreLeftToOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k, _ := s.dial(m{"queues": m{"mail": 5}, "kinds": []string{"known"}})
	strange, known := s.enqueue("mail", "strange", "{}"), s.enqueue("mail", "known", "{}")
	if j := k.next().Jobs[0]; j.ID != known {
		t.Errorf("%+v", j)
	}
	s.until(strange, "scheduled 1 no handler for kind strange")
}

// TestAnyHubRecords: a worker's calls may reach another hub than the one that gave it its jobs: its ends are recorded once, cancellations reach it, and naming its attempts there renews
// them; the slot is free again at once.
func TestAnyHubRecords(t *testing.T) {
	pgtest.Alone(t, "a lease of two seconds is lost on a busy machine")
	s := newSite(t, shortLease)
	other := s.at(s.hub(func(c *server.Config) { shortLease(c); c.Name = "other" }))
	id := s.enqueue("mail", "welcome", "{}")
	j, a := s.one(m{"queues": m{"mail": 1}})
	held := m{"queues": m{"mail": 0}, "worker": a.Worker, "held": []string{j.Token}, "wait": 0.5}
	for begin := time.Now(); time.Since(begin) < 6*time.Second; { // three leases
		if b := other.take(held); len(b.Cancel) != 0 {
			t.Fatalf("%+v", b)
		}
		if is := s.state(id); is != "running 1" {
			t.Fatal(is)
		}
	}
	s.cancel(id)
	pgtest.Until(t, "the other hub says so", func() bool {
		b := other.take(held)
		return len(b.Cancel) == 1 && b.Cancel[0] == interrupted{j.Token, "cancelled"}
	})
	if r := other.record(m{"token": j.Token, "outcome": "cancelled"}); r[0] != "" {
		t.Error(r)
	}
	if r := s.record(m{"token": j.Token}); r[0] != "ended" {
		t.Error(r)
	}
	s.until(id, "cancelled 1")
	// The slot of a standing session is free once another hub has recorded its attempt.
	k, _ := s.dial(m{"queues": m{"files": 1}})
	first, second := s.enqueue("files", "a", "{}"), s.enqueue("files", "b", "{}")
	got := k.next().Jobs[0]
	if got.ID != first {
		t.Errorf("%+v", got)
	}
	if r := other.record(m{"token": got.Token}); r[0] != "" {
		t.Error(r)
	}
	if next := k.next().Jobs[0]; next.ID != second {
		t.Errorf("%+v", next)
	}
}

// TestAWorkerThatEndsReleasesItsJobs: by DELETE, and by stop over a WebSocket, without using up the attempt.
func TestAWorkerThatEndsReleasesItsJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := s.enqueue("mail", "welcome", "{}")
	j, a := s.one(m{"queues": m{"mail": 1}})
	if status, b := s.call("DELETE", "/v1/work/"+a.Worker, nil); status != 200 || !b.Ended {
		t.Errorf("%d %+v", status, b)
	}
	if is := s.state(id); is != "available 1" {
		t.Errorf("when its worker has ended, the job is %s", is)
	}
	if status, b := s.call("DELETE", "/v1/work/"+a.Worker, nil); status != 200 || b.Ended {
		t.Errorf("again: %d %+v", status, b)
	}
	again, _ := s.one(m{"queues": m{"mail": 1}})
	if again.ID != id || again.Attempt != 1 || again.Token == j.Token {
		t.Errorf("%+v", again)
	}
	if r := s.record(m{"token": j.Token}, m{"token": again.Token}); r[0] != "ended" || r[1] != "" {
		t.Error(r)
	}
}

// TestAStoppingHubLetsWorkersFinish: it gives out no more jobs, says so, records what they finish in time, and releases the rest.
func TestAStoppingHubLetsWorkersFinish(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	h := s.at(s.hub(func(c *server.Config) { c.Drain = 15 * time.Second }))
	k, _ := h.dial(m{"queues": m{"mail": 1, "files": 1}})
	finished, left := s.enqueue("mail", "welcome", "{}"), s.enqueue("files", "file", "{}")
	tokens := map[int64]string{}
	for len(tokens) < 2 {
		for _, j := range k.next().Jobs {
			tokens[j.ID] = j.Token
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- h.server.Stop(context.Background()) }()
	if f := k.next(); f.Type != "quiet" {
		t.Errorf("%+v", f)
	}
	k.send(m{"type": "record", "id": 1, "ends": []m{{"token": tokens[finished]}}})
	if f := k.next(); f.Type != "recorded" || !f.Results[0].Recorded {
		t.Errorf("%+v", f)
	}
	s.until(finished, "completed 1")
	if f := k.next(); f.Type != "cancel" || f.Attempts[0] != (interrupted{tokens[left], "lost"}) {
		t.Errorf("%+v", f)
	}
	if err := pgtest.Receive(t, stopped, "the hub has stopped"); err != nil {
		t.Error(err)
	}
	again, _ := s.one(m{"queues": m{"files": 1}})
	if again.ID != left || again.Attempt != 1 {
		t.Errorf("%+v", again)
	}
	if r := s.record(m{"token": tokens[left]}); r[0] != "ended" && r[0] != "lost" {
		t.Error(r)
	}
}

// TestAnotherQueueDisturbsNobody: a session that asks for a queue that the hub does not work yet gets its jobs, while attempts go on that were given out before.
func TestAnotherQueueDisturbsNobody(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := s.enqueue("mail", "welcome", "{}")
	j, a := s.one(m{"queues": m{"mail": 1}})
	for _, queue := range []string{"files", "news", "images"} {
		other := s.enqueue(queue, "any", "{}")
		got, _ := s.one(m{"queues": m{queue: 1}})
		if got.ID != other {
			t.Errorf("%+v", got)
		}
		if r := s.record(m{"token": got.Token}); r[0] != "" {
			t.Error(r)
		}
	}
	next := s.enqueue("mail", "welcome", "{}")
	second, _ := s.one(m{"queues": m{"mail": 1}, "worker": a.Worker, "held": []string{j.Token}})
	if second.ID != next {
		t.Errorf("%+v", second)
	}
	if r := s.record(m{"token": j.Token}, m{"token": second.Token}); r[0] != "" || r[1] != "" {
		t.Error(r)
	}
	s.until(id, "completed 1")
}

// TestCheckpointsReachTheNextAttempt: what an attempt reports is stored, and the next has its checkpoint; one that has ended stores nothing.
func TestCheckpointsReachTheNextAttempt(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	id := s.enqueue("mail", "import", "{}")
	j, a := s.one(m{"queues": m{"mail": 1}})
	status, r := s.call("POST", "/v1/work/progress", m{"entries": []m{{"token": j.Token, "percent": 42.5, "message": "half", "checkpoint": m{"row": 7}}, {"token": "no"}, {"token": j.Token, "odd": 1}}})
	if status != 200 || !r.Results[0].Recorded || r.Results[1].Refusal != "invalid" || r.Results[2].Refusal != "invalid" {
		t.Fatalf("%d %+v", status, r)
	}
	if is := s.record(m{"token": j.Token, "outcome": "failed", "delay": 0}); is[0] != "" {
		t.Fatal(is)
	}
	next, _ := s.one(m{"queues": m{"mail": 1}, "worker": a.Worker})
	if next.ID != id || next.Attempt != 2 || string(next.Checkpoint) != `{"row":7}` && string(next.Checkpoint) != `{"row": 7}` {
		t.Errorf("%+v", next)
	}
	if _, r := s.call("POST", "/v1/work/progress", m{"entries": []m{{"token": j.Token, "percent": 50}}}); r.Results[0].Refusal != "lost" {
		t.Errorf("%+v", r)
	}
}

// TestOneConnectionForAWorker: a second one for the same worker takes over.
func TestOneConnectionForAWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k, f := s.dial(m{"queues": m{"mail": 1}})
	other, g := s.dial(m{"queues": m{"mail": 1}, "worker": f.Worker})
	if g.Worker != f.Worker {
		t.Errorf("%+v", g)
	}
	if code := k.ended(); code != 4409 {
		t.Errorf("closed with %d", code)
	}
	id := s.enqueue("mail", "welcome", "{}")
	if j := other.next().Jobs[0]; j.ID != id {
		t.Errorf("%+v", j)
	}
}

// TestSlotsChange: a session with none of a queue gets none, and gets jobs once it has.
func TestSlotsChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k, _ := s.dial(m{"queues": m{"mail": 0}})
	id := s.enqueue("mail", "welcome", "{}")
	k.send(m{"type": "ping", "id": 1})
	if f := k.next(); f.Type != "pong" {
		t.Errorf("%+v", f)
	}
	k.send(m{"type": "slots", "queues": m{"elsewhere": 1}})
	if f := k.next(); f.Type != "error" || f.Code != "bad_request" {
		t.Errorf("%+v", f)
	}
	k.send(m{"type": "slots", "queues": m{"mail": 1}})
	if j := k.next().Jobs[0]; j.ID != id {
		t.Errorf("%+v", j)
	}
}

// TestWhatIsNoRequestIsRefused: with what is wrong with it; and a name that the database refuses disturbs nobody.
func TestWhatIsNoRequestIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	many := m{}
	for i := range 1001 {
		many[strings.Repeat("q", 1+i%100)+string(rune('a'+i%26))+time.Duration(i).String()] = 0
	}
	for name, body := range map[string]m{
		"no queue":     {},
		"a name":       {"queues": m{" mail": 1}},
		"a NUL":        {"queues": m{"ma\x00il": 1}},
		"a long name":  {"queues": m{strings.Repeat("x", 129): 1}},
		"too many":     {"queues": m{"mail": 1001}},
		"all together": {"queues": m{"mail": 501, "files": 500}},
		"negative":     {"queues": m{"mail": -1}},
		"many queues":  {"queues": many},
		"no number":    {"queues": m{"mail": "1"}},
		"a list":       {"queues": []string{"mail"}},
		"wait":         {"queues": m{"mail": 1}, "wait": 61},
		"a worker":     {"queues": m{"mail": 1}, "worker": "x'y"},
		"no kind":      {"queues": m{"mail": 1}, "kinds": []string{}},
		"a pattern":    {"queues": m{"mail.*": 1}},
		"all queues":   {"queues": m{">": 1}},
		"all kinds":    {"queues": m{"mail": 1}, "kinds": []string{"*"}},
		"many held":    {"queues": m{"mail": 1}, "held": make([]string, 2001)},
	} {
		if status, a := s.call("POST", "/v1/work/take", body); status != 400 && status != 413 || a.Error == "" {
			t.Errorf("%s: %d %+v", name, status, a)
		}
	}
	if status, a := s.call("POST", "/v1/work/record", m{"ends": []m{}}); status != 400 {
		t.Errorf("%d %+v", status, a)
	}
	id := s.enqueue("mail", "welcome", "{}")
	if j, _ := s.one(m{"queues": m{"mail": 1}}); j.ID != id {
		t.Errorf("%+v", j)
	}
}

// TestTokensOfClientsSayWhatTheyMayWork: a client may take from the queues that its token names, over both transports, until it expires.
func TestTokensOfClientsSayWhatTheyMayWork(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef0123456789abcdef")
	s := newSite(t, func(c *server.Config) {
		a, err := web.NewJWT(web.JWTConfig{Secret: secret})
		if err != nil {
			t.Fatal(err)
		}
		c.Web = web.Config{Authorizer: a}
	})
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix(), "weir": m{"work": []string{"mail"}}}).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		token, path, body string
		want              int
	}{
		{"", "take", `{"queues": {"mail": 1}, "wait": 0}`, 401},
		{"", "record", `{"ends": [{"token": "x"}]}`, 401},
		{token, "take", `{"queues": {"mail": 1}, "wait": 0}`, 200},
		{token, "take", `{"queues": {"mail": 1, "files": 1}, "wait": 0}`, 403},
		{token, "record", `{"ends": [{"token": "x"}]}`, 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.url+"/v1/work/"+try.path, strings.NewReader(try.body))
		if err != nil {
			t.Fatal(err)
		}
		if try.token != "" {
			r.Header.Set("Authorization", "Bearer "+try.token)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != try.want {
			t.Errorf("%s %s: %d, want %d", try.path, try.body, response.StatusCode, try.want)
		}
	}
}

// TestAConnectionRenewsOnlyWhatItsWorkerHas: an attempt whose answer got lost, and that a session has no slot for when it opens, is not the session's: it ends with its lease, though
// the connection lasts.
func TestAConnectionRenewsOnlyWhatItsWorkerHas(t *testing.T) {
	t.Parallel()
	s := newSite(t, shortLease)
	lost := s.enqueue("mail", "welcome", "{}")
	_, a := s.one(m{"queues": m{"mail": 1}})
	k, _ := s.dial(m{"queues": m{"mail": 0}, "worker": a.Worker})
	pgtest.Until(t, "the job is for others", func() bool {
		k.send(m{"type": "ping"})
		k.next()
		return !strings.HasPrefix(s.state(lost), "running 1")
	})
}
