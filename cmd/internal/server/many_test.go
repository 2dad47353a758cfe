package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
