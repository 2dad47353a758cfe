package push_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestEveryPushedJobIsDoneWhateverFails: an endpoint answers at random, at once or later, well, badly or not at all, and reports to any hub; meanwhile hubs are killed and started again, and the database's
// sessions are killed. In the end every job is completed, with an output that the endpoint gave for this very job and attempt.
func TestEveryPushedJobIsDoneWhateverFails(t *testing.T) {
	t.Parallel()
	const jobs = 60
	var mu sync.Mutex
	var hubs []*hubtest.Hub
	var addresses []string
	gave := map[string]bool{} // outputs by job and attempt
	given := func(p pushed) string {
		text := fmt.Sprintf("%d.%d.%d", p.ID, p.Attempt, rand.IntN(1<<30))
		mu.Lock()
		gave[text] = true
		mu.Unlock()
		return text
	}
	var reports sync.WaitGroup
	s := newService(t, nil)
	// report tries at any hub until it is answered.
	report := func(p pushed) {
		body, _ := json.Marshal(map[string]any{"token": p.Token, "output": given(p)})
		for t.Context().Err() == nil {
			address := addresses[rand.IntN(len(addresses))]
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v1/push/e/callback", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			signAt(t, request.Header, s.secret, fmt.Sprint("end_", p.ID), time.Now(), body)
			response, err := http.DefaultClient.Do(request)
			if err == nil {
				response.Body.Close()
				if response.StatusCode == http.StatusOK {
					return
				}
				if response.StatusCode < 500 {
					t.Errorf("a report is answered %s", response.Status)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	s.handle = func(rw http.ResponseWriter, _ *http.Request, p pushed) {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		switch rand.IntN(10) {
		case 0:
			rw.WriteHeader(http.StatusInternalServerError)
		case 1:
			rw.Header().Set("Retry-After", "0")
			rw.WriteHeader(http.StatusTooManyRequests)
		case 2:
			hangUp(t, rw, "")
		case 3:
			rw.WriteHeader(http.StatusAccepted) // and never reports
		case 4, 5:
			reports.Go(func() { report(p) })
			rw.WriteHeader(http.StatusAccepted)
		default:
			fmt.Fprint(rw, given(p))
		}
	}
	r := &rig{t: t, database: pgtest.Database(t), file: t.TempDir() + "/push.toml"}
	r.pool = pgtest.Pool(t, r.database)
	r.write(s.of("e", "q = 10", `accepted_timeout = "2s"`))
	for _, sql := range []string{`SELECT weir.set('q', 'backoff', '50 milliseconds')`, `SELECT weir.set('q', 'backoff_limit', '500 milliseconds')`} {
		if _, err := r.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var complaints pgtest.Log
	for range 2 {
		hubs = append(hubs, hubtest.Run(t, r.database, &complaints, "--jobs", "--jobs-lease", "2s", "--push-file", r.file))
		addresses = append(addresses, hubs[len(hubs)-1].Address)
	}
	ids := r.enqueue("q", "k", jobs)
	left := func() (n int) {
		if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM unnest($1::bigint[]) id CROSS JOIN LATERAL weir.job_info(id) j WHERE j.state <> 'completed'`, ids).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i, share := range []int{jobs * 2 / 3, jobs / 3} {
		pgtest.Until(t, fmt.Sprintf("%d jobs are left", share), func() bool { return left() <= share })
		if _, err := r.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'weir hub%'`); err != nil {
			t.Fatal(err)
		}
		hubs[i%2].Kill()
		hubs[i%2].Restart()
	}
	deadline, cancel := context.WithTimeout(t.Context(), 2*generous)
	defer cancel()
	for left() > 0 {
		if deadline.Err() != nil {
			t.Fatalf("%d jobs are left: %s", left(), complaints.String())
		}
		time.Sleep(50 * time.Millisecond)
	}
	reports.Wait()
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		got := r.job(id)
		if prefix := fmt.Sprintf("%d.%d.", id, got.Attempt); !gave[got.Output] || len(got.Output) <= len(prefix) || got.Output[:len(prefix)] != prefix {
			t.Errorf("job %d is %+v, with an output that the endpoint has not given for it", id, got)
		}
	}
	t.Logf("%d requests for %d jobs", len(s.requests()), jobs)
}
