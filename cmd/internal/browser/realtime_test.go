package browser

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// realtime is two hubs on one database, and a site with a page that uses weir.js.
type realtime struct {
	client *weir.Client
	secret []byte
	hubs   []string
	site   string
}

// newRealtime starts them; channels is the channels file.
func newRealtime(t *testing.T, channels string) *realtime {
	t.Helper()
	database := pgtest.Database(t)
	r := &realtime{client: weir.NewClient(pgtest.Pool(t, database)), secret: []byte(rand.Text() + rand.Text())}
	files := http.NewServeMux()
	files.Handle("/weir.js", http.FileServerFS(os.DirFS("../../../examples/browser")))
	files.Handle("/", http.FileServerFS(os.DirFS("testdata/realtime")))
	site := httptest.NewServer(files)
	t.Cleanup(site.Close)
	r.site = site.URL
	authorizer, err := web.NewJWT(web.JWTConfig{Secret: r.secret})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(channels), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		s, err := server.Start(t.Context(), server.Config{
			Database: database, ListenHTTP: "127.0.0.1:0", Name: fmt.Sprint("hub ", i), ChannelsFile: path, Web: web.Config{Authorizer: authorizer, Origins: []string{r.site}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
		r.hubs = append(r.hubs, "http://"+s.HTTPAddr().String())
	}
	return r
}

// token returns a token of a user that was issued at a time.
func (r *realtime) token(t *testing.T, user string, issued time.Time) string {
	t.Helper()
	all := []string{">"}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": user, "iat": issued.Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"weir": map[string]any{"subscribe": all, "publish": all, "info": map[string]string{"name": "<b>" + user}},
	}).SignedString(r.secret)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// open has the page follow a channel at a hub, and who is in a room, over a WebSocket or, with the class WeirEvents, an event stream.
func (r *realtime) open(t *testing.T, ctx context.Context, class, hub, token, channel string, last int) {
	t.Helper()
	options, err := json.Marshal(map[string]any{"channels": []string{channel}, "token": token, "last": last, "presence": strings.HasPrefix(channel, "room.")})
	if err != nil {
		t.Fatal(err)
	}
	do(t, ctx, chromedp.Navigate(r.site+"/"))
	await(t, ctx, `typeof follow`, "function")
	do(t, ctx, chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`follow(%q, %q, %s)`, class, hub, options)))
}

// says waits until an element of the page has this text.
func says(t *testing.T, ctx context.Context, id, want string) {
	t.Helper()
	await(t, ctx, fmt.Sprintf(`document.getElementById(%q).textContent`, id), want)
}

// TestARoomInARealPage: a page begins with the last messages of its room, sees who is there, who joins and leaves at another hub, and goes on with what is said; loaded again it sees the same.
func TestARoomInARealPage(t *testing.T) {
	t.Parallel()
	r := newRealtime(t, `{"channels": [{"match": "room.*", "presence": true, "history": 2}]}`)
	for i := range 4 {
		if err := r.client.Publish(t.Context(), "room.1", fmt.Append(nil, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, class := range []string{"WeirSocket", "WeirEvents"} {
		ada := chromium(t, r.site)
		r.open(t, ada, class, r.hubs[0], r.token(t, "ada", time.Now()), "room.1", 10)
		says(t, ada, "state", "open")
		says(t, ada, "history", "2 3, and there are more")
		says(t, ada, "here", "<b>ada")

		bob := chromium(t, r.site)
		r.open(t, bob, "WeirSocket", r.hubs[1], r.token(t, "bob", time.Now()), "room.1", 0)
		says(t, ada, "here", "<b>ada <b>bob")
		says(t, bob, "state", "open")
		r.open(t, ada, class, r.hubs[0], r.token(t, "ada", time.Now()), "room.1", 10) // she has not left in between, so no event says that she is here
		says(t, ada, "here", "<b>ada <b>bob")
		do(t, ada, chromedp.Evaluate[chromedp.Void](`stream.members("room.1")`))
		says(t, ada, "members", "ada bob (2)")
		do(t, bob, chromedp.Evaluate[chromedp.Void](`stream.publish("room.1", "hi")`))
		says(t, ada, "messages", "hi")
		do(t, bob, chromedp.Evaluate[chromedp.Void](`location.reload()`)) // the new page follows nothing
		says(t, ada, "here", "<b>ada")
		for _, ctx := range []context.Context{ada, bob} {
			if err := chromedp.Cancel(ctx); err != nil {
				t.Error(err)
			}
		}
		if err := r.client.Publish(t.Context(), "room.1", []byte("2"), nil); err != nil {
			t.Fatal(err)
		}
		if err := r.client.Publish(t.Context(), "room.1", []byte("3"), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAPageSeesRowsChange: those of a table that its owner watches, at another hub than its neighbour, over both transports, and those that changed while it was away.
func TestAPageSeesRowsChange(t *testing.T) {
	t.Parallel()
	r := newRealtime(t, `{"channels": []}`)
	change := func(sql string) {
		t.Helper()
		if _, err := r.client.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	change(`CREATE TABLE orders (id bigint PRIMARY KEY, status text)`)
	change(`SELECT weir.watch_table('orders', channel => 'orders.{id}', columns => ARRAY['status'])`)
	pages := map[string]context.Context{}
	for i, class := range []string{"WeirSocket", "WeirEvents"} {
		ctx := chromium(t, r.site)
		r.open(t, ctx, class, r.hubs[i], r.token(t, "ada", time.Now()), "orders.7", 0)
		says(t, ctx, "state", "open")
		pages[class] = ctx
	}
	change(`INSERT INTO orders VALUES (6, 'new'), (7, 'new'), (8, 'new')`)
	change(`UPDATE orders SET status = 'paid' WHERE id > 6`)
	change(`UPDATE orders SET status = status`) // nothing has changed
	change(`DELETE FROM orders WHERE id = 7`)
	for _, ctx := range pages {
		await(t, ctx, `document.getElementById("messages").textContent.replaceAll("} {", "}\n{").split("\n").filter(Boolean).map(JSON.parse).map(({op, rows, changes: [c]}) => [op, rows, c.key.id, c.new?.status].join(" ")).join(", ")`,
			"insert 1 7 new, update 1 7 paid, delete 1 7 ")
	}
}

// TestAPageIsDisconnectedAndDoesNotGetInWithARevokedToken: a user who is disconnected may connect again; one whose tokens are revoked may not, over either transport, until the
// page has a new token.
func TestAPageIsDisconnectedAndDoesNotGetInWithARevokedToken(t *testing.T) {
	t.Parallel()
	r := newRealtime(t, `{"channels": []}`)
	for _, class := range []string{"WeirSocket", "WeirEvents"} {
		user := "user of " + class
		old := r.token(t, user, time.Now().Add(-time.Minute))
		ctx := chromium(t, r.site)
		r.open(t, ctx, class, r.hubs[1], old, "news", 0)
		says(t, ctx, "state", "open")
		says(t, ctx, "opened", "1")
		if err := r.client.Disconnect(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		says(t, ctx, "opened", "2") // weir.js has connected again, with the same token
		if _, err := r.client.Revoke(t.Context(), user, time.Hour); err != nil {
			t.Fatal(err)
		}
		says(t, ctx, "state", "closed")
		says(t, ctx, "opened", "2")
		for _, hub := range r.hubs { // a page that tries all the same
			pgtest.Until(t, "the hub has heard of it", func() bool { return r.refuses(t, hub, old) })
			r.open(t, ctx, class, hub, old, "news", 0)
			says(t, ctx, "state", "closed")
			says(t, ctx, "opened", "0")
		}
		r.open(t, ctx, class, r.hubs[0], r.token(t, user, time.Now().Add(5*time.Second)), "news", 0)
		says(t, ctx, "state", "open")
	}
}

// refuses reports whether a hub refuses a token.
func (r *realtime) refuses(t *testing.T, hub, token string) bool {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context()) // or the answer would go on
	defer leave()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, hub+"/v1/events?channel=news&access_token="+token, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusUnauthorized
}

// TestAPageIsToldOfLimits: that it publishes too fast, and when it may again; and that a channel is full.
func TestAPageIsToldOfLimits(t *testing.T) {
	t.Parallel()
	r := newRealtime(t, `{"channels": [{"match": "chat.*", "publish_rate": 0.01, "publish_burst": 1, "subscribers": 1}]}`)
	ctx := chromium(t, r.site)
	r.open(t, ctx, "WeirSocket", r.hubs[0], r.token(t, "ada", time.Now()), "chat.1", 0)
	says(t, ctx, "state", "open")
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`stream.publish("chat.1", "first")`))
	says(t, ctx, "messages", "first")
	do(t, ctx, chromedp.Evaluate[chromedp.Void](`stream.publish("chat.1", "second")`))
	await(t, ctx, `((e) => e && [e.code, e.retry_after > 0 && e.retry_after <= 100, e.error].join(": "))(failures[0]) ?? ""`,
		`limit: true: you have exceeded the rate at which a user may publish on chat.*`)
	full := chromium(t, r.site)
	r.open(t, full, "WeirSocket", r.hubs[0], r.token(t, "bob", time.Now()), "chat.1", 0)
	await(t, full, `failures[0]?.code ?? ""`, "limit")
	says(t, full, "opened", "0")
	says(t, ctx, "messages", "first")
}
