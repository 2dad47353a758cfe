package proof

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// requested is the answer to a request with a key.
type requested struct {
	IDs        []int64
	Duplicates []bool
	Repeated   bool
}

func request(t *testing.T, q querier, key int, jobs string) (requested, error) {
	rows, _ := q.Query(t.Context(), `SELECT ids, duplicates, repeated FROM weir._enqueue_request(lpad($1::int::text, 32, '0')::uuid, $2::text::jsonb)`, key, jobs)
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[requested])
}

func mustRequest(t *testing.T, q querier, key int, jobs string) requested {
	t.Helper()
	r, err := request(t, q, key, jobs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestARepeatedRequestIsAnsweredAlike: a request with a key that is repeated within a day enqueues nothing, and is answered as it was the first time, however its
// JSON is written, and whatever has become of its jobs. With other jobs it is refused. One that was refused or rolled back is as if it had never been sent.
func TestARepeatedRequestIsAnsweredAlike(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	plain := `{"queue": "q", "kind": "k", "args": {"a": 1, "b": [2, 3]}}`
	unique := `{"queue": "q", "kind": "u", "unique": {"key": "x"}}`
	flow := newFlow(t, conn, "f")
	once := fmt.Sprintf(`{"queue": "q", "kind": "o", "flow": %d, "once": "o"}`, flow)

	list := "[" + plain + "," + unique + "," + once + "," + once + "," + unique + "," + plain + "]"
	first := mustRequest(t, conn, 1, list)
	if ids := first.IDs; first.Repeated || len(ids) != 6 || ids[1] != ids[4] || ids[2] != ids[3] || ids[0] == ids[5] {
		t.Fatalf("%+v", first)
	}
	if want := []bool{false, false, false, true, true, false}; !slices.Equal(first.Duplicates, want) {
		t.Errorf("duplicates are %v, want %v", first.Duplicates, want)
	}
	jobs := func() int { return value[int](t, conn, `SELECT count(*) FROM weir.job`) }
	before := jobs()
	same := func(when string) {
		t.Helper()
		got := mustRequest(t, other, 1, `[{"args": {"b":[2,3],  "a":1}, "kind": "k", "queue": "q"},`+list[2+len(plain):])
		if !got.Repeated || !slices.Equal(got.IDs, first.IDs) || !slices.Equal(got.Duplicates, first.Duplicates) {
			t.Errorf("%s: %+v, want %+v", when, got, first)
		}
		if n := jobs(); n != before {
			t.Errorf("%s: %d jobs were logged", when, n-before)
		}
	}
	same("while they wait")
	exec(t, conn, `SELECT weir.cancel($1)`, first.IDs[1])
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	same("when they have ended or were cancelled")

	for what, jobs := range map[string]string{"another job": "[" + plain + "]", "another order": "[" + unique + "," + plain + list[2+len(plain)+len(unique):], "none": "[]"} {
		_, err := request(t, conn, 1, jobs)
		wantCode(t, "the key with "+what, err, "WR007")
	}
	if r := mustRequest(t, conn, 2, list); r.Repeated || r.IDs[0] == first.IDs[0] {
		t.Errorf("another key: %+v", r)
	}

	_, err := request(t, conn, 3, `[{"queue": "q", "kind": "k", "priority": 9}]`)
	wantCode(t, "a job that is refused", err, "22023")
	exec(t, conn, `BEGIN`)
	mustRequest(t, conn, 3, "["+plain+"]")
	exec(t, conn, `ROLLBACK`)
	if r := mustRequest(t, conn, 3, "["+plain+"]"); r.Repeated {
		t.Errorf("a request that was rolled back is repeated as %+v", r)
	}
	exec(t, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	_, err = request(t, conn, 4, list)
	wantCode(t, "in REPEATABLE READ", err, "WR004")
	exec(t, conn, `ROLLBACK`)

	// A day later.
	exec(t, conn, `UPDATE weir.request SET at = at - interval '1 day'`)
	if r := mustRequest(t, conn, 1, "["+plain+"]"); r.Repeated || len(r.IDs) != 1 {
		t.Errorf("after a day: %+v", r)
	}
	if r := mustRequest(t, conn, 1, "["+plain+"]"); !r.Repeated {
		t.Errorf("after a day, again: %+v", r)
	}
}

// TestRequestsOutliveTheirJobs: an answer is kept for a day, even if the log has been reclaimed meanwhile. Then its space is freed, by TRUNCATE, and before that only
// when requests take more than they may. Nobody waits for a transaction that has read the tables.
func TestRequestsOutliveTheirJobs(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	const job = `[{"queue": "q", "kind": "k"}]`
	first := mustRequest(t, conn, 1, job)
	mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
	exec(t, conn, `SELECT weir.set('completed_retention', '0'), weir.set('failed_retention', '0')`)
	exec(t, conn, `SELECT weir.set('retention_bytes', '64 MB')`)
	pgtest.Until(t, "the job is forgotten", func() bool {
		exec(t, conn, `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[1000]), array_fill('k'::text, ARRAY[1000]), array_fill(jsonb_build_object('pad', repeat('x', 2000)), ARRAY[1000]))`)
		mustComplete(t, conn, worker, claimAll(t, conn, worker, "q"))
		exec(t, conn, `SELECT weir._rotate()`)
		return value[int](t, conn, `SELECT count(*) FROM weir.job_info($1)`, first.IDs[0]) == 0
	})
	if r := mustRequest(t, conn, 1, job); !r.Repeated || r.IDs[0] != first.IDs[0] {
		t.Errorf("after the job was reclaimed: %+v, want %+v", r, first)
	}

	turn := func() string { return value[string](t, conn, `SELECT coalesce(weir._turn_requests(), '')`) }
	want := func(when, what string) {
		t.Helper()
		if got := turn(); got != what {
			t.Errorf("%s: %q, want %q", when, got, what)
		}
	}
	ages := func(by string) { exec(t, conn, `UPDATE weir.request SET at = at - $1::text::interval`, by) }
	want("at first", "")
	ages("1 day")
	want("after a day", "opened request 2")
	want("then", "")
	second := mustRequest(t, conn, 2, job)
	ages("23 hours 50 minutes")
	want("before the day is over", "")
	if r := mustRequest(t, conn, 2, job); !r.Repeated || r.IDs[0] != second.IDs[0] {
		t.Errorf("before the day is over: %+v, want %+v", r, second)
	}
	ages("10 minutes")
	reader := connect(t, url)
	exec(t, reader, `BEGIN`)
	exec(t, reader, `SELECT FROM weir.request`)
	want("while it is read", "")
	exec(t, reader, `COMMIT`)
	want("after the second day", "emptied request 1")
	want("then", "opened request 1")
	exec(t, conn, `INSERT INTO weir.request (key, body, at, ring, ids) SELECT gen_random_uuid(), gen_random_uuid(), now(), 1, array_fill(1::bigint, ARRAY[200]) FROM generate_series(1, 8000)`)
	want("when there are many", "emptied request 2")
	want("then", "opened request 2")
	if n := value[int](t, conn, `SELECT count(*) FROM weir.request`); n != 8000 {
		t.Errorf("%d rows are left, want the newest 8000", n)
	}
}

// TestARequestIsDoneOnceWhateverFails: requests with keys are sent several times at once, by sessions that are killed at random; each enqueues its jobs exactly once, and all
// answers to it are alike.
func TestARequestIsDoneOnceWhateverFails(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(newSeed(t), 0))
	url := pgtest.Database(t)
	conn := connect(t, url)
	pool := pgtest.Pool(t, url)
	const requests, senders, maxKills = 40, 6, 300
	var mu sync.Mutex
	answers := map[int][]int64{}
	var all sync.WaitGroup
	for range senders {
		order := random.Perm(requests)
		all.Go(func() {
			for _, key := range order {
				jobs, _ := json.Marshal(slices.Repeat([]map[string]any{{"queue": "q", "kind": "k", "args": map[string]int{"request": key}}}, 1+key%3))
				for r, err := request(t, pool, key, string(jobs)); ; r, err = request(t, pool, key, string(jobs)) {
					if err != nil {
						if t.Context().Err() != nil {
							return
						}
						continue // the session was killed: nobody knows whether before or after the commit
					}
					mu.Lock()
					if known := answers[key]; known == nil {
						answers[key] = r.IDs
					} else if !slices.Equal(known, r.IDs) {
						t.Errorf("request %d is answered %v and %v", key, known, r.IDs)
					}
					mu.Unlock()
					break
				}
			}
		})
	}
	done, kills := make(chan struct{}), 0
	go func() { all.Wait(); close(done) }()
	for working := true; working; {
		select {
		case <-done:
			working = false
		case <-time.After(time.Duration(random.IntN(4000)) * time.Microsecond):
			if kills == maxKills {
				continue
			}
			kills += value[int](t, conn, `SELECT count(*) FROM (SELECT pg_terminate_backend(a.pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' ORDER BY random() LIMIT 1) a) k`)
		}
	}
	for key := range requests {
		got := column[int64](t, conn, `SELECT id FROM weir.job WHERE args = jsonb_build_object('request', $1::int) ORDER BY id`, key)
		if want := slices.Sorted(slices.Values(answers[key])); !slices.Equal(got, want) || len(want) != 1+key%3 {
			t.Errorf("request %d has enqueued %v, and was answered %v", key, got, want)
		}
	}
	t.Logf("%d sessions were killed", kills)
}
