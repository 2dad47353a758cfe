package browser

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestASearchForWhatIsRareGoesOn: each page is one short look, and the browser takes the next ones, until it finds something, or there is nothing more.
func TestASearchForWhatIsRareGoesOn(t *testing.T) {
	t.Parallel()
	client := weir.NewClient(pgtest.Pool(t, pgtest.Database(t)))
	enqueue := func(to string, n int) {
		t.Helper()
		all := make([]weir.NewJob, n)
		for i := range all {
			all[i] = weir.NewJob{Args: letter{To: to}, Options: &weir.Options{Queue: "mail"}}
		}
		if _, err := client.EnqueueMany(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
	const looks = 8 // at least
	for range looks {
		enqueue("many", 5000)
	}
	enqueue("rare", 1)
	u, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: client.Pool()}}, Access: weirui.Open(weirui.Viewer), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1000)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "after=") {
			asked <- r.URL.RawQuery
		}
		u.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	ctx := chromium(t, site.URL+"/jobs?state=available&text=rare")
	await(t, ctx, `String(document.querySelectorAll("#jobs tbody tr").length)`, "1")
	if len(asked) < 2 {
		t.Errorf("the browser has looked on %d times, want more: or this shows nothing", len(asked))
	}
	await(t, ctx, `String(new URL(location.href).searchParams.has("after"))`, "true") // a page that is loaded again shows the same
	do(t, ctx, chromedp.Navigate(site.URL+"/jobs?state=available&text=nowhere"))
	await(t, ctx, `document.querySelector("#jobs .none")?.textContent ?? ""`, "No such jobs.")
	await(t, ctx, `String(document.querySelectorAll("#pages a").length)`, "1") // to the first page
}
