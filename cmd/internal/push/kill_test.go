package push_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsOfAKilledHubArePushedAgain: a hub is killed while its requests are under way and jobs of it are accepted; when it, or another, is there, each job is pushed again, as its next attempt, until it is done, and reports with
// the old tokens are refused. Nothing is lost.
func TestJobsOfAKilledHubArePushedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	first, again := map[int64]pushed{}, map[int64]pushed{}
	s := newService(t, func(rw http.ResponseWriter, q *http.Request, p pushed) {
		mu.Lock()
		seen := first[p.ID].ID != 0
		if seen {
			again[p.ID] = p
		} else {
			first[p.ID] = p
		}
		mu.Unlock()
		switch {
		case seen:
		case p.Kind == "accepted":
			rw.WriteHeader(http.StatusAccepted)
		default:
			<-q.Context().Done()
		}
	})
	r := &rig{t: t, database: pgtest.Database(t), file: t.TempDir() + "/push.toml"}
	r.pool = pgtest.Pool(t, r.database)
	r.write(s.of("e", "q = 20"))
	var complaints pgtest.Log
	hub := hubtest.Run(t, r.database, &complaints, "--jobs", "--push-file", r.file)
	ids := append(r.enqueue("q", "running", 10), r.enqueue("q", "accepted", 10)...)
	pgtest.Until(t, "all jobs are pushed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(first) == len(ids)
	})
	hub.Kill()
	hub.Restart()
	for _, id := range ids {
		r.until(id, "completed")
	}
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		if p := again[id]; p.Attempt != 2 || p.Token == first[id].Token || p.header.Get("webhook-id") != first[id].webhookID() {
			t.Errorf("job %d was pushed again as %+v, want its next attempt", id, p)
		}
		if status, answer := r.report("http://"+hub.Address, "e", s.secret, map[string]any{"token": first[id].Token, "output": "late"}); status != 200 || answer != `{"recorded":false,"refusal":"ended"}` && answer != `{"recorded":false,"refusal":"lost"}` {
			t.Errorf("a report of the killed hub's attempt: %d %s", status, answer)
		}
		if got := r.job(id); got.Output == "late" {
			t.Errorf("%+v", got)
		}
	}
}
