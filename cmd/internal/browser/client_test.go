package browser

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTheClientInTypeScriptSubscribesInABrowser: subscribe of @weir-pg/client, in a page of another origin than the hub's, over a WebSocket and as an event
// stream, replaces a token that is refused, goes on where it was when the hub is another one, learns of a gap, and is told at once that its origin is refused.
func TestTheClientInTypeScriptSubscribesInABrowser(t *testing.T) {
	t.Parallel()
	modules := compiled(t)
	for name, how := range map[string]string{"over a WebSocket": "", "as an event stream": "&stream"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Database(t)
			pool := pgtest.Pool(t, database)
			secret := []byte(rand.Text() + rand.Text())
			authorizer, err := web.NewJWT(web.JWTConfig{Secret: secret})
			if err != nil {
				t.Fatal(err)
			}
			page, asked := pageOfClient(t, modules, secret)
			config := web.Config{Authorizer: authorizer, Origins: []string{page}}
			address := pgtest.Address(t)
			hub := startHub(t, database, address, config)
			at := func(address, after string) string {
				return page + "/?" + url.Values{"hub": {"http://" + address}}.Encode() + after + how
			}
			publish := func(payload string) {
				t.Helper()
				if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders.new', $1::text)`, payload); err != nil {
					t.Fatal(err)
				}
			}
			const lines = `[...document.querySelectorAll("li")].map(li => li.textContent).filter(line => line !== "lost").join("\n")`

			ctx := chromium(t, at(address, ""))
			await(t, ctx, lines, "subscribed")
			if n := asked.Load(); n != 2 {
				t.Errorf("the page was asked for %d tokens, want two: the first has expired", n)
			}
			publish("1 <b>ü</b>")
			await(t, ctx, lines, "subscribed\norders.new: 1 <b>ü</b>")
			stopHub(t, hub)
			await(t, ctx, `String([...document.querySelectorAll("li")].some(li => li.textContent === "lost"))`, "true")
			publish("2, between hubs")
			second := startHub(t, database, address, config)
			publish("3")
			await(t, ctx, lines, "subscribed\norders.new: 1 <b>ü</b>\nsubscribed\norders.new: 2, between hubs\norders.new: 3")
			t.Cleanup(func() { stopHub(t, second) })

			do(t, ctx, chromedp.Navigate(at(address, "&after=7.1000.1"))) // a position of another database
			await(t, ctx, lines, "subscribed\ngap: unknown")

			elsewhere := startHub(t, database, "127.0.0.1:0", web.Config{Authorizer: authorizer})
			t.Cleanup(func() { stopHub(t, elsewhere) })
			do(t, ctx, chromedp.Navigate(at(elsewhere.HTTPAddr().String(), "")))
			await(t, ctx, `[...document.querySelectorAll("li")].map(li => li.textContent).join("\n")`, "WeirError: origin") // and it was not lost before
		})
	}
}

// compiled returns a directory with the modules of the client for TypeScript.
func compiled(t *testing.T) string {
	t.Helper()
	source, err := filepath.Abs("../../../clients/typescript")
	if err != nil {
		t.Fatal(err)
	}
	node, into := drivertest.Node(t, filepath.Join(source, "package.json")), t.TempDir()
	tsc := exec.CommandContext(t.Context(), "node", filepath.Join(node, "node_modules", "typescript", "bin", "tsc"), "--project", filepath.Join(source, "tsconfig.build.json"), "--outDir", into)
	if out, err := tsc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return into
}

// pageOfClient serves testdata/client.html, the client's modules, and tokens, of which the first has expired. It returns the page's origin, and how many tokens were asked for.
func pageOfClient(t *testing.T, modules string, secret []byte) (origin string, asked *atomic.Int64) {
	t.Helper()
	page, err := os.ReadFile("testdata/client.html")
	if err != nil {
		t.Fatal(err)
	}
	asked = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(page) })
	mux.Handle("/client/", http.StripPrefix("/client/", http.FileServer(http.Dir(modules))))
	mux.HandleFunc("/token", func(rw http.ResponseWriter, _ *http.Request) {
		expires := time.Now().Add(time.Hour)
		if asked.Add(1) == 1 {
			expires = time.Now().Add(-time.Hour)
		}
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"exp": expires.Unix(), "weir": map[string]any{"subscribe": []string{"orders.*"}}}).SignedString(secret)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprint(rw, token)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, asked
}
