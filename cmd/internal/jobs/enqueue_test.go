package jobs_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsAreEnqueuedAndFoundOverHTTP: one job, or a list, with all its fields; the answer says what has become of each, in their order. A job can be looked up, and cancelled.
func TestJobsAreEnqueuedAndFoundOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	all := token(t, "ada", ">")
	one := r.call(0, "POST", "/v1/jobs", all, `{"queue": "mail", "kind": "welcome", "args": {"account": 7, "big": 12345678901234567890123}, "priority": 1, "meta": {"from": "test"}, "key": "acme", "max_attempts": 3}`)
	one.want(t, "one job", 200)
	if len(one.Jobs) != 1 || one.Jobs[0].Duplicate {
		t.Fatalf("%+v", one)
	}
	path := fmt.Sprintf("/v1/jobs/%d", one.Jobs[0].ID)
	found := r.call(0, "GET", path, all, "")
	found.want(t, "the job", 200, `"queue":"mail"`, `"key":"acme"`, `12345678901234567890123`, `"from":"test"`, `"max_attempts":3`)
	if found.ID != one.Jobs[0].ID || found.State != "available" || found.Kind != "welcome" || found.Priority != 1 {
		t.Errorf("%+v", found)
	}
	if a := r.call(0, "POST", path+"/cancel", all, ""); a.Status != 200 || a.State != "cancelled" || !a.Canceled || a.ID != found.ID {
		t.Errorf("cancel: %+v", a)
	}
	if a := r.call(0, "POST", path+"/cancel", all, ""); a.Status != 200 || a.State != "cancelled" {
		t.Errorf("cancel again: %+v", a)
	}
	if a := r.call(0, "GET", path, all, ""); a.State != "cancelled" {
		t.Errorf("after cancelling: %+v", a)
	}

	list := r.call(0, "POST", "/v1/jobs", all, `[
		{"queue": "a", "kind": "k"},
		{"queue": "b", "kind": "u", "unique": {"key": "x", "within": "1 hour"}},
		{"queue": "b", "kind": "other", "unique": {"key": "x", "within": "1 hour"}},
		{"queue": "a", "kind": "later", "run_at": "2099-01-01T00:00:00"},
		{"queue": "a", "kind": "later", "run_at": "2099-01-01T00:00:00+02:00"}]`)
	list.want(t, "a list", 200)
	if j := list.Jobs; len(j) != 5 || j[0].Duplicate || j[1].Duplicate || !j[2].Duplicate || j[2].ID != j[1].ID || j[3].Duplicate {
		t.Fatalf("%+v", list)
	}
	for i, at := range map[int]string{3: "2099-01-01T00:00:00+00:00", 4: "2098-12-31T22:00:00+00:00"} { // a time without a zone is in UTC
		if a := r.call(0, "GET", fmt.Sprintf("/v1/jobs/%d", list.Jobs[i].ID), all, ""); a.RunAt != at || a.State != "scheduled" {
			t.Errorf("scheduled: %s %s, want %s", a.State, a.RunAt, at)
		}
	}
}

// TestAJobThatRunsIsToldToStop: cancelling a running job says that it was requested.
func TestAJobThatRunsIsToldToStop(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	all := token(t, "ada", ">")
	id := r.call(0, "POST", "/v1/jobs", all, `{"queue": "q", "kind": "k"}`).Jobs[0].ID
	worker := r.count(`SELECT weir.start('w', '{q}')`)
	if n := r.count(`SELECT count(*) FROM weir.take($1, held => '{}')`, worker); n != 1 {
		t.Fatalf("%d jobs were taken", n)
	}
	a := r.call(0, "POST", fmt.Sprintf("/v1/jobs/%d/cancel", id), all, "")
	if a.Status != 200 || a.State != "running" || !a.Canceled {
		t.Errorf("%+v", a)
	}
}

// TestATokenEnqueuesOnlyIntoItsQueues: whatever a body looks like, nothing is enqueued into a queue that the token does not allow, nor any other job of the request.
func TestATokenEnqueuesOnlyIntoItsQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	mine := token(t, "ada", "mine", "team.*")
	for body, status := range map[string]int{
		`{"queue": "mine", "kind": "k"}`:                                        200,
		`[{"queue": "mine", "kind": "k"}, {"queue": "team.a", "kind": "k"}]`:    200,
		`{"queue": "yours", "kind": "k"}`:                                       403,
		`[{"queue": "mine", "kind": "k"}, {"queue": "yours", "kind": "k"}]`:     403,
		`{"queue": "mine", "queue": "yours", "kind": "k"}`:                      403,
		`{"queue": "yours", "queue": "mine", "kind": "k"}`:                      200, // the last one counts, here and in the database
		`{"queue": "yours", "Queue": "mine", "kind": "k"}`:                      403,
		`{"queue": "mine", "Queue": "yours", "kind": "k"}`:                      400,
		`{"queue": "your\u0073", "kind": "k"}`:                                  403,
		`{"queue": "team.a.b", "kind": "k"}`:                                    403,
		`{"queue": "team.*", "kind": "k"}`:                                      200, // a name, here
		`{"queue": "mine\ud800", "kind": "k"}`:                                  403,
		"{\"queue\": \"mine\xff\", \"kind\": \"k\"}":                            403,
		`{"queue": "mine ", "kind": "k"}`:                                       403,
		`{"queue": "mine", "kind": "k", "unique": {"key": "x", "queue": "q"}}`:  400,
		`{"queue": ["mine"], "kind": "k"}`:                                      400,
		`{"queue": {"queue": "mine"}, "kind": "k", "args": {"queue": "yours"}}`: 400,
	} {
		if a := r.call(0, "POST", "/v1/jobs", mine, body); a.Status != status {
			t.Errorf("%s: %d %s, want %d", body, a.Status, a.Body, status)
		}
	}
	if n := r.count(`SELECT count(*) FROM weir.job j JOIN weir.queue q ON q.id = (j.lane >> 39)::integer WHERE q.name NOT IN ('mine', 'team.a', 'team.*')`); n != 0 {
		t.Errorf("%d jobs are in foreign queues", n)
	}
	if n := r.count(`SELECT count(*) FROM weir.job`); n != 5 {
		t.Errorf("%d jobs are there, want 5", n)
	}
}

// TestRequestsShareTransactions: those of one job each that come at the same time. Each gets the id of its own job; one that is refused, or whose client gives up, does no harm to the others.
func TestRequestsShareTransactions(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	all := token(t, "ada", ">")
	const requests = 300
	r.gathered(requests, func(n int) {
		body, want := fmt.Sprintf(`{"queue": "q", "kind": "k", "args": {"n": %d}}`, n), 200
		switch {
		case n%50 == 7:
			body, want = `{"queue": "q", "kind": "k", "args": [1]}`, 400
		case n%50 == 8:
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, _ = send(ctx, r.hubs[0], "POST", "/v1/jobs", all, body)
			return
		}
		a, err := send(t.Context(), r.hubs[0], "POST", "/v1/jobs", all, body)
		if err != nil || a.Status != want {
			t.Errorf("request %d: %d %s %v", n, a.Status, a.Body, err)
		} else if want == 200 && r.count(`SELECT (args ->> 'n')::int FROM weir.job_info($1)`, a.Jobs[0].ID) != n {
			t.Errorf("request %d is answered with another's job", n)
		}
	})
	if n := r.count(`SELECT count(DISTINCT xid::text) FROM weir.job`); n >= requests*9/10 {
		t.Errorf("%d requests had %d transactions", requests, n)
	}
}

// TestAForeignJobIsUnknown: what a token may not see is answered like what does not exist, and is not cancelled.
func TestAForeignJobIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	id := r.call(0, "POST", "/v1/jobs", token(t, "bob", "theirs"), `{"queue": "theirs", "kind": "k"}`).Jobs[0].ID
	mine := token(t, "ada", "mine")
	for _, try := range []struct{ method, suffix string }{{"GET", ""}, {"POST", "/cancel"}} {
		for who, status := range map[string]int{"": 401, "nonsense": 401, token(t, "eve"): 403, mine: 404} {
			foreign := r.call(0, try.method, fmt.Sprintf("/v1/jobs/%d%s", id, try.suffix), who, "")
			none := r.call(0, try.method, fmt.Sprintf("/v1/jobs/%d%s", id+1, try.suffix), who, "")
			if foreign.Status != status || none.Status != status || strings.ReplaceAll(none.Body, fmt.Sprint(id+1), fmt.Sprint(id)) != foreign.Body {
				t.Errorf("%s: a foreign job: %d %s; none: %d %s; want %d", try.method, foreign.Status, foreign.Body, none.Status, none.Body, status)
			}
		}
		for _, name := range []string{"0", "-1", "x", "9223372036854775808", "1.5", "%00", "wait", ""} {
			if a, err := send(t.Context(), r.hubs[0], try.method, "/v1/jobs/"+name+try.suffix, mine, ""); err != nil || a.Status != 404 && (name != "wait" || try.method != "GET") {
				t.Errorf("%s %q: %d %s %v", try.method, name, a.Status, a.Body, err)
			}
		}
	}
	if n := r.count(`SELECT count(*) FROM weir.job_info($1) WHERE cancel_requested`, id); n != 0 {
		t.Error("the foreign job was cancelled")
	}
}

// TestBadJobsAreRefusedAndSayWhy: a request with a job that the database does not accept enqueues nothing, and the answer says which it is and what is wrong.
func TestBadJobsAreRefusedAndSayWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	all := token(t, "ada", ">")
	good := `{"queue": "q", "kind": "k"}`
	for _, try := range []struct {
		body   string
		status int
		says   string
	}{
		{``, 400, "the body is empty"},
		{`[]`, 400, "no jobs"},
		{`7`, 400, "wrong JSON type"},
		{`"x"`, 400, "wrong JSON type"},
		{`null`, 400, "names no queue"},
		{`[` + good + `, null]`, 400, "job 2 of 2 names no queue"},
		{`[` + good + `, 7]`, 400, "wrong JSON type"},
		{good + good, 400, "more than one JSON value"},
		{`[` + good + `] x`, 400, "more than one JSON value"},
		{`[` + good, 400, "does not end"},
		{`[` + good + `,]`, 400, "not valid JSON"},
		{`{"queue": "q", "kind": "k"`, 400, "not a job"},
		{`[` + good + `, {"kind": "k"}]`, 400, "job 2 of 2 names no queue"},
		{`[` + good + `, {"queue": ""}]`, 400, "job 2 of 2: queue must be"},
		{`[` + good + `, {"queue": null}]`, 400, "job 2 of 2: queue must be"},
		{`[` + good + `, {"queue": "q"}]`, 400, "kind"},
		{`[` + good + `, {"queue": "q", "kind": "k", "priority": 5}]`, 400, "unknown priority 5"},
		{`[` + good + `, {"queue": "q", "kind": "k", "priority": "high"}]`, 400, "job 2 of 2: priority must be a whole number"},
		{`[` + good + `, {"queue": "q", "kind": "k", "run_at": "soon"}]`, 400, `job 2 of 2: run_at must be a time as RFC 3339 has it, such as 2026-11-27T08:00:00Z, got "soon"`},
		{`[` + good + `, {"queue": "q", "kind": "k", "run_at": "tomorrow"}]`, 400, `got "tomorrow"`},
		{`[` + good + `, {"queue": "q", "kind": "k", "run_at": "infinity"}]`, 400, "RFC 3339"},
		{`[` + good + `, {"queue": "q", "kind": "k", "run_at": "2026-11-27"}]`, 400, "RFC 3339"},
		{`[` + good + `, {"queue": "q", "kind": "k", "run_at": 1795000000}]`, 400, "RFC 3339"},
		{`[` + good + `, {"queue": "q", "kind": "k", "colour": 1}]`, 400, "unknown key"},
		{`[` + good + `, {"queue": "q", "kind": "k", "args": [1]}]`, 400, "args"},
		{`[` + good + `, {"queue": "q", "kind": "k", "args": {"x": "\u0000"}}]`, 400, ""},
		{`[` + good + `, {"queue": "q", "kind": "k", "args": {"x": "\ud800"}}]`, 400, ""},
		{"[" + good + ", {\"queue\": \"q\", \"kind\": \"k\", \"args\": {\"x\": \"\xff\"}}]", 400, ""},
		{`[` + good + `, {"queue": "q", "kind": "k", "args": {"x": 1e999999}}]`, 400, ""},
		{`[` + good + `, {"queue": "q", "kind": "k", "args": {"x": "` + strings.Repeat("x", 1<<20) + `"}}]`, 400, "args"},
		{`[` + good + `, {"queue": "q", "kind": "k", "unique": {"until": "never"}}]`, 400, "until must be"},
		{`[` + good + `, {"queue": "q", "kind": "k", "flow": 12}]`, 400, "flow"},
		{`{"queue": "q"}`, 400, "kind"}, // as the only one, too
		{`{"queue": "q", "kind": "k", "priority": 5}`, 400, "unknown priority 5"},
		{`{"queue": "q", "kind": "k", "priority": "high"}`, 400, "job 1 of 1: priority must be a whole number"},
		{`{"queue": "q", "kind": "k", "args": [1]}`, 400, "args"},
		{`{"queue": "q", "kind": "k", "args": {"x": "\u0000"}}`, 400, ""},
		{`{"queue": "q", "kind": "k", "flow": 12}`, 400, "flow"},
		{`{"queue": "q", "kind": "k", "colour": 1}`, 400, "unknown key"},
		{`[` + good + strings.Repeat(`,`+good, 1000) + `]`, 413, "up to 1000"},
		{`[` + good + strings.Repeat(`,{}`, 1_000_000) + `]`, 413, "up to 1000"},
		{`{"queue": "q", "kind": "k", "args": {"x": "` + strings.Repeat("x", 5<<20) + `"}}`, 413, "4194304 bytes"},
	} {
		if a := r.call(0, "POST", "/v1/jobs", all, try.body); a.Status != try.status || !strings.Contains(a.Error, try.says) || strings.HasPrefix(a.Error, "weir:") || a.Code == "" {
			t.Errorf("%.100s: %d %s, want %d and %q", try.body, a.Status, a.Body, try.status, try.says)
		}
	}
	if a := r.call(0, "POST", "/v1/jobs", all, `{"queue": "q", "kind": "k", "args": {"a": "\u0000"}}`); a.Status != 400 || !strings.Contains(a.Body, "the character NUL") {
		t.Errorf("NUL: %d %s, want what to do about it", a.Status, a.Body)
	}
	if n := r.count(`SELECT count(*) FROM weir.job`); n != 0 {
		t.Errorf("%d jobs were enqueued", n)
	}
	if a := r.call(0, "POST", "/v1/jobs", all, `[`+good+strings.Repeat(`,`+good, 999)+`]`); a.Status != 200 || len(a.Jobs) != 1000 {
		t.Errorf("a thousand jobs: %d with %d", a.Status, len(a.Jobs))
	}
	if a := r.call(0, "POST", "/v1/jobs", all, `{"queue": "q", "kind": "k", "args": {"x": "`+strings.Repeat("x", 1<<20-20)+`"}}`); a.Status != 200 {
		t.Errorf("the largest job: %d %s", a.Status, a.Body)
	}
}

// TestAFlowThatHasEndedTakesNoJobs: that is a conflict, which repeating does not change.
func TestAFlowThatHasEndedTakesNoJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	var flow int64
	if err := r.pool.QueryRow(t.Context(), `SELECT weir.flow('f')`).Scan(&flow); err != nil {
		t.Fatal(err)
	}
	job := fmt.Sprintf(`{"queue": "q", "kind": "k", "flow": %d, "once": "x"}`, flow)
	first := r.call(0, "POST", "/v1/jobs", token(t, "ada", "q"), job)
	if a := r.call(0, "POST", "/v1/jobs", token(t, "ada", "q"), job); a.Status != 200 || !a.Jobs[0].Duplicate || a.Jobs[0].ID != first.Jobs[0].ID {
		t.Errorf("once more: %+v, want a duplicate of %+v", a, first)
	}
	if err := r.pool.QueryRow(t.Context(), `SELECT f FROM weir.flow('empty') f CROSS JOIN LATERAL weir.seal(f)`).Scan(&flow); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "the flow has ended", func() bool {
		if _, err := r.pool.Exec(t.Context(), `CALL weir.chores()`); err != nil {
			t.Fatal(err)
		}
		return r.count(`SELECT count(*) FROM weir.flow_info($1) WHERE finished_at IS NOT NULL`, flow) == 1
	})
	r.call(0, "POST", "/v1/jobs", token(t, "ada", "q"), fmt.Sprintf(`{"queue": "q", "kind": "k", "flow": %d}`, flow)).want(t, "a job for it", 409, `"conflict"`)
}

// TestStrangersEnqueueNothingAndAreNotRead: a client that may not enqueue at all, or whose key is not valid, is refused before its body has arrived.
func TestStrangersEnqueueNothingAndAreNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for _, try := range []struct {
		token, header string
		status        int
	}{{"", "", 401}, {"nonsense", "", 401}, {token(t, "eve"), "", 403}, {token(t, "ada", "q"), "Idempotency-Key: \r\n", 400}} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.hubs[0], "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(generous))
		if _, err := io.WriteString(conn, "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\nAuthorization: Bearer "+try.token+"\r\n"+try.header+"\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != try.status {
			t.Errorf("status %d, want %d", response.StatusCode, try.status)
		}
	}
}

// TestATokenForAnotherDatabaseEnqueuesNothing: nor does it see or cancel jobs, whatever queues it names. Where there are several databases, one that names none is for none.
func TestATokenForAnotherDatabaseEnqueuesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.start(func(c *web.Config) { c.Databases, c.Several = func() []string { return []string{"app"} }, true })
	own := signed(t, jwt.MapClaims{"weir": map[string]any{"enqueue": []string{"mail"}, "databases": []string{"app"}}})
	a := r.call(0, "POST", "/v1/jobs", own, `{"queue": "mail", "kind": "welcome"}`)
	a.want(t, "a job", 200)
	path := fmt.Sprint("/v1/jobs/", a.Jobs[0].ID)
	for what, foreign := range map[string]string{
		"another's": signed(t, jwt.MapClaims{"weir": map[string]any{"enqueue": []string{"mail"}, "databases": []string{"other"}}}),
		"nobody's":  token(t, "", "mail"),
	} {
		const refusal = "the token is not for this database"
		r.call(0, "POST", "/v1/jobs", foreign, `{"queue": "mail", "kind": "welcome"}`).want(t, "a job with "+what+" token", 403, refusal)
		r.call(0, "GET", path, foreign, "").want(t, "a look with "+what+" token", 403, refusal)
		r.call(0, "POST", path+"/cancel", foreign, "").want(t, "a cancellation with "+what+" token", 403, refusal)
	}
	if n := r.count(`SELECT count(*) FROM weir.job`); n != 1 {
		t.Errorf("there are %d jobs, want one", n)
	}
	r.call(0, "POST", path+"/cancel", own, "").want(t, "the job's cancellation", 200)
}
