package browser

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestTheListOfDatabasesStaysUpToDate: each is a row, which leads to its pages; one that can't be read and one that crawls hold up no other; and what changes shows.
func TestTheListOfDatabasesStaysUpToDate(t *testing.T) {
	t.Parallel()
	config := weirui.Config{Access: weirui.Open(weirui.Viewer), Logger: slog.New(slog.DiscardHandler)}
	clients := map[string]*weir.Client{}
	for i, name := range []string{"shop.eu", "shop.us", "billing"} {
		pool := pgtest.Pool(t, pgtest.Database(t))
		config.Databases = append(config.Databases, weirui.Database{Name: name, Pool: pool})
		clients[name] = weir.NewClient(pool)
		for range 3 * i {
			if _, err := clients[name].Enqueue(t.Context(), letter{To: "ada"}, &weir.Options{Queue: "letters"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	line := pgtest.NewLine(t, pgtest.Database(t))
	line.Hold()
	for name, url := range map[string]string{"crawls": line.URL, "gone": "postgres://nobody@127.0.0.1:1/gone"} {
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		config.Databases = append(config.Databases, weirui.Database{Name: name, Pool: pool})
	}
	defer line.LetGo() // before its pool is closed
	ui, err := weirui.New(config)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(ui)
	t.Cleanup(server.Close)
	page := chromium(t, server.URL+"/")
	do(t, page, chromedp.EmulateViewport(1200, 600), scheme("light"))
	row := func(name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#databases tbody tr")].filter(r => r.cells[0].innerText === %q).map(r => r.cells[1].innerText + " " + r.cells[6].innerText.split("\n")[0]).join()`, name)
	}
	for name, want := range map[string]string{"shop.eu": "0 answers", "shop.us": "3 answers", "billing": "6 answers"} {
		await(t, page, row(name), want)
	}
	state := func(name, pattern string) string {
		return fmt.Sprintf(`String([...document.querySelectorAll("#databases tbody tr")].some(r => r.cells[0].innerText === %q && /%s/.test(r.cells[6].innerText)))`, name, pattern)
	}
	await(t, page, state("gone", "can.t be read"), "true")
	await(t, page, state("crawls", "no answer yet|can.t be read"), "true")
	picture(t, page, "databases.png", 100)
	if _, err := clients["shop.eu"].Enqueue(t.Context(), letter{To: "ada"}, &weir.Options{Queue: "letters"}); err != nil {
		t.Fatal(err)
	}
	await(t, page, row("shop.eu"), "1 answers")
	do(t, page, press(`#databases a[href="db/billing/"]`))
	await(t, page, `(document.querySelector("h1")?.innerText ?? "") + " " + (document.querySelector(".databases [aria-current]")?.innerText ?? "")`, "Overview billing")
	do(t, page, press(`.databases a`))
	await(t, page, `document.querySelector("h1")?.innerText ?? ""`, "All databases")
}
