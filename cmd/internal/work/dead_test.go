package work_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsOverHTTPLeaveNothingDead: hundreds of thousands of jobs are enqueued, worked and recorded over HTTP, some of them twice, while an old snapshot is open: no row is updated, deleted or dead.
func TestJobsOverHTTPLeaveNothingDead(t *testing.T) {
	pgtest.Alone(t, "it keeps both cores busy")
	s := newSite(t, nil)
	other := s.at(s.hub(nil))
	// The queue is there before its worker and its first job, which make it otherwise: at the same moment, each makes a row of its own, and one of the two is set aside later.
	if _, err := s.pool.Exec(t.Context(), `SELECT weir._queue_id('mail')`); err != nil {
		t.Fatal(err)
	}
	holder := pgtest.Pool(t, s.database)
	tx, err := holder.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class`); err != nil {
		t.Fatal(err)
	}
	const jobs, batch = 200_000, 1000
	one := m{"queue": "mail", "kind": "welcome", "args": m{"account": 7}}
	many := make([]m, batch)
	for i := range many {
		many[i] = one
	}
	body, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	enqueued := make(chan error, 1)
	go func() { // ends with its jobs
		for i := range jobs / batch {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/jobs", strings.NewReader(string(body)))
			if err != nil {
				enqueued <- err
				return
			}
			r.Header.Set("Idempotency-Key", fmt.Sprint("batch-", i))
			response, err := http.DefaultClient.Do(r)
			if err == nil {
				if response.Body.Close(); response.StatusCode != http.StatusOK {
					err = fmt.Errorf("enqueue: %s", response.Status)
				}
			}
			if err != nil {
				enqueued <- err
				return
			}
		}
		enqueued <- nil
	}()
	k, _ := s.dial(m{"queues": m{"mail": 1000}})
	sent, recorded := 0, 0
	for completed := 0; completed < jobs || recorded < sent; {
		switch f := k.next(); f.Type {
		case "jobs":
			var ends []m
			for _, j := range f.Jobs {
				end := m{"token": j.Token}
				if j.Attempt == 1 && j.ID%1000 == 0 {
					end["outcome"], end["error"], end["delay"] = "failed", "once", 0
				} else {
					completed++
				}
				ends = append(ends, end)
			}
			if f.Jobs[0].ID%7 == 0 { // also at another hub, which may be first
				other.record(ends[0])
			}
			k.send(m{"type": "record", "id": 1, "ends": ends})
			sent += len(ends)
		case "recorded":
			recorded += len(f.Results)
		}
	}
	if err := pgtest.Receive(t, enqueued, "all jobs are enqueued"); err != nil {
		t.Fatal(err)
	}
	for _, hub := range []*site{s, other} { // sessions report their statistics when they end
		if err := hub.server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var inserted int64
	var found string
	defer func() {
		if t.Failed() {
			t.Logf("%d rows were inserted; %s", inserted, found)
		}
	}()
	pgtest.Until(t, "the statistics of all sessions show no dead row", func() bool {
		if err := s.pool.QueryRow(t.Context(), `SELECT coalesce(sum(n_tup_ins), 0)::bigint,
				coalesce(string_agg(format('%s: %s dead, %s updated, %s deleted', relname, n_dead_tup, n_tup_upd, n_tup_del), '; ') FILTER (WHERE greatest(n_dead_tup, n_tup_upd, n_tup_del) > CASE relname WHEN 'setting' THEN 3 ELSE 0 END), '')
			FROM pg_stat_all_tables WHERE schemaname = 'weir'`).Scan(&inserted, &found); err != nil {
			t.Fatal(err)
		}
		return found == "" && inserted > jobs
	})
}
