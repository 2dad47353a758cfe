package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

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

// TestTwoPlacesOfOneDatabaseAreNoticed: each has a hub, and the log names both.
func TestTwoPlacesOfOneDatabaseAreNoticed(t *testing.T) {
	t.Parallel()
	database, apart := pgtest.Database(t), pgtest.Database(t)
	again := strings.Replace(database, "127.0.0.1", "localhost", 1)
	_, full := namesOf(t, database)
	_, other := namesOf(t, again)
	_, third := namesOf(t, apart)
	var l list
	l.set(database, again, apart)
	var log pgtest.Log
	m := startMany(t, &l, ManyConfig{Config: Config{Logger: log.Logger()}})
	u := roleURL(t, database, "IN ROLE weir_subscribe")
	u.Host = m.PGAddr().String()
	listenThere(t, m, apart, "news")
	for _, u.Path = range []string{full, other} {
		if _, err := listenAs(t, u, "news"); err != nil {
			t.Fatal(err)
		}
	}
	if text := log.String(); log.Count("two places of the list lead to one database") != 1 || !strings.Contains(text, "database="+other+" and="+full) || strings.Contains(text, "and="+third) {
		t.Errorf("the log: %s, want one line, with %s and %s", text, other, full)
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
