package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

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
