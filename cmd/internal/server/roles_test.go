package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestAHubHonoursTheDatabasesRoles: a role that may not read or publish in the database may not listen or notify at a hub either, nor on
// channels that weir.restrict excludes. A role that is or can become a superuser can't log in at all.
func TestAHubHonoursTheDatabasesRoles(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	s := start(t, Config{Database: database})
	super, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	super.Host = s.PGAddr().String()
	restricted := clientURL(t, s, database, "IN ROLE weir_subscribe, weir_publish")
	if _, err := pool.Exec(t.Context(), `SELECT weir.restrict($1, listens => ARRAY['orders.*'], notifies => ARRAY['chat'])`, restricted.User.Username()); err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		who                   string
		url                   *url.URL
		login, listen, notify string // SQLSTATE
	}{
		{"nothing but LOGIN", clientURL(t, s, database, ""), "", "42501", "42501"},
		{"a subscriber", clientURL(t, s, database, "IN ROLE weir_subscribe"), "", "", "42501"},
		{"a publisher", clientURL(t, s, database, "IN ROLE weir_publish"), "", "42501", ""},
		{"one who inherits nothing", clientURL(t, s, database, "NOINHERIT IN ROLE weir_publish"), "", "42501", "42501"},
		{"one who is restricted", restricted, "", "42501", "42501"},
		{"a superuser", super, "28P01", "", ""},
		{"another superuser", clientURL(t, s, database, "SUPERUSER"), "28P01", "", ""},
		{"one who may become a superuser", clientURL(t, s, database, "IN ROLE "+super.User.Username()), "28P01", "", ""},
		{"one who replicates", clientURL(t, s, database, "REPLICATION IN ROLE weir_subscribe"), "28P01", "", ""},
	} {
		conn, err := connect(t, try.url, try.login == "") // roles to be refused come last: by then the hub knows them
		if sqlstate(err) != try.login {
			t.Errorf("%s logs in: %v, want %q", try.who, err, try.login)
		}
		if conn == nil {
			continue
		}
		if _, err := conn.Exec(t.Context(), `LISTEN news`); sqlstate(err) != try.listen {
			t.Errorf("%s listens: %v, want %q", try.who, err, try.listen)
		}
		if _, err := conn.Exec(t.Context(), `NOTIFY news`); sqlstate(err) != try.notify {
			t.Errorf("%s notifies: %v, want %q", try.who, err, try.notify)
		}
		if try.url == restricted {
			if _, err := conn.Exec(t.Context(), `LISTEN "orders.new"; NOTIFY chat`); err != nil {
				t.Errorf("%s where it may: %v", try.who, err)
			}
		}
		_ = conn.Close(t.Context())
	}
}

// TestRevokedRolesAreCutOff: a listening client whose role loses the required membership, or may no longer log in, receives an error and is
// disconnected.
func TestRevokedRolesAreCutOff(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	s := start(t, Config{Database: database})
	for _, revoke := range []string{"REVOKE weir_subscribe FROM %s", "ALTER ROLE %s NOLOGIN"} {
		conn := listen(t, s, database, "a")
		if _, err := pool.Exec(t.Context(), fmt.Sprintf(revoke, pgx.Identifier{conn.Config().User}.Sanitize())); err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		go func() {
			_, err := conn.WaitForNotification(ctx)
			told <- err
		}()
		for heard := false; !heard; {
			if err := s.pg.Recheck(ctx); err != nil { // as the hub does periodically
				t.Fatal(err)
			}
			select {
			case err := <-told:
				if heard = true; sqlstate(err) != "28000" {
					t.Errorf(revoke+": the client is told %v, want 28000", "it", err)
				}
			case <-time.After(100 * time.Millisecond):
			}
		}
		cancel()
	}
}

func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestAHubThatCannotCheckPasswordsIsNotReady: if Weir's owner may not read the roles' passwords, a hub logs it once, with the fix, however
// many clients try to log in. It becomes ready once it may read them.
func TestAHubThatCannotCheckPasswordsIsNotReady(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE ROLE weir_poor_owner; GRANT ALL ON SCHEMA weir TO weir_poor_owner; GRANT SELECT ON weir.role_channel TO weir_poor_owner;
		ALTER FUNCTION weir._logins OWNER TO weir_poor_owner`)
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), `DROP OWNED BY weir_poor_owner; DROP ROLE weir_poor_owner`)
	})
	var log pgtest.Log
	s := start(t, Config{Database: database, Logger: log.Logger()})
	if log.Count("no client of the wire protocol can log in") != 1 || log.Count("pg_catalog.pg_authid") != 1 {
		t.Errorf("at the start it says:\n%s", log.String())
	}
	pgtest.Until(t, "the hub is live", s.Hub().Live)
	if err := s.Ready(); !store.IsDenied(err) || !strings.Contains(err.Error(), "--users-file") {
		t.Errorf("ready: %v", err)
	}
	client := clientURL(t, s, database, "IN ROLE weir_subscribe")
	asked := time.Now()
	for tries := 0; tries < 30 || time.Since(asked) < 3*time.Second; tries++ { // long enough for the hub to read the roles again
		if _, err := connect(t, client, false); sqlstate(err) != "57P03" {
			t.Fatalf("a client is told %v, want 57P03", err)
		}
	}
	if n := log.Count("level=ERROR") + log.Count("level=WARN"); n != 2 || log.Count("no client can log in now") != 1 {
		t.Errorf("%d lines were logged, want one of the roles and one of the clients:\n%s", n, log.String())
	}
	exec(`GRANT SELECT ON pg_catalog.pg_authid TO weir_poor_owner`)
	pgtest.Until(t, "it is ready, as it may", func() bool { return s.Ready() == nil })
	if log.Count("can log in again") != 1 {
		t.Errorf("it does not say that it is over:\n%s", log.String())
	}
}

// TestASubscriberReadsWhatHubsCut: a role that may only subscribe receives messages directly from the database while a hub runs.
func TestASubscriberReadsWhatHubsCut(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	s := start(t, Config{Database: database})
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = clientURL(t, s, database, "IN ROLE weir_subscribe").User
	poor := pgtest.Pool(t, u.String())
	sub, err := weir.Subscribe(t.Context(), weir.SubscribeConfig{Client: weir.NewClient(poor), Channels: []string{"news"}})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('news', 'one')`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for event, err := range sub.All(ctx) {
		if err != nil || event.Message == nil || string(event.Message.Payload) != "one" {
			t.Fatalf("got %+v, %v", event, err)
		}
		break
	}
}

// TestAHubForEverybodyIsNamed: an anonymous hub on other addresses than loopback requires host names.
func TestAHubForEverybodyIsNamed(t *testing.T) {
	t.Parallel()
	config := Config{Database: pgtest.Database(t), ListenHTTP: "0.0.0.0:0", Name: "open", Web: web.Config{Anonymous: true}}
	if s, err := Start(t.Context(), config); err == nil || !strings.Contains(err.Error(), "--host") {
		t.Errorf("it starts: %v", err)
		if err == nil {
			_ = s.Stop(t.Context())
		}
	}
}

// TestOperatorsEndClientsOfTheWireProtocol: operators can list clients, and end them by user.
func TestOperatorsEndClientsOfTheWireProtocol(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := start(t, Config{Database: database, ListenAdmin: "127.0.0.1:0"})
	conn := listen(t, s, database, "a")
	url := "http://" + s.AdminAddr().String() + "/clients?user=" + conn.Config().User
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(response.Body)
		if response.Body.Close(); !strings.Contains(string(b), map[string]string{http.MethodGet: `"protocol":"postgresql"`, http.MethodDelete: `"ended":1`}[method]) {
			t.Errorf("%s: %d %s", method, response.StatusCode, b)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := conn.WaitForNotification(ctx); sqlstate(err) != "57P01" {
		t.Errorf("the client is told %v, want 57P01", err)
	}
}
