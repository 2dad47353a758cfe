package browser

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = 3 * time.Minute

// chromium starts an installed browser, and opens a page in it.
func chromium(t *testing.T, url string) context.Context {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "chromium") {
			t.Fatal("chromium is required by WEIR_TEST_REQUIRE but not installed")
		}
		t.Skip("chromium is not installed")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.WindowSize(1200, 900), chromedp.WSURLReadTimeout(patience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root with a sandbox
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	do(t, ctx, chromedp.Navigate(url))
	return ctx
}

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// press clicks on what a selector finds, at once: a page that refreshes itself may replace it at any moment, and a click that ends the page may have no answer.
func press(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`setTimeout(() => document.querySelector(%q).click())`, selector))
}

// picture saves a picture of the whole page, if WEIR_TEST_SCREENSHOTS names a directory for it: a PNG if quality is 100, otherwise a JPEG.
func picture(t *testing.T, ctx context.Context, file string, quality int) {
	t.Helper()
	into := os.Getenv("WEIR_TEST_SCREENSHOTS")
	if into == "" {
		return
	}
	image, err := chromedp.Run(ctx, chromedp.FullScreenshot(quality))
	if err == nil {
		err = os.WriteFile(filepath.Join(into, file), image, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// shows waits until both lists show exactly these rows, newest first, without their positions.
func shows(t *testing.T, ctx context.Context, want ...string) {
	t.Helper()
	for _, id := range []string{"websocket", "events"} {
		await(t, ctx, fmt.Sprintf(`[...document.querySelectorAll("#%s li")].map(r => r.children[0].textContent + "=" + r.children[1].textContent).join("\n")`, id),
			strings.Join(want, "\n"))
	}
}

// states waits until both streams are in the state.
func states(t *testing.T, ctx context.Context, want string) {
	t.Helper()
	await(t, ctx, `[...document.querySelectorAll(".state")].map(s => s.textContent).join(" ")`, want+" "+want)
}

// await waits until the expression, evaluated in the page, returns the wanted value.
func await(t *testing.T, ctx context.Context, expression, want string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
		if err != nil && !strings.Contains(err.Error(), "navigated or closed") { // it is between two pages
			t.Fatal(err)
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page shows %q, want %q", got, want)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the page shows %q, want %q: %v", got, want, ctx.Err())
		}
	}
}

// startHub starts a hub that its test has to stop.
func startHub(t *testing.T, database, address string, config web.Config) *server.Server {
	t.Helper()
	s, err := server.Start(t.Context(), server.Config{Database: database, ListenHTTP: address, Name: t.Name(), Web: config})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stopHub(t *testing.T, s *server.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestPageShowsEveryMessageOnceAcrossDropsAndHubs: the page's hub is below a path.
func TestPageShowsEveryMessageOnceAcrossDropsAndHubs(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	origin := httptest.NewServer(http.FileServerFS(os.DirFS("../../../examples/browser"))) // not the hub's origin
	t.Cleanup(origin.Close)
	secret := []byte(rand.Text() + rand.Text())
	authorizer, err := web.NewJWT(web.JWTConfig{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"exp": time.Now().Add(time.Hour).Unix(), "weir": map[string]any{"subscribe": []string{"orders.>", "news"}, "publish": []string{"orders.new"}},
	}).SignedString(secret)
	if err != nil {
		t.Fatal(err)
	}
	config := web.Config{Authorizer: authorizer, Origins: []string{origin.URL}}
	publish := func(channel, payload string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish($1, $2::text)`, channel, payload); err != nil {
			t.Fatal(err)
		}
	}
	address := pgtest.Address(t)
	first := startHub(t, database, address, config)
	below := hubtest.Below(t, address, "/databases/app")
	at := func(position string) string {
		return origin.URL + "/?" + url.Values{"hub": {below}, "token": {token}, "position": {position}}.Encode()
	}
	ctx := chromium(t, at("7.1000.1")) // a position of another database
	do(t, ctx, chromedp.Click("#connect button.primary"))
	shows(t, ctx, "gap=messages may be missing (unknown)")

	do(t, ctx, chromedp.Navigate(at("")), chromedp.Click("#connect button.primary"))
	states(t, ctx, "open")
	publish("orders.new", "1 <b>ü</b>")
	publish("other", "not shown")
	shows(t, ctx, "orders.new=1 <b>ü</b>")

	do(t, ctx, chromedp.SetValue(`#publish [name=payload]`, `{"order": 2}`), chromedp.Click("#publish button"))
	shows(t, ctx, `orders.new={"order": 2}`, "orders.new=1 <b>ü</b>")

	do(t, ctx, chromedp.SetValue(`#publish [name=channel]`, "news"), chromedp.Click("#publish button"))
	await(t, ctx, `document.querySelector("#websocket li.error")?.textContent ?? ""`, `errorpublish "news" is not allowed`)
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector("#websocket li.error").remove()`))

	// A page receives, when it reconnects, the messages published while it was disconnected.
	do(t, ctx, chromedp.Click("#drop"))
	states(t, ctx, "closed")
	publish("news", "3, while away")
	do(t, ctx, chromedp.Click("#connect button.primary"))
	shows(t, ctx, "news=3, while away", `orders.new={"order": 2}`, "orders.new=1 <b>ü</b>")

	// A hub stops and another replaces it: the page reconnects automatically.
	stopHub(t, first)
	await(t, ctx, `String(document.querySelectorAll(".state.open").length)`, "0")
	publish("orders.paid", "4, between hubs")
	second := startHub(t, database, address, config)
	t.Cleanup(func() { stopHub(t, second) })
	shows(t, ctx, "orders.paid=4, between hubs", "news=3, while away", `orders.new={"order": 2}`, "orders.new=1 <b>ü</b>")
	states(t, ctx, "open")

	picture(t, ctx, "messages.png", 100)
}
