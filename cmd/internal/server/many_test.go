package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/pgtest"
)

// list is a list of databases that tests change.
type list struct{ urls atomic.Pointer[[]string] }

func (l *list) set(urls ...string) { l.urls.Store(&urls) }

func (l *list) read() ([]string, error) { return *l.urls.Load(), nil }

// startMany serves a list until the test ends. It reads the list often.
func startMany(t testing.TB, l *list, c ManyConfig) *Many {
	t.Helper()
	c.Name, c.List, c.ListEvery = t.Name(), l.read, 20*time.Millisecond
	c.ListenPG, c.ListenHTTP = "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := StartMany(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return m
}

// namesOf returns the names of a database.
func namesOf(t testing.TB, database string) (short, full string) {
	t.Helper()
	n, err := connstring.Named(database)
	if err != nil {
		t.Fatal(err)
	}
	return n.Short, n.Full
}

// listenThere connects by the wire protocol to a database of many, and listens.
func listenThere(t testing.TB, m *Many, database, channel string) *pgx.Conn {
	t.Helper()
	u := roleURL(t, database, "IN ROLE weir_subscribe, weir_publish")
	u.Host = m.PGAddr().String()
	conn, err := listenAs(t, u, channel)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// listenAs does so as a role that is there.
func listenAs(t testing.TB, u *url.URL, channel string) (*pgx.Conn, error) {
	t.Helper()
	conn, err := connect(t, u, true)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), `LISTEN `+pgx.Identifier{channel}.Sanitize())
	return conn, err
}

// stays opens something at a hub which may rest so soon that a client that is slow to log in has to come again.
func stays[T any](t testing.TB, m *Many, database string, open func() (T, error)) (opened T) {
	t.Helper()
	pgtest.Eventually(t, func() (err error) {
		if opened, err = open(); err == nil && m.Hub(database) == nil {
			err = errors.New("no hub runs, though there is a client")
		}
		return err
	})
	return opened
}

// at answers a request to a database of many.
func at(t testing.TB, m *Many, method, name, path, token string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://%s/databases/%s%s", m.HTTPAddr(), name, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// code returns the SQLSTATE of an error.
func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}

// TestManyDatabasesAreServedApart: each client hears its own database only, by each protocol and by both names; what a token may in one database it may not in another.
func TestManyDatabasesAreServedApart(t *testing.T) {
	t.Parallel()
	one, two := pgtest.Database(t), pgtest.Database(t)
	var l list
	l.set(one, two)
	m := startMany(t, &l, ManyConfig{Config: Config{Web: web.Config{Authorizer: authorizer(t)}}})
	for _, database := range []string{one, two} {
		listener := listenThere(t, m, database, "news")
		if _, err := listener.Exec(t.Context(), `SELECT pg_notify('news', $1)`, database); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		n, err := listener.WaitForNotification(ctx)
		cancel()
		if err != nil || n.Payload != database {
			t.Fatalf("%v, %v, want that of its own database", n, err)
		}
	}
	short, full := namesOf(t, one)
	other, _ := namesOf(t, two)
	may := map[string]any{"subscribe": []string{"news"}, "publish": []string{"news"}, "databases": []string{short}}
	token := tokenFor(t, "ada", nil, nil, jwt.MapClaims{"weir": may})
	for name, want := range map[string]int{short: http.StatusOK, other: http.StatusForbidden} {
		status, body := at(t, m, "POST", name, "/v1/publish", token)
		if want == http.StatusOK && status == http.StatusBadRequest { // the body is empty, which is read after the token
			status = http.StatusOK
		}
		if status != want {
			t.Errorf("publishing in %s: %d: %s", name, status, body)
		}
	}
	if status, body := at(t, m, "POST", full, "/v1/publish", token); status != http.StatusBadRequest {
		t.Errorf("publishing by the full name: %d: %s", status, body)
	}
	for _, c := range []struct{ name, token, want string }{{short, token, ""}, {full, token, ""}, {other, token, "403"}, {short, tokenFor(t, "ada", []string{"news"}, nil, nil), "403"}} {
		conn, answer, err := websocket.Dial(t.Context(), fmt.Sprintf("http://%s/databases/%s/v1/ws", m.HTTPAddr(), c.name), &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}}})
		if err == nil {
			_ = conn.CloseNow()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(answer.Status, c.want) {
			t.Errorf("a WebSocket at %s: %v, want %s", c.name, err, c.want)
		}
	}
	answer, err := http.Get(fmt.Sprintf("http://%s/metrics", m.HTTPAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, otherFull := namesOf(t, two)
	for _, want := range []string{"weir_hub_databases 2\n", fmt.Sprintf("weir_pg_connections{database=%q} 1\n", full), fmt.Sprintf("weir_pg_connections{database=%q} 1\n", otherFull)} {
		if !strings.Contains(string(text), want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}

// TestAHubRunsWhileItHasClients: a database of the list costs no connection before its first client comes, nor when its last one has left for long; clients without a token don't
// start a hub.
func TestAHubRunsWhileItHasClients(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database)
	m := startMany(t, &l, ManyConfig{Idle: 200 * time.Millisecond, Config: Config{Web: web.Config{Authorizer: authorizer(t)}}})
	pool := pgtest.Pool(t, database)
	connections := func() (n int) {
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'weir hub%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, token := range []string{"", "no token"} {
		if status, body := at(t, m, "GET", short, "/v1/events?channel=news", token); status != http.StatusUnauthorized {
			t.Errorf("with the token %q: %d: %s", token, status, body)
		}
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK, "/nothing": http.StatusNotFound} {
		if status, body := at(t, m, "GET", short, path, ""); status != want {
			t.Errorf("%s: %d: %s", path, status, body)
		}
	}
	if status, body := at(t, m, "OPTIONS", short, "/v1/publish", ""); status != http.StatusNoContent {
		t.Errorf("a preflight: %d: %s", status, body)
	}
	if n := connections(); n != 0 || m.Hub(database) != nil {
		t.Errorf("%d connections before the first client", n)
	}
	u := roleURL(t, database, "IN ROLE weir_subscribe, weir_publish")
	u.Host = m.PGAddr().String()
	for range 2 {
		listener := stays(t, m, database, func() (*pgx.Conn, error) { return listenAs(t, u, "news") })
		if connections() == 0 {
			t.Error("a hub runs without connections")
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) { // five times as long as a hub without clients runs
			if m.Hub(database) == nil {
				t.Fatal("the hub has ended, though there is a client")
			}
		}
		if err := listener.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		pgtest.Until(t, "the hub has ended, and its connections", func() bool { return m.Hub(database) == nil && connections() == 0 })
	}
}

// TestAHubRunsForStreamsAndNotForStrangers: streams and sessions of every kind keep a hub running, also those that have taken their connection over from net/http; who is refused, or
// asks how the hub is, does not.
func TestAHubRunsForStreamsAndNotForStrangers(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database)
	m := startMany(t, &l, ManyConfig{Idle: 200 * time.Millisecond, Config: Config{Jobs: true, Web: web.Config{Authorizer: authorizer(t)}}})
	token := tokenFor(t, "ada", nil, nil, jwt.MapClaims{"weir": map[string]any{"subscribe": []string{"news"}, "work": []string{"mail"}, "databases": []string{short}}})
	socket := func(path string) func(context.Context) (func(), error) {
		return func(ctx context.Context) (func(), error) {
			conn, _, err := websocket.Dial(ctx, fmt.Sprintf("http://%s/databases/%s%s", m.HTTPAddr(), short, path), &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
			if err != nil {
				return nil, err
			}
			return func() { _ = conn.CloseNow() }, nil
		}
	}
	events := func(ctx context.Context) (func(), error) {
		request, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s/databases/%s/v1/events?channel=news&access_token=%s", m.HTTPAddr(), short, token), nil)
		if err != nil {
			return nil, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode != http.StatusOK {
			return nil, errors.Join(errors.New(answer.Status), answer.Body.Close())
		}
		return func() { _ = answer.Body.Close() }, nil
	}
	for what, open := range map[string]func(context.Context) (func(), error){"a WebSocket": socket("/v1/ws"), "events": events, "a worker's session": socket("/v1/work/ws")} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		leave := stays(t, m, database, func() (func(), error) { return open(ctx) })
		for end := time.Now().Add(time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) { // five times as long as a hub without clients runs
			if m.Hub(database) == nil {
				t.Fatalf("the hub has ended, though there is %s", what)
			}
		}
		leave()
		cancel()
		pgtest.Until(t, "the hub has ended, though strangers and supervisors ask", func() bool {
			for path, want := range map[string]int{"/readyz": http.StatusOK, "/metrics": http.StatusOK, "/v1/events?channel=news": http.StatusUnauthorized} {
				if status, body := at(t, m, "GET", short, path, ""); status != want && status != http.StatusServiceUnavailable { // it ends just now
					t.Errorf("%s: %d: %s", path, status, body)
				}
			}
			return m.Hub(database) == nil
		})
	}
}

// TestClientsLeaveWhateverElseEnds: at a stop, clients are told at once, also if the UI still waits for a page, which waits for its database.
func TestClientsLeaveWhateverElseEnds(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database)
	told := make(chan struct{})
	ui := &UI{
		Many: func(context.Context, *Many) (http.Handler, error) { return http.NotFoundHandler(), nil },
		Run: func(ctx context.Context) {
			<-ctx.Done()
			<-told
		},
	}
	m := startMany(t, &l, ManyConfig{Config: Config{UI: ui, Web: web.Config{Anonymous: true}}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, fmt.Sprintf("http://%s/databases/%s/v1/ws", m.HTTPAddr(), short), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	go func() { // ends with the WebSocket
		defer close(told)
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				if ctx.Err() != nil {
					t.Error("the client was not told")
				}
				return
			}
		}
	}()
	if err := m.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestAStopThatTakesLongIsNoFailure: what had to be cut off when the drain was over was no failure then, and is none because something else takes longer than the stop may.
func TestAStopThatTakesLongIsNoFailure(t *testing.T) {
	t.Parallel()
	var l list
	l.set("postgres://ada@127.0.0.1:1/app")
	stopping, cancel := context.WithTimeout(t.Context(), 2*time.Second) // two hundred times as long as the drain
	defer cancel()
	asked := make(chan struct{})
	ui := &UI{
		Many: func(context.Context, *Many) (http.Handler, error) {
			return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(asked)
				<-r.Context().Done() // the page is cut off
			}), nil
		},
		Run: func(context.Context) { <-stopping.Done() },
	}
	m := startMany(t, &l, ManyConfig{Config: Config{UI: ui, Drain: 10 * time.Millisecond, Web: web.Config{Anonymous: true}}})
	left := make(chan struct{})
	go func() {
		defer close(left)
		if answer, err := http.Get(fmt.Sprintf("http://%s/ui/", m.HTTPAddr())); err == nil {
			_ = answer.Body.Close()
		}
	}()
	pgtest.Receive(t, asked, "the page is asked for")
	if err := m.Stop(stopping); err != nil {
		t.Error(err)
	}
	pgtest.Receive(t, left, "the page is cut off")
}

// TestNobodyGivesUpADatabaseOfAServerThatStops: a request that comes when the hubs have ended already is to be sent again, which one for a database that is not served is not.
func TestNobodyGivesUpADatabaseOfAServerThatStops(t *testing.T) {
	t.Parallel()
	var l list
	l.set("postgres://ada@127.0.0.1:1/app")
	m := startMany(t, &l, ManyConfig{Config: Config{Web: web.Config{Anonymous: true}}})
	m.stopping.Store(true)
	for _, d := range m.all() {
		d.leave()
	}
	if status, body := at(t, m, "GET", "app", "/v1/events?channel=news", ""); status != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
		t.Errorf("%d: %s, want 503, draining", status, body)
	}
}

// TestAHubStartsWhateverHappensToFiles: what the process has read of its files stays in force while they are being replaced, also for a hub that starts only now; there, too, channels
// may be open to anyone. What is wrong from the beginning is said at the start.
func TestAHubStartsWhateverHappensToFiles(t *testing.T) {
	t.Parallel()
	database, dir := pgtest.Database(t), t.TempDir()
	short, _ := namesOf(t, database)
	var l list
	l.set(database)
	cert, key, pool := certificateFor(t, dir, "many")
	channels := filepath.Join(dir, "channels.json")
	write := func(text string) {
		if err := os.WriteFile(channels, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"channels": [{"match": "news", "subscribe": "anyone"}]}`)
	c := Config{TLSCert: cert, TLSKey: key, RequireTLS: true, ChannelsFile: channels, Web: web.Config{Authorizer: authorizer(t)}}
	m := startMany(t, &l, ManyConfig{Config: c})
	write(`half a`)
	for _, path := range []string{cert, key} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("https://%s/databases/%s/v1/events?channel=news", m.HTTPAddr(), short), nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		t.Errorf("%s: %s", answer.Status, text)
	}
	for want, c := range map[string]Config{"channels": {ChannelsFile: channels}, "origin": {Web: web.Config{Origins: []string{"["}}}} {
		c.ListenHTTP, c.Name, c.Web.Anonymous = "127.0.0.1:0", t.Name(), true
		wrong, err := StartMany(ctx, ManyConfig{Config: c, List: l.read})
		if err == nil {
			err = wrong.Stop(ctx)
			t.Errorf("a mistake in what is about %s is not noticed, %v", want, err)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("a mistake in what is about %s: %v", want, err)
		}
	}
}

// TestPagesCanReadWhyADatabaseIsRefused: one that can't takes it for a lost connection, and tries again for ever. Pages of foreign origins start no hub.
func TestPagesCanReadWhyADatabaseIsRefused(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database, "postgres://ada@127.0.0.1:1/gone")
	m := startMany(t, &l, ManyConfig{Config: Config{ListenAdmin: "127.0.0.1:0", Web: web.Config{Authorizer: authorizer(t), Origins: []string{"app.example.com"}}}})
	token := func(name string) string {
		return tokenFor(t, "ada", nil, nil, jwt.MapClaims{"weir": map[string]any{"subscribe": []string{"news"}, "databases": []string{name}}})
	}
	ask := func(address net.Addr, name, origin, token string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/databases/%s/v1/events?channel=news", address, name), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", "https://"+origin)
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer
	}
	for _, c := range []struct {
		name, origin, token string
		want                int
	}{
		{short, "app.example.com", "none", http.StatusUnauthorized}, {short, "app.example.com", token("gone"), http.StatusForbidden}, {short, "evil.example.com", token(short), http.StatusForbidden},
		{"nowhere", "app.example.com", token("nowhere"), http.StatusNotFound}, {"gone", "app.example.com", token("gone"), http.StatusServiceUnavailable},
	} {
		answer := ask(m.HTTPAddr(), c.name, c.origin, c.token)
		if answer.StatusCode != c.want || answer.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s, of a page of %s: %s with %v, want %d which it can read", c.name, c.origin, answer.Status, answer.Header, c.want)
		}
	}
	for _, name := range []string{short, "nowhere", "gone"} {
		if status, body := at(t, m, "OPTIONS", name, "/v1/events", ""); status != http.StatusNoContent {
			t.Errorf("what a browser asks first, at %s: %d: %s", name, status, body)
		}
	}
	if m.Hub(database) != nil {
		t.Error("a page that is refused has started a hub")
	}
	if answer := ask(m.AdminAddr(), "nowhere", "app.example.com", ""); answer.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a page can read what operators are told: %v", answer.Header)
	}
}

// TestWhoIsNoOperatorStartsNoHub: where operators have tokens, they alone make a hub start to ask it for its clients.
func TestWhoIsNoOperatorStartsNoHub(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	var l list
	l.set(database)
	tokens := filepath.Join(t.TempDir(), "operators")
	if err := os.WriteFile(tokens, []byte("the token of an operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := startMany(t, &l, ManyConfig{Config: Config{ListenAdmin: "127.0.0.1:0", AdminTokenFile: tokens, Web: web.Config{Authorizer: authorizer(t)}}})
	ask := func(path, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%s/databases/%s%s", m.AdminAddr(), short, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	for path, want := range map[string]int{"/clients": http.StatusUnauthorized, "/users/revoke": http.StatusUnauthorized, "/nothing": http.StatusNotFound, "/metrics": http.StatusOK, "/readyz": http.StatusOK} {
		if got := ask(path, "another token of somebody"); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	if m.Hub(database) != nil {
		t.Error("who is no operator has started a hub")
	}
	if got := ask("/clients", "the token of an operator"); got != http.StatusOK {
		t.Errorf("an operator: %d", got)
	}
}

// TestMetricsAreGatheredAtOnce: from all hubs, so that databases that don't answer delay a scrape no longer than one of them does.
func TestMetricsAreGatheredAtOnce(t *testing.T) {
	t.Parallel()
	const hubs = 3
	begun, all := make(chan struct{}, hubs), make(chan struct{})
	go func() { // ends when all have begun, or the test does
		for range hubs {
			select {
			case <-begun:
			case <-t.Context().Done():
				return
			}
		}
		close(all)
	}()
	var some []prometheus.Gatherer
	for i := range hubs {
		registry := prometheus.NewRegistry()
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "asked"}, func() float64 {
			begun <- struct{}{}
			select {
			case <-all:
				return 1
			case <-time.After(patience):
				return 0
			}
		}))
		some = append(some, labelled{registry, fmt.Sprintf("app%d", i)})
	}
	families, err := atOnce(some).Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != hubs {
		t.Fatalf("%v, %v", families, err)
	}
	for _, metric := range families[0].Metric {
		if metric.GetGauge().GetValue() != 1 {
			t.Errorf("%v was gathered after another one", metric)
		}
	}
}

// TestDatabasesComeAndGo: one that is listed no more ends its clients, and no others; one that can't be reached is refused, and served when it can.
func TestDatabasesComeAndGo(t *testing.T) {
	t.Parallel()
	stays, goes := pgtest.Database(t), pgtest.Database(t)
	var l list
	l.set(stays, "no connection string, with secret", "postgres://ada:secret@127.0.0.1:1/gone")
	var log pgtest.Log
	m := startMany(t, &l, ManyConfig{Config: Config{Web: web.Config{Anonymous: true}, Logger: log.Logger(), Drain: time.Second}})
	first := listenThere(t, m, stays, "news")
	u := roleURL(t, goes, "IN ROLE weir_subscribe, weir_publish")
	u.Host = m.PGAddr().String()
	for name, want := range map[string]string{"gone": "57P03", strings.TrimPrefix(u.Path, "/"): "3D000"} {
		at := url.URL{Scheme: "postgres", User: u.User, Host: u.Host, Path: name}
		if _, err := pgx.Connect(t.Context(), at.String()); code(err) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if status, body := at(t, m, "GET", "gone", "/v1/events?channel=news", ""); status != http.StatusServiceUnavailable {
		t.Errorf("one that can't be reached: %d: %s", status, body)
	}
	if status, body := at(t, m, "GET", "gone", "/readyz", ""); status != http.StatusServiceUnavailable {
		t.Errorf("whether one that can't be reached is ready: %d: %s", status, body)
	}
	if status, body := at(t, m, "GET", "nowhere", "/v1/events?channel=news", ""); status != http.StatusNotFound {
		t.Errorf("one that is not listed: %d: %s", status, body)
	}
	l.set(stays, goes)
	_, full := namesOf(t, goes)
	pgtest.Until(t, "the new one is listed", func() bool {
		_, err := m.find(full)
		return err == nil
	})
	second := listenThere(t, m, goes, "news")
	l.set(stays)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := second.WaitForNotification(ctx); code(err) != "57P01" {
		t.Errorf("the client of what is listed no more: %v, want 57P01", err)
	}
	if _, err := first.Exec(t.Context(), `NOTIFY news, 'still here'`); err != nil {
		t.Errorf("the other one's: %v", err)
	}
	if n, err := first.WaitForNotification(ctx); err != nil || n.Payload != "still here" {
		t.Errorf("the other one's: %v, %v", n, err)
	}
	if text := log.String(); strings.Contains(text, "secret") || log.Count("a database of the list can't be used") != 1 || !strings.Contains(text, "databases=4 new=1 gone=0") {
		t.Errorf("the log: %s", text)
	}
}

// TestAShortNameThatSeveralHave stands for none of them, as soon as there are several, and no token for it is worth anything then.
func TestAShortNameThatSeveralHave(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	again := strings.Replace(database, "127.0.0.1", "localhost", 1)
	short, full := namesOf(t, database)
	_, other := namesOf(t, again)
	var l list
	l.set(database)
	var log pgtest.Log
	m := startMany(t, &l, ManyConfig{Config: Config{Logger: log.Logger(), Web: web.Config{Authorizer: authorizer(t)}}})
	token := tokenFor(t, "ada", nil, nil, jwt.MapClaims{"weir": map[string]any{"publish": []string{"news"}, "databases": []string{short}}})
	if status, body := at(t, m, "POST", short, "/v1/publish", token); status != http.StatusBadRequest {
		t.Fatalf("while only one has the name: %d: %s", status, body)
	}
	l.set(database, again)
	pgtest.Until(t, "both are listed", func() bool { return len(m.all()) == 2 })
	status, body := at(t, m, "POST", short, "/v1/publish", token)
	if status != http.StatusNotFound || strings.Contains(body, full) || strings.Contains(body, other) {
		t.Errorf("when both have the name: %d: %s, want no names of hosts", status, body)
	}
	if text := log.String(); log.Count("a name stands for no database") != 1 || !strings.Contains(text, full) || !strings.Contains(text, other) {
		t.Errorf("the log: %s, want both full names, once", text)
	}
	for _, name := range []string{full, other} {
		if status, body := at(t, m, "POST", name, "/v1/publish", token); status != http.StatusForbidden {
			t.Errorf("a token for the short name, at %s: %d: %s", name, status, body)
		}
	}
}

// TestNamesThatBecomeOneStandForNone: characters that addresses can't have are replaced, so names of different databases may become the same.
func TestNamesThatBecomeOneStandForNone(t *testing.T) {
	t.Parallel()
	m := &Many{}
	listed := func(text string) *member {
		d := newMember(m, text)
		if d.err != nil {
			t.Fatal(d.err)
		}
		return d
	}
	for _, c := range []struct {
		urls  []string
		names []string // of the first
		found map[string]bool
	}{
		{[]string{"host=a dbname=app", "host=a dbname=app user=other"}, []string{"app.a-5432", "app"}, map[string]bool{"app": true, "app.a-5432": true, "other": false}},
		{[]string{"host=a dbname=app", "host=b dbname=app"}, []string{"app.a-5432"}, map[string]bool{"app": false, "app.a-5432": true, "app.b-5432": true}},
		{[]string{"host=a dbname='my db'", "host=a dbname=my-db"}, []string{}, map[string]bool{"my db": false, "my-db": false, "my-db.a-5432": false}},
		{[]string{"host=a dbname=app", "host=b dbname=app.a-5432"}, []string{"app"}, map[string]bool{"app": true, "app.a-5432": false, "app.a-5432.b-5432": true}},
		{[]string{"host=b.c dbname=a", "host=c dbname=a.b"}, []string{"a"}, map[string]bool{"a": true, "a.b": true, "a.b.c-5432": false}},
	} {
		var all []*member
		for _, u := range c.urls {
			all = append(all, listed(u))
		}
		m.list.Store(newListing(all))
		if got := *all[0].names.Load(); !slices.Equal(got, c.names) {
			t.Errorf("%v: the first has the names %q, want %q", c.urls, got, c.names)
		}
		for name, want := range c.found {
			if _, err := m.find(name); (err == nil) != want {
				t.Errorf("%v: %s: %v", c.urls, name, err)
			}
		}
	}
}

// TestWhatIsMissingOnceIsServedOn: a list may be read while it is written. A name whose database is another one now leads there at once.
func TestWhatIsMissingOnceIsServedOn(t *testing.T) {
	t.Parallel()
	m := &Many{log: slog.New(slog.DiscardHandler)}
	m.list.Store(newListing(nil))
	found := func(name string) string {
		d, err := m.find(name)
		if err != nil {
			return ""
		}
		return d.url
	}
	const stays, goes, moved = "host=a dbname=stays", "host=a dbname=app", "host=b dbname=app"
	m.set([]string{stays, goes})
	before, err := m.find("app")
	if err != nil {
		t.Fatal(err)
	}
	m.set([]string{stays})
	m.set([]string{stays, goes})
	m.set([]string{stays})
	if after, err := m.find("app"); after != before {
		t.Errorf("missing once, twice: %v, %v, want the database as it was", after, err)
	}
	m.set([]string{stays})
	if got := found("app"); got != "" || found("stays") != stays {
		t.Errorf("missing twice in a row, it is still found: %q", got)
	}
	m.set([]string{goes})
	m.set([]string{moved})
	if got, old := found("app"), found("app.a-5432"); got != moved || old != goes {
		t.Errorf("the name of a database that has moved leads to %q, and the full one to %q", got, old)
	}
	m.hubs.Wait()
}

// TestANameOfSeveralStandsForNoneWhileTheyAreMissing: a list that is read while it is written lacks one of the databases with a name, or all, and a token for one of them is none for another.
func TestANameOfSeveralStandsForNoneWhileTheyAreMissing(t *testing.T) {
	t.Parallel()
	const stays, one, other = "host=c dbname=stays", "host=a dbname=app", "host=b dbname=app"
	for what, left := range map[string][]string{"one is missing": {stays, one}, "all are missing": {stays}} {
		m := &Many{log: slog.New(slog.DiscardHandler)}
		m.list.Store(newListing(nil))
		m.set([]string{stays, one, other})
		m.set(left)
		if d, err := m.find("app"); err == nil {
			t.Errorf("%s: the name leads to %s", what, d.Full)
		}
		for _, d := range m.all() {
			if names := *d.names.Load(); d.Short == "app" && !slices.Equal(names, []string{d.Full}) {
				t.Errorf("%s: a token for any of %q is one for %s", what, names, d.Full)
			}
		}
		m.set(left)
		if d, err := m.find("app"); len(left) == 2 && (err != nil || d.url != one) {
			t.Errorf("%s for good: %v, want the one that is left", what, err)
		}
		m.hubs.Wait()
	}
}

// asking is an Authorizer that lets everybody in: the first as soon as that may go on.
type asking struct{ asked, goOn chan struct{} }

func (a asking) Authorize(ctx context.Context, ask web.Ask) (web.Grant, error) {
	select {
	case a.asked <- struct{}{}:
		select {
		case <-a.goOn:
		case <-ctx.Done():
		}
	default: // nobody looks any more
	}
	return web.Grant{Allow: ask.Filters}, nil
}

// TestALineThatIsReplacedIsNoDatabaseLess: a request that comes while a database gets another line, such as one with a new password, is served by that. Clients give up what does not exist.
func TestALineThatIsReplacedIsNoDatabaseLess(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	short, _ := namesOf(t, database)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("connect_timeout", "17")
	u.RawQuery = query.Encode()
	var l list
	l.set(database)
	a := asking{make(chan struct{}, 1), make(chan struct{})}
	m := startMany(t, &l, ManyConfig{Config: Config{Web: web.Config{Authorizer: a}}})
	before := m.all()[0]
	answers := make(chan string, 1)
	go func() {
		status, body := at(t, m, "GET", short, "/v1/presence?channel=news", "a token")
		answers <- fmt.Sprint(status, body)
	}()
	pgtest.Receive(t, a.asked, "the client is let in")
	l.set(u.String())
	pgtest.Until(t, "the old line is gone", func() bool {
		_, err := before.hub(t.Context())
		return errors.Is(err, errUnlisted)
	})
	close(a.goOn)
	if answer := pgtest.Receive(t, answers, "the client is answered"); strings.Contains(answer, "unknown_database") {
		t.Errorf("the client is told %s", answer)
	}
	if m.Hub(u.String()) == nil {
		t.Error("the new line's hub has not started")
	}
}

// deadlines is a ResponseWriter that remembers whether what is read has a deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	set bool
}

func (d *deadlines) SetReadDeadline(time.Time) error {
	d.set = true
	return nil
}

// TestNoBodyIsAwaitedForEver: net/http reads a body to its end before the next request, whatever is wrong with the path.
func TestNoBodyIsAwaitedForEver(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/databases/app/v1/publish", "/databases/app//publish", "/nothing"} {
		rw := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		cleanly(http.NewServeMux()).ServeHTTP(rw, httptest.NewRequest("POST", path, strings.NewReader("{}")))
		if rw.Code != http.StatusNotFound || !rw.set {
			t.Errorf("%s: %d, and the body has a deadline: %t", path, rw.Code, rw.set)
		}
	}
}

// TestHubsStartAFewAtATime: a process whose clients all come at once, as after its restart, does not start all hubs at once, none of which would be ready in time.
func TestHubsStartAFewAtATime(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	var l list
	l.set(database)
	m := startMany(t, &l, ManyConfig{Config: Config{Web: web.Config{Anonymous: true}}})
	for range startAtOnce {
		m.starts <- struct{}{}
	}
	d := m.all()[0]
	short, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	if _, err := d.hub(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while others start: %v", err)
	}
	<-m.starts
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := d.hub(ctx); err != nil {
		t.Errorf("when another has started: %v", err)
	}
}

// TestHubsThatCouldNotStartKeepNoOtherWaiting: nor do they wait for others. Their clients come again and again, and all of them may be those of one server that is silent.
func TestHubsThatCouldNotStartKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	var l list
	l.set("postgres://nobody@127.0.0.1:1/app", database)
	m := startMany(t, &l, ManyConfig{Config: Config{Web: web.Config{Anonymous: true}}})
	broken, sound := m.all()[0], m.all()[1]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := broken.hub(ctx); err == nil {
		t.Fatal("a hub without a server has started")
	}
	for range startAtOnce {
		m.tries <- struct{}{} // others that could not start before, and hang
	}
	pgtest.Until(t, "the hub without a server is to start again", func() bool {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, err := broken.hub(short)
		return errors.Is(err, context.DeadlineExceeded)
	})
	if _, err := sound.hub(ctx); err != nil {
		t.Errorf("the other one: %v", err)
	}
	pgtest.Until(t, "no hub starts", func() bool { return len(m.starts) == 0 })
}
