package server

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = time.Minute

// start runs a hub process on the database until the test ends.
func start(t testing.TB, c Config) *Server {
	t.Helper()
	c.Name = cmp.Or(c.Name, t.Name())
	if c.ListenPG == "" {
		c.ListenPG = "127.0.0.1:0"
	}
	c.ListenHTTP = "127.0.0.1:0"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

// clientURL creates a role that may log in, with these options, and returns its URL at the hub.
func clientURL(t testing.TB, s *Server, database, options string) *url.URL {
	t.Helper()
	u := roleURL(t, database, options)
	u.Host = s.PGAddr().String()
	return u
}

// roleURL creates a role that may log in, with these options, and returns its URL at the database.
func roleURL(t testing.TB, database, options string) *url.URL {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	role := "weir_client_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret' %s`, role, options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // roles belong to the server, which other tests use
		if conn, err := pgx.Connect(context.Background(), database); err == nil {
			_, _ = conn.Exec(context.Background(), `DROP ROLE `+role)
			_ = conn.Close(context.Background())
		}
	})
	u.User = url.UserPassword(role, "secret")
	return u
}

// listen connects to the hub as a PostgreSQL client, with a role that may listen and notify.
func listen(t testing.TB, s *Server, database string, channels ...string) *pgx.Conn {
	t.Helper()
	u := clientURL(t, s, database, "IN ROLE weir_subscribe, weir_publish")
	conn, err := connect(t, u, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, c := range channels {
		if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{c}.Sanitize()); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// connect connects to a hub. With soon it waits until the hub knows a new role.
func connect(t testing.TB, u *url.URL, soon bool) (*pgx.Conn, error) {
	t.Helper()
	for end := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		conn, err := pgx.Connect(t.Context(), u.String())
		if err == nil || !soon || !strings.Contains(err.Error(), "28P01") || time.Now().After(end) {
			return conn, err
		}
	}
}

func received(t testing.TB, conn *pgx.Conn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return n.Channel + "=" + n.Payload
}

// TestOneHubServesBothProtocols: what a transaction publishes reaches clients of PostgreSQL's protocol, which log in with the database's
// passwords, and clients of HTTP.
func TestOneHubServesBothProtocols(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	s := start(t, Config{Database: database, DurableNotify: true, Web: web.Config{Anonymous: true}})
	conn := listen(t, s, database, "orders")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.HTTPAddr().String()+"/v1/events?channel=orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()

	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders', 'one')`); err != nil {
		t.Fatal(err)
	}
	if got := received(t, conn); got != "orders=one" {
		t.Errorf("got %q", got)
	}
	if _, err := conn.Exec(t.Context(), `SELECT pg_notify($1, $2)`, "orders", "two"); err != nil {
		t.Fatal(err)
	}
	if got := received(t, conn); got != "orders=two" {
		t.Errorf("got %q", got)
	}
	var had []string
	for lines := bufio.NewScanner(response.Body); len(had) < 2 && lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data:"); ok && strings.Contains(data, "orders") {
			had = append(had, data)
		}
	}
	if len(had) != 2 || !strings.Contains(had[0], "one") || !strings.Contains(had[1], "two") {
		t.Errorf("over SSE: %q", had)
	}
}

// TestWrongPasswordIsRefused: passwords are checked with the database's verifiers.
func TestWrongPasswordIsRefused(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, Config{Database: database})
	u := clientURL(t, s, database, "")
	u.User = url.UserPassword(u.User.Username(), "not the password")
	if conn, err := pgx.Connect(t.Context(), u.String()); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a wrong password was let in")
	} else if !strings.Contains(err.Error(), "28P01") {
		t.Errorf("got %v, want SQLSTATE 28P01", err)
	}
}
