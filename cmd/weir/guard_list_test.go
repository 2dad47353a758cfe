package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/guard"
	"github.com/weir-pg/weir/internal/pgtest"
)

// twoDatabases returns connection strings of two databases of a server of the test's own.
func twoDatabases(t *testing.T) (one, other string) {
	t.Helper()
	server := pgtest.Server(t, nil)
	if _, err := pgtest.Pool(t, server.URL("postgres")).Exec(t.Context(), "CREATE DATABASE other"); err != nil {
		t.Fatal(err)
	}
	return server.URL("postgres"), server.URL("other")
}

// TestTheGuardChecksAListOnce: each database by itself, one with two names once, and one that can't be reached without the others noticing.
func TestTheGuardChecksAListOnce(t *testing.T) {
	t.Parallel()
	one, other := twoDatabases(t)
	list := strings.Join([]string{one, "postgres://ada:secret@127.0.0.1:1/nowhere", other, strings.Replace(one, "127.0.0.1", "localhost", 1)}, "\n")
	policy := filepath.Join(t.TempDir(), "guard.toml")
	if err := os.WriteFile(policy, []byte("interval = \"100ms\"\n[[rule]]\nname = \"apps\"\nroles = [\"app\"]\naction = \"report\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(c guardCmd) (out, errs string, err error) {
		var o, e bytes.Buffer
		c.List, c.Once, c.Policy = "-", true, policy
		err = c.Run(t.Context(), &streams{in: strings.NewReader(list), out: &o, err: &e}, nil)
		return o.String(), e.String(), err
	}
	out, errs, err := run(guardCmd{})
	if err == nil || err.Error() != "1 of 4 databases could not be checked" || strings.Contains(out+errs, "secret") {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
	if strings.Count(out, ": PostgreSQL ") != 2 || !strings.Contains(out, "=== nowhere at 127.0.0.1:1\nnot checked: cannot connect") || strings.Count(out, errListedTwice.Error()) != 1 {
		t.Errorf("printed:\n%s", out)
	}
	out, _, _ = run(guardCmd{jsonFlag: jsonFlag{JSON: true}})
	var found []foundInList
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found) != 4 || found[2].Findings == nil || found[2].Findings.Database != "other" || found[2].Cluster == "" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTheGuardFollowsItsList: what comes is guarded and what goes is not any more, while one that can't be reached is tried again; metrics are by cluster and database.
func TestTheGuardFollowsItsList(t *testing.T) {
	t.Parallel()
	one, other := twoDatabases(t)
	path := filepath.Join(t.TempDir(), "list")
	write := func(urls ...string) {
		t.Helper()
		if err := os.WriteFile(path+"~", []byte(strings.Join(urls, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
	nowhere := "postgres://ada:secret@127.0.0.1:1/nowhere"
	twice := strings.Replace(one, "127.0.0.1", "localhost", 1)
	write(one, nowhere, twice)
	var log pgtest.Log
	policy := guard.DefaultPolicy()
	policy.Interval = guard.Duration{Duration: 100 * time.Millisecond}
	l := newGuardedList(guard.Config{Policy: policy, Logger: log.Logger()})
	metrics := func() string {
		page := httptest.NewRecorder()
		promhttp.HandlerFor(l.gatherers(), promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		return page.Body.String()
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with ctx, and is waited for
		defer close(done)
		l.follow(ctx, path, []string{one, nowhere, twice}, 50*time.Millisecond)
	}()
	defer func() { stop(); pgtest.Receive(t, done, "the guards stop") }()

	pgtest.Until(t, "a database is guarded, a second name for it and one that can't be reached are not", func() bool {
		text := metrics()
		return strings.Contains(text, `weir_guard_databases{state="guarded"} 1`) && strings.Contains(text, `weir_guard_databases{state="duplicate"} 1`) &&
			strings.Contains(text, `weir_guard_databases{state="failing"} 1`) && strings.Contains(text, `database="postgres",result="done"`)
	})
	if err := l.ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	write(other, nowhere)
	pgtest.Until(t, "the other database is guarded in its place", func() bool {
		text := metrics()
		return strings.Contains(text, `database="other",result="done"`) && !strings.Contains(text, `database="postgres"`)
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "it is said that the list is gone", func() bool { return log.Count("the list can't be read again, and stays as it was") > 0 })
	if all, _ := l.guards(); len(all) != 1 || l.ready() != nil {
		t.Errorf("without a list, %d databases are guarded: %v", len(all), l.ready())
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log tells the password:\n%s", log.String())
	}
}
