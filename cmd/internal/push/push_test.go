package push_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAJobIsPushedAndItsAnswerIsItsOutput: an endpoint gets the job, signed with each of its secrets as Standard Webhooks are, and what it answers is the job's output.
func TestAJobIsPushedAndItsAnswerIsItsOutput(t *testing.T) {
	t.Parallel()
	old := newSecret()
	oldFile := filepath.Join(t.TempDir(), "old")
	if err := os.WriteFile(oldFile, []byte(old+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newService(t, func(rw http.ResponseWriter, _ *http.Request, p pushed) { fmt.Fprintf(rw, `{"n": %d}`, p.Args.N) })
	r := newRig(t, "callback_url = \"https://hub.example.com/\"\n"+strings.Replace(s.of("mailer", "mail = 2", `headers = {Authorization = "Bearer x", Host = "elsewhere.example", X-Path = "env:PATH"}`), `"]`, `", "file:`+oldFile+`"]`, 1))
	id := r.enqueue("mail", "welcome", 1)[0]
	if got := r.until(id, "completed"); got.Output != `{"n": 1}` {
		t.Errorf("%+v", got)
	}
	p := s.requests()[0]
	for name, secret := range map[string]string{"the secret": s.secret, "the old secret": old} {
		if err := verify(secret, p.body, p.header); err != nil {
			t.Errorf("with %s: %v", name, err)
		}
	}
	if verify(newSecret(), p.body, p.header) == nil {
		t.Error("any secret is good")
	}
	if p.ID != id || p.Queue != "mail" || p.Kind != "welcome" || p.Attempt != 1 || p.Args.N != 1 || p.Token == "" || p.Callback != "https://hub.example.com/v1/push/mailer/callback" {
		t.Errorf("%s", p.body)
	}
	if p.header.Get("Content-Type") != "application/json" || p.header.Get("Authorization") != "Bearer x" || p.header.Get("X-Path") != os.Getenv("PATH") || p.Enqueued.IsZero() || p.header.Get("webhook-id") != p.webhookID() {
		t.Errorf("%v", p.header)
	}
	metrics := get(t, r.url+"/metrics")
	if want := `weir_push_requests_total{endpoint="mailer",result="completed"} 1`; !strings.Contains(metrics, want) {
		t.Errorf("the metrics lack %s", want)
	}
}

func get(t testing.TB, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestWhatAnEndpointAnswersDecidesWhatFollows: success completes a job; 410, or the header weir-final, fails it for good; 429 and 503 put it off, as long as they say, without using up the attempt; all
// else fails the attempt, with what the endpoint said.
func TestWhatAnEndpointAnswersDecidesWhatFollows(t *testing.T) {
	t.Parallel()
	header := func(name, value string, status int, body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set(name, value)
			rw.WriteHeader(status)
			_, _ = io.WriteString(rw, body)
		}
	}
	plain := func(status int, body string) http.HandlerFunc { return header("x", "y", status, body) }
	var elsewhere atomic.Int64
	other := newService(t, func(http.ResponseWriter, *http.Request, pushed) { elsewhere.Add(1) })
	answers := map[string]struct {
		answer http.HandlerFunc
		state  string
		error  string // part of it
		output string
	}{
		"200":           {plain(200, "sent"), "completed", "", "sent"},
		"201":           {plain(201, ""), "completed", "", ""},
		"204":           {plain(204, ""), "completed", "", ""},
		"not text":      {plain(200, "a\xff\x00b"), "completed", "", "a\uFFFD\uFFFDb"},
		"long":          {plain(200, strings.Repeat("x", 3<<20)), "completed", "", strings.Repeat("x", 1<<20)},
		"410":           {plain(410, "no such account"), "failed", "HTTP 410: no such account", ""},
		"final":         {header("Weir-Final", "true", 400, "no"), "failed", "HTTP 400: no", ""},
		"400":           {plain(400, "what?"), "scheduled", "HTTP 400: what?", ""},
		"500":           {plain(500, strings.Repeat("é", 5000)), "scheduled", "HTTP 500: ééé", ""},
		"silent 500":    {plain(500, ""), "scheduled", "HTTP 500 Internal Server Error", ""},
		"429":           {header("Retry-After", "3600", 429, "slow down"), "scheduled", "HTTP 429: slow down", ""},
		"503 until":     {header("Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), 503, "later"), "scheduled", "HTTP 503: later", ""},
		"503":           {plain(503, "down"), "scheduled", "HTTP 503: down", ""},
		"strange after": {header("Retry-After", "soon", 429, "x"), "scheduled", "HTTP 429: x", ""},
		"redirect":      {header("Location", other.server.URL, 302, ""), "scheduled", "HTTP 302 Found (redirects are not followed", ""},
		"redirect 307":  {header("Location", other.server.URL, 307, ""), "scheduled", "HTTP 307", ""},
		"hang up":       {func(rw http.ResponseWriter, _ *http.Request) { hangUp(t, rw, "") }, "scheduled", "did not answer", ""},
		"half": {func(rw http.ResponseWriter, _ *http.Request) {
			hangUp(t, rw, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		}, "scheduled", "did not answer", ""},
		"no HTTP": {func(rw http.ResponseWriter, _ *http.Request) { hangUp(t, rw, "hello\r\n\r\n") }, "scheduled", "did not answer", ""},
		"endless headers": {func(rw http.ResponseWriter, _ *http.Request) {
			hangUp(t, rw, "HTTP/1.1 200 OK\r\n"+strings.Repeat("x: "+strings.Repeat("y", 1000)+"\r\n", 1000))
		}, "scheduled", "did not answer", ""},
	}
	s := newService(t, func(rw http.ResponseWriter, q *http.Request, p pushed) { answers[p.Kind].answer(rw, q) })
	r := newRig(t, s.of("e", "q = 50"))
	ids := map[string]int64{}
	for kind := range answers {
		ids[kind] = r.enqueue("q", kind, 1)[0]
	}
	for kind, want := range answers {
		var got state // as it was then: it is tried again soon
		pgtest.Until(t, "the end of "+kind, func() bool {
			got = r.job(ids[kind])
			return got.State == want.state || got.State == "failed" || got.State == "completed"
		})
		if got.State != want.state || !strings.Contains(got.Error, want.error) || got.Output != want.output || len(got.Error) > 1200 {
			t.Errorf("%s: %.300v, want %.300v", kind, got, want)
		}
		if strings.Contains(got.Error, "of-the-endpoint") || strings.Contains(got.Error, s.secret) {
			t.Errorf("%s: the error contains a secret: %s", kind, got.Error)
		}
		switch kind {
		case "429", "503 until":
			if got.Attempt != 1 || got.RunAt == nil || time.Until(*got.RunAt) < 50*time.Minute || time.Until(*got.RunAt) > 61*time.Minute {
				t.Errorf("%s: %+v, want to be put off by an hour", kind, got)
			}
		default:
			if got.State == "scheduled" && (got.RunAt == nil || time.Until(*got.RunAt) > time.Minute) {
				t.Errorf("%s: %+v, want to be tried again soon", kind, got)
			}
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// hangUp writes to the connection of a request, and ends it.
func hangUp(t testing.TB, rw http.ResponseWriter, text string) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_, _ = io.WriteString(conn, text)
	_ = conn.Close()
}

// TestAnEndpointThatIsSlowIsNotWaitedForLongerThanItsTimeout: neither for the beginning of an answer, nor for its end; and an endpoint that does not exist is said to be so.
func TestAnEndpointThatIsSlowIsNotWaitedForLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	given := make(chan string, 10)
	s := newService(t, func(rw http.ResponseWriter, q *http.Request, p pushed) {
		if p.Kind == "trickles" {
			rw.WriteHeader(200)
			_ = http.NewResponseController(rw).Flush()
		}
		<-q.Context().Done()
		given <- p.Kind
	})
	gone := newService(t, nil)
	gone.server.Close()
	r := newRig(t, s.of("slow", "slow = 5", `timeout = "1s"`)+gone.of("gone", "gone = 1"))
	silent, trickles, nobody := r.enqueue("slow", "silent", 1)[0], r.enqueue("slow", "trickles", 1)[0], r.enqueue("gone", "k", 1)[0]
	for id, want := range map[int64]string{silent: "slow did not answer within 1s", trickles: "slow did not answer within 1s", nobody: "gone did not answer: dial tcp"} {
		if got := r.until(id, "scheduled"); !strings.Contains(got.Error, want) {
			t.Errorf("job %d: %+v, want %s", id, got, want)
		}
	}
	for range 2 {
		pgtest.Receive(t, given, "a request was given up")
	}
}

// TestACancelledJobIsGivenUp: its request ends, and the job is cancelled; so is one that was accepted, whose report comes too late.
func TestACancelledJobIsGivenUp(t *testing.T) {
	t.Parallel()
	began, over := make(chan pushed, 2), make(chan struct{})
	s := newService(t, func(rw http.ResponseWriter, q *http.Request, p pushed) {
		if p.Kind == "accepted" {
			rw.WriteHeader(http.StatusAccepted)
			began <- p
			return
		}
		began <- p
		<-q.Context().Done()
		close(over)
	})
	r := newRig(t, s.of("e", "q = 5"))
	r.enqueue("q", "running", 1)
	running := pgtest.Receive(t, began, "the job runs")
	r.enqueue("q", "accepted", 1)
	accepted := pgtest.Receive(t, began, "the job is accepted")
	for _, id := range []int64{running.ID, accepted.ID} {
		if _, err := r.pool.Exec(t.Context(), `SELECT weir.cancel($1)`, id); err != nil {
			t.Fatal(err)
		}
		r.until(id, "cancelled")
	}
	pgtest.Receive(t, over, "the request has ended")
	if status, answer := r.report(r.url, "e", s.secret, map[string]any{"token": accepted.Token, "output": "done"}); status != 200 || !strings.Contains(answer, `"recorded":false`) {
		t.Errorf("%d %s", status, answer)
	}
}

// TestAnEndpointGetsNoMoreJobsAtOnceThanItMay: and only of its queues and kinds.
func TestAnEndpointGetsNoMoreJobsAtOnceThanItMay(t *testing.T) {
	t.Parallel()
	s := newService(t, func(rw http.ResponseWriter, _ *http.Request, p pushed) {
		time.Sleep(5 * time.Millisecond) // as work does
		if p.Queue != "a" && p.Queue != "b" || p.Kind != "k" {
			t.Errorf("it got %s", p.body)
		}
	})
	r := newRig(t, s.of("e", "a = 3, b = 1", `kinds = ["k"]`))
	ids := append(r.enqueue("a", "k", 60), r.enqueue("b", "k", 20)...)
	r.enqueue("a", "other", 3)
	r.enqueue("c", "k", 3)
	for _, id := range ids {
		r.until(id, "completed")
	}
	if s.most > 4 || len(s.requests()) != len(ids) {
		t.Errorf("%d requests at once, %d in all; want at most 4, and %d", s.most, len(s.requests()), len(ids))
	}
}

// TestJobsGoOnAtOtherHubs: while hubs stop and start, and the database's sessions are killed, every job is completed, each by the answer to its last request; a hub that stops finishes what it has sent.
func TestJobsGoOnAtOtherHubs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ran := map[int64]int{}
	s := newService(t, func(rw http.ResponseWriter, _ *http.Request, p pushed) {
		time.Sleep(20 * time.Millisecond)
		mu.Lock()
		ran[p.ID]++
		mu.Unlock()
	})
	r := newRig(t, s.of("e", "q = 10"))
	second := r.start()
	ids := r.enqueue("q", "k", 300)
	done := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		return len(ran)
	}
	pgtest.Until(t, "a third has run", func() bool { return done() > 100 })
	r.stop(r.hub)
	third := r.start()
	pgtest.Until(t, "two thirds have run", func() bool { return done() > 200 })
	for range 5 {
		if _, err := r.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'weir hub%'`); err != nil {
			t.Fatal(err)
		}
	}
	r.stop(second)
	for _, id := range ids {
		r.until(id, "completed")
	}
	_ = third
	mu.Lock()
	defer mu.Unlock()
	twice := 0
	for _, n := range ran {
		if n > 1 {
			twice++
		}
	}
	t.Logf("%d jobs were pushed more than once", twice)
}

// TestARequestUnderWayIsFinishedWhenItsHubStops: the answer is recorded.
func TestARequestUnderWayIsFinishedWhenItsHubStops(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan struct{}), make(chan struct{})
	s := newService(t, func(rw http.ResponseWriter, _ *http.Request, _ pushed) {
		close(began)
		<-goOn
		fmt.Fprint(rw, "done")
	})
	r := newRig(t, s.of("e", "q = 10"))
	id := r.enqueue("q", "k", 1)[0]
	pgtest.Receive(t, began, "the job runs")
	stopped := make(chan struct{})
	go func() {
		r.stop(r.hub)
		close(stopped)
	}()
	pgtest.Until(t, "the hub is stopping", func() bool {
		response, err := http.Get(r.url + "/readyz")
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable
	})
	close(goOn)
	pgtest.Receive(t, stopped, "the hub has stopped")
	if got := r.job(id); got.State != "completed" || got.Output != "done" || len(s.requests()) != 1 {
		t.Errorf("%+v after %d requests", got, len(s.requests()))
	}
}

// TestOneStuckEndpointDelaysNoOther: nor does one that does not answer keep the hub from stopping.
func TestOneStuckEndpointDelaysNoOther(t *testing.T) {
	t.Parallel()
	stuck := newService(t, func(_ http.ResponseWriter, q *http.Request, _ pushed) { <-q.Context().Done() })
	good := newService(t, func(http.ResponseWriter, *http.Request, pushed) {})
	r := newRig(t, stuck.of("stuck", "stuck = 20")+good.of("good", "good = 2"))
	held := r.enqueue("stuck", "k", 50)
	pgtest.Until(t, "twenty jobs are stuck", func() bool { return len(stuck.requests()) == 20 })
	for _, id := range r.enqueue("good", "k", 20) {
		r.until(id, "completed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	if err := r.hub.Stop(ctx); err != nil {
		t.Error(err)
	}
	for _, id := range held {
		if s := r.job(id); s.State != "available" && s.State != "scheduled" || s.Attempt != 1 {
			t.Errorf("job %d is %+v after its hub has stopped, want it left to others", id, s)
		}
	}
}
