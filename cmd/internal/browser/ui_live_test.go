package browser

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// emptyUI serves the web UI on a new database.
func emptyUI(t *testing.T) (pool *pgxpool.Pool, client *weir.Client, at string) {
	t.Helper()
	pool = pgtest.Pool(t, pgtest.Database(t))
	handler, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: weirui.Open(weirui.Admin), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return pool, weir.NewClient(pool), server.URL + "/"
}

func TestTheUIShowsMessagesAsTheyComeUnlessItIsPaused(t *testing.T) {
	t.Parallel()
	_, client, at := emptyUI(t)
	ctx := chromium(t, at+"channels/tail?"+url.Values{"channel": {"orders.>"}}.Encode())
	t.Cleanup(func() { _ = chromedp.Cancel(ctx) }) // the stream ends before its server
	publish := func(channel, payload string) {
		t.Helper()
		if err := client.Publish(t.Context(), channel, []byte(payload), nil); err != nil {
			t.Fatal(err)
		}
	}
	rows := func(want string) {
		t.Helper()
		await(t, ctx, `[...document.querySelectorAll("#tail li")].map((r) => r.querySelector("strong").textContent + "=" + r.querySelector("pre").textContent).join("\n")`, want)
	}
	await(t, ctx, `document.getElementById("tail-state").textContent`, "Connected.")
	publish("orders.new", "1 <b>ü</b>")
	publish("other", "not shown")
	publish("orders.new", `{"password": "hunter2"}`)
	const first = "orders.new={\"password\":\"[redacted]\"}\norders.new=1 <b>ü</b>"
	rows(first)
	do(t, ctx, chromedp.Click("#tail-pause"))
	publish("orders.paid", "3")
	await(t, ctx, `document.getElementById("tail-pause").textContent`, "Continue (1)")
	rows(first)
	do(t, ctx, chromedp.Click("#tail-pause"))
	rows("orders.paid=3\n" + first)

	// What the form publishes is shown on the page to which it comes back.
	do(t, ctx, chromedp.Click("summary"), chromedp.SetValue(`[name=payload]`, `{"order": 4}`), chromedp.SetValue(`form[method=post] [name=channel]`, "orders.form"), chromedp.Click("form[method=post] button"))
	await(t, ctx, `document.querySelector(".said")?.textContent ?? ""`, "The message is published on orders.form.")
	await(t, ctx, `document.getElementById("tail-state")?.textContent ?? ""`, "Connected.") // it comes behind that
	publish("orders.last", "5")
	await(t, ctx, `document.querySelector("#tail li strong")?.textContent ?? ""`, "orders.last")
}

func TestAGraphThatChangesStaysWhereItWasScrolledTo(t *testing.T) {
	t.Parallel()
	pool, client, at := emptyUI(t)
	tasks := []weir.Task{{Name: "0", Job: weir.NewJob{Args: noted{}}}}
	for i := range 9 {
		tasks = append(tasks, weir.Task{Name: fmt.Sprint(i + 1), After: []string{fmt.Sprint(i)}, Job: weir.NewJob{Args: noted{}}})
	}
	id, err := client.Flow(t.Context(), weir.Flow{Name: "chain", Tasks: tasks})
	if err != nil {
		t.Fatal(err)
	}
	ctx := chromium(t, fmt.Sprintf("%sflows/%d", at, id))
	await(t, ctx, `String(document.querySelectorAll("#graph a").length)`, "10")
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector("#graph a").focus()`))
	await(t, ctx, `(document.querySelector("#graph .wide").scrollLeft = 300, String(document.querySelector("#graph .wide").scrollLeft))`, "300")
	pgtest.Eventually(t, func() error { // a worker's chores enqueue the first task's job
		if _, err := pool.Exec(t.Context(), `CALL weir.chores()`); err != nil {
			return err
		}
		all, err := client.Tasks(t.Context(), id, 0, 1)
		if err == nil && all[0].State == weir.FlowBlocked {
			err = errors.New("the first task's job is not enqueued")
		}
		return err
	})
	await(t, ctx, `document.querySelector("#graph .state").textContent`, "waiting")
	await(t, ctx, `String(document.querySelector("#graph .wide").scrollLeft) + " " + document.activeElement.id`, "300 "+fmt.Sprintf("task-%d", id+1))
}

type noted struct{}

func (noted) Kind() string { return "note" }

// TestAPageSaysWhyItIsNotUpToDate: with the reason that the server gives, and when it tries again.
func TestAPageSaysWhyItIsNotUpToDate(t *testing.T) {
	t.Parallel()
	pool, _, at := emptyUI(t)
	ctx := chromium(t, at+"queues")
	await(t, ctx, `document.getElementById("connection").textContent`, "")
	pool.Close()
	await(t, ctx, `document.getElementById("connection").textContent.replace(/[0-9]{2}:[0-9]{2}:[0-9]{2}/g, "TIME")`,
		"Not up to date since TIME: The database can't be read: weir: list queues: closed pool. Tries again until it succeeds, next at TIME.")
}
