package jobs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestARequestWithAKeyIsDoneOnce: repeated with the same key, at any hub and with a newer token, it is answered alike and enqueues nothing; with other jobs it is refused.
// Keys of different users have nothing to do with each other.
func TestARequestWithAKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	const jobs = `[{"queue": "q", "kind": "k"}, {"queue": "q", "kind": "u", "unique": {"key": "x"}}, {"queue": "q", "kind": "u", "unique": {"key": "x"}}]`
	first := r.call(0, "POST", "/v1/jobs", token(t, "ada", "q"), jobs, "Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
	first.want(t, "the first time", 200)
	if first.Header.Get("Idempotent-Replayed") != "" || !first.Jobs[2].Duplicate {
		t.Errorf("%+v", first)
	}
	if _, err := r.pool.Exec(t.Context(), `SELECT weir.cancel(id) FROM unnest($1::bigint[]) id`, []int64{first.Jobs[0].ID, first.Jobs[1].ID}); err != nil {
		t.Fatal(err)
	}
	again := r.call(1, "POST", "/v1/jobs", token(t, "ada", "q"), jobs, "Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
	again.want(t, "again", 200)
	if again.Body != first.Body || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("again: %s, want %s", again.Body, first.Body)
	}
	r.call(1, "POST", "/v1/jobs", token(t, "ada", "q"), `{"queue": "q", "kind": "k"}`, "Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324").want(t, "with other jobs", 422, `"key_reused"`, "new key")
	r.call(0, "POST", "/v1/jobs", token(t, "ada", "other"), jobs, "Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324").want(t, "with a token that does not allow it", 403)
	for who, token := range map[string]string{"another user": token(t, "bob", "q"), "a token without a subject": token(t, "", "q"), "another token without a subject": token(t, "", "q")} {
		if a := r.call(0, "POST", "/v1/jobs", token, jobs, "Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324"); a.Status != 200 || a.Body == first.Body || a.Header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%s: %d %s", who, a.Status, a.Body)
		}
		if a := r.call(1, "POST", "/v1/jobs", token, jobs, "Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324"); a.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s, again: %d %s", who, a.Status, a.Body)
		}
	}
	// What was refused can be mended and sent again with the same key.
	r.call(0, "POST", "/v1/jobs", token(t, "ada", "q"), `{"queue": "q", "kind": "k", "priority": 7}`, "Idempotency-Key", "mended").want(t, "a bad job", 400)
	r.call(0, "POST", "/v1/jobs", token(t, "ada", "q"), `{"queue": "q", "kind": "k", "priority": 1}`, "Idempotency-Key", "mended").want(t, "mended", 200)
}

// TestKeysAreReadAsTheDraftAndAsClientsWriteThem: in quotation marks or not.
func TestKeysAreReadAsTheDraftAndAsClientsWriteThem(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	ada := token(t, "ada", "q")
	ids := map[string]int64{}
	for header, key := range map[string]string{
		`a`: "a", `"a"`: "a", ` "a" `: "a", `"a\"b\\"`: `a"b\`, `a"b\`: `a"b\`, strings.Repeat("k", 255): strings.Repeat("k", 255), `"` + strings.Repeat("k", 255) + `"`: strings.Repeat("k", 255),
		``: "", `""`: "", `"a`: "", `a b`: "", `"a b"`: "", `"a"b`: "", `"a";x=1`: "", `"a\b"`: "", `"\`: "", "\u00e9": "", strings.Repeat("k", 256): "",
	} {
		a := r.call(0, "POST", "/v1/jobs", ada, `{"queue": "q", "kind": "k"}`, "Idempotency-Key", header)
		switch {
		case key == "":
			a.want(t, fmt.Sprintf("key %q", header), 400, "Idempotency-Key")
		case a.Status != 200:
			t.Errorf("key %q: %d %s", header, a.Status, a.Body)
		case ids[key] == 0:
			ids[key] = a.Jobs[0].ID
		case ids[key] != a.Jobs[0].ID:
			t.Errorf("key %q is another than %q", header, key)
		}
	}
	r.call(0, "POST", "/v1/jobs", ada, `{"queue": "q", "kind": "k"}`, "Idempotency-Key", "a", "Idempotency-Key", "a").want(t, "two keys", 400)
	preflight := r.call(0, "OPTIONS", "/v1/jobs", "", "")
	if !strings.Contains(preflight.Header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
		t.Errorf("pages may not send the key: %v", preflight.Header)
	}
}

// TestARequestIsDoneOnceAtAnyHubWhateverFails: clients send the same requests at the same time to two hubs, give up at random before they get the answer, and send them again;
// meanwhile the hubs' sessions are killed, and one hub stops. Each request has enqueued its jobs exactly once, and all answers to it are the same bytes.
func TestARequestIsDoneOnceAtAnyHubWhateverFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	third := r.start()
	const requests, clients, maxKills = 30, 8, 100
	ada := token(t, "ada", "q")
	var mu sync.Mutex
	answers, gaveUp := map[int]answer{}, 0
	var all sync.WaitGroup
	for n := range clients {
		order, random := rand.Perm(requests), rand.New(rand.NewPCG(uint64(n), rand.Uint64()))
		all.Go(func() {
			for _, key := range order {
				jobs := fmt.Sprintf(`{"queue": "q", "kind": "k", "args": {"request": %d}}`, key)
				for tries := 0; t.Context().Err() == nil; tries++ {
					ctx, cancel := context.WithCancel(t.Context())
					if tries < 3 { // gives up soon, and then has patience
						time.AfterFunc(time.Duration(random.IntN(8000))*time.Microsecond, cancel)
					}
					a, err := send(ctx, r.hubs[random.IntN(len(r.hubs))], "POST", "/v1/jobs", ada, "["+jobs+","+jobs+"]", "Idempotency-Key", fmt.Sprint("request-", key))
					cancel()
					mu.Lock()
					known, ok := answers[key]
					switch {
					case err != nil:
						gaveUp++
					case a.Status != http.StatusOK:
						if a.Status != http.StatusServiceUnavailable {
							t.Errorf("request %d: %d %s", key, a.Status, a.Body)
						}
					case !ok:
						answers[key] = a
					case a.Body != known.Body:
						t.Errorf("request %d is answered %s and %s", key, a.Body, known.Body)
					}
					mu.Unlock()
					if err == nil && a.Status == http.StatusOK {
						break
					}
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for kills, working := 0, true; working; {
		select {
		case <-done:
			working = false
		case <-time.After(time.Duration(rand.IntN(5000)) * time.Microsecond):
			if kills < maxKills {
				kills += r.count(`SELECT count(*) FROM (SELECT pg_terminate_backend(a.pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir hub jobs' ORDER BY random() LIMIT 1) a) k`)
			}
			if kills == maxKills/2 {
				ctx, cancel := context.WithTimeout(t.Context(), generous)
				if err := third.Stop(ctx); err != nil {
					t.Error(err)
				}
				cancel()
			}
		}
	}
	for key := range requests {
		if n := r.count(`SELECT count(*) FROM weir.job WHERE args = jsonb_build_object('request', $1::int)`, key); n != 2 || len(answers[key].Jobs) != 2 {
			t.Errorf("request %d has enqueued %d jobs, and was answered %s", key, n, answers[key].Body)
		}
	}
	t.Logf("%d answers were not waited for", gaveUp)
}

// TestAnonymousClientsShareTheirKeys: without tokens, nothing tells clients apart.
func TestAnonymousClientsShareTheirKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.start(func(c *web.Config) { c.Authorizer, c.Anonymous = nil, true })
	first := r.call(0, "POST", "/v1/jobs", "", `{"queue": "q", "kind": "k"}`, "Idempotency-Key", "k")
	if again := r.call(0, "POST", "/v1/jobs", "", `{"queue": "q", "kind": "k"}`, "Idempotency-Key", "k"); again.Status != 200 || again.Body != first.Body {
		t.Errorf("%d %s, want %s", again.Status, again.Body, first.Body)
	}
}

// TestAPoolerChangesNothing: a hub whose sessions are a pooler's, in transaction mode, does the same.
func TestAPoolerChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.through = pgtest.Bouncer(t, r.database)
	r.start()
	all := token(t, "ada", ">")
	const jobs = `[{"queue": "q", "kind": "k", "run_at": "2099-01-01T00:00:00"}, {"queue": "q", "kind": "u", "unique": {"key": "x"}}]`
	first := r.call(0, "POST", "/v1/jobs", all, jobs, "Idempotency-Key", "k")
	first.want(t, "the first time", 200)
	for range 20 {
		if again := r.call(0, "POST", "/v1/jobs", all, jobs, "Idempotency-Key", "k"); again.Body != first.Body {
			t.Fatalf("again: %s, want %s", again.Body, first.Body)
		}
	}
	if a := r.call(0, "GET", fmt.Sprintf("/v1/jobs/%d", first.Jobs[0].ID), all, ""); a.RunAt != "2099-01-01T00:00:00+00:00" {
		t.Errorf("%s", a.Body)
	}
}

// TestRequestsWithKeysShareTransactions: those of one job each that come at the same time. Each is done once, also if it is repeated among them; one that is refused, or whose key is in use, does no harm to the others.
func TestRequestsWithKeysShareTransactions(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	all := token(t, "ada", ">")
	const requests = 200
	var mu sync.Mutex
	answers := map[int][]int64{}
	r.gathered(requests, func(n int) {
		job := n / 2 * 2 // each request is sent twice
		body, want := fmt.Sprintf(`{"queue": "q", "kind": "k", "args": {"n": %d}}`, job), 200
		if job%50 == 8 {
			body, want = `{"queue": "q", "kind": "k", "args": [1]}`, 400
		}
		a, err := send(t.Context(), r.hubs[0], "POST", "/v1/jobs", all, body, "Idempotency-Key", fmt.Sprint("key-", job))
		if err != nil || a.Status != want {
			t.Errorf("request %d: %d %s %v", n, a.Status, a.Body, err)
		} else if want == 200 {
			if r.count(`SELECT (args ->> 'n')::int FROM weir.job_info($1)`, a.Jobs[0].ID) != job {
				t.Errorf("request %d is answered with another's job", n)
			}
			mu.Lock()
			answers[job] = append(answers[job], a.Jobs[0].ID)
			mu.Unlock()
		}
	})
	for job, ids := range answers {
		if len(ids) != 2 || ids[0] != ids[1] {
			t.Errorf("the request for job %d, sent twice, is answered with %v", job, ids)
		}
	}
	jobs := r.count(`SELECT count(*) FROM weir.job`)
	if n := r.count(`SELECT count(DISTINCT xid::text) FROM weir.job`); jobs != len(answers) || n >= jobs*9/10 {
		t.Errorf("%d requests enqueued %d jobs in %d transactions", len(answers), jobs, n)
	}
}
