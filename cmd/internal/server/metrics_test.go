package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// scrape reads a hub's metrics as Prometheus does.
func scrape(t testing.TB, s *Server) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.HTTPAddr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", response.Status, err, text)
	}
	return string(text)
}

// TestQueuesAreAmongTheMetrics: the metrics include any number of queues, with one query for many scrapes.
func TestQueuesAreAmongTheMetrics(t *testing.T) {
	pgtest.Alone(t, "what a hub has learnt is good for a while")
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	for _, statement := range []string{
		`SELECT weir.enqueue('mail', 'k') FROM generate_series(1, 3)`, `SELECT weir.enqueue('mail', 'k', run_at => now() + interval '1 hour')`,
		`SELECT weir.pause('mail')`, `SELECT weir._start('w', ARRAY['mail'], interval '1 minute')`,
		fmt.Sprintf(`SELECT weir.enqueue('queue ' || to_char(i, 'FM0000'), 'k') FROM generate_series(1, %d) i`, queuesLimit+9),
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, Config{Database: database, Web: web.Config{Anonymous: true}})
	text, begin := "", time.Time{}
	pgtest.Until(t, "the database has answered in time", func() bool {
		begin = time.Now()
		text = scrape(t, s)
		return strings.Contains(text, "\nweir_queues_up 1")
	})
	for _, want := range []string{
		`weir_queue_jobs{queue="mail",state="available"} 3`, `weir_queue_jobs{queue="mail",state="running"} 0`,
		`weir_queue_jobs{queue="mail",state="scheduled"} 1`, `weir_queue_workers{queue="mail"} 1`, `weir_queue_paused{queue="mail"} 1`,
		`weir_queue_claimed_total{queue="mail"} 0`, `weir_queue_oldest_seconds{queue="mail"} `, `weir_queue_jobs{queue="_OTHER",state="available"} 10`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if got := strings.Count(text, "\nweir_queue_paused{"); got != queuesLimit+1 {
		t.Errorf("%d queues are in the metrics, want %d", got, queuesLimit+1)
	}
	if _, err := pool.Exec(t.Context(), `SELECT weir.resume('mail')`); err != nil {
		t.Fatal(err)
	}
	again := scrape(t, s)
	if time.Since(begin) > queuesEvery {
		t.Log("this machine is too busy to see whether the next scrape queries the database")
	} else if !strings.Contains(again, `weir_queue_paused{queue="mail"} 1`) {
		t.Error("the database was asked by the next scrape too")
	}
}

// TestAHubThatMayNotLookAtQueuesServes: a hub without the privilege to read queues serves, and its metrics show it.
func TestAHubThatMayNotLookAtQueuesServes(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	s := start(t, Config{Database: database, Web: web.Config{Anonymous: true}})
	if _, err := pool.Exec(t.Context(), `ALTER FUNCTION weir.queues() RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	if text := scrape(t, s); !strings.Contains(text, "\nweir_queues_up 0") || !strings.Contains(text, "\nweir_hub_live ") {
		t.Errorf("the metrics are %s", text)
	}
}
