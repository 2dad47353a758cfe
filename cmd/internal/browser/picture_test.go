package browser

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestTheOverviewShowsWhatIsGoingOn: queues that are worked, what fails, and the history, at one glance. docs/ui.png is its picture: WEIR_TEST_SCREENSHOTS=docs.
func TestTheOverviewShowsWhatIsGoingOn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	client := weir.NewClient(pool)
	for _, sql := range []string{
		`SELECT weir.enqueue_many(queue => array_agg(q), kind => array_agg('letter'::text), args => array_agg(jsonb_build_object('to', 'slow ' || n)))
			FROM (VALUES ('mail', 412), ('thumbnails', 85), ('exports', 3)) v(q, jobs) CROSS JOIN LATERAL generate_series(1, jobs) n`,
		`SELECT weir.set_limit('thumbnails', running => 20)`,
		`SELECT weir._count_minutes()`,
		`INSERT INTO weir.minute (at, ring, queue, upto, completed, failed, retried, cancelled, other, waits, runs)
			SELECT at, weir._minute_ring(at), '', at + interval '1 minute', 900 + 300 * sin(n / 9.0) + n % 37, n % 7, 20 + n % 5, n % 3, 0, 800 * ('1e' || 12 * (10 + n / 30))::numeric + 100e192, 500e48 + 60 * ('1e' || 12 * (17 + n / 40))::numeric
			FROM generate_series(2, 70) n CROSS JOIN LATERAL (SELECT date_trunc('minute', now()) - n * interval '1 minute' AS at) m`,
		`INSERT INTO weir.minute (at, ring, queue, waiting, oldest)
			SELECT at, weir._minute_ring(at), '', 400 + 200 * sin(n / 9.0) + n % 60, (4 + 3 * sin(n / 7.0)) * interval '1 second' FROM generate_series(2, 70) n
			CROSS JOIN LATERAL (SELECT date_trunc('minute', now()) - n * interval '1 minute' AS at) m`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	handlers := weir.NewHandlers()
	weir.Handle(handlers, func(ctx context.Context, j *weir.Job[letter]) error {
		if strings.HasPrefix(j.Args.To, "slow") {
			<-ctx.Done()
			return ctx.Err()
		}
		return weir.Fail(fmt.Errorf("mailbox %d of %q is full", j.ID, j.Args.To))
	})
	worker, err := client.NewWorker(weir.WorkerConfig{Handlers: handlers, Queues: map[string]int{"letters": 8, "mail": 12, "thumbnails": 20, "exports": 4}, Name: "postman on host 3", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	works(t, worker)
	var failing []weir.NewJob
	for range 21 {
		failing = append(failing, weir.NewJob{Args: letter{To: "ada"}, Options: &weir.Options{Queue: "letters"}})
	}
	for range 5 {
		failing = append(failing, weir.NewJob{Args: letter{To: "slow"}, Options: &weir.Options{Queue: "letters"}})
	}
	if _, err := client.EnqueueMany(t.Context(), failing); err != nil {
		t.Fatal(err)
	}
	for state, jobs := range map[weir.State]int{weir.StateFailed: 21, weir.StateRunning: 5 + 12 + 20 + 3} {
		pgtest.Until(t, "jobs are "+string(state), func() bool {
			page, err := client.Jobs(t.Context(), weir.JobsParams{States: []weir.State{state}, Limit: 100})
			return err == nil && len(page.Jobs) == jobs
		})
	}
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: weirui.Open(weirui.Operator), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(ui)
	t.Cleanup(server.Close)
	page := chromium(t, server.URL+"/")
	do(t, page, chromedp.EmulateViewport(1200, 800), scheme("light"), chromedp.Navigate(server.URL+"/"))
	await(t, page, drawn, "4")
	await(t, page, `["letters", "thumbnails", "exports", "mailbox <n> of"].filter(text => !document.body.innerText.includes(text)).join()`, "")
	picture(t, page, "ui.png", 100)
}
