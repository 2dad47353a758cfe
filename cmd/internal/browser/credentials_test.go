package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"log/slog"

	"github.com/chromedp/chromedp"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestPagesWorkWithCredentialsInTheirAddress: scripts can't ask for an address that has them, as those of the page has that was opened with http://user:password@host/.
func TestPagesWorkWithCredentialsInTheirAddress(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: weirui.Open(weirui.Admin), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "ada" || password != "correct horse" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		ui.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	at := strings.Replace(server.URL, "http://", "http://ada:correct%20horse@", 1) + "/"
	ctx := chromium(t, at)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx) })
	const asked = `String(performance.getEntriesByType("resource").some(e => e.name.includes("history?") && e.responseStatus === 200))`
	await(t, ctx, asked, "true")
	if err := weir.NewClient(pool).SetQueue(t.Context(), "late", "backoff", "1 second"); err != nil { // a queue comes into being
		t.Fatal(err)
	}
	await(t, ctx, `String(document.getElementById("queues").textContent.includes("late"))`, "true")
	await(t, ctx, `document.getElementById("connection").textContent + (document.getElementById("history-problem").hidden ? "" : "problem")`, "")
	do(t, ctx, chromedp.Navigate(at+"channels/tail?channel=orders"))
	await(t, ctx, `document.getElementById("tail-state").textContent`, "Connected.")
}
