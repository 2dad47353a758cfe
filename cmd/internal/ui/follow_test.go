package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestManyThatDoNotAnswerKeepNobodyFromBeingShown: the first look at a long list takes no longer than one database may take to answer.
func TestManyThatDoNotAnswerKeepNobodyFromBeingShown(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // whose connections nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	hub := pgtest.Database(t)
	const many = 20 * lookAtOnce // one after the other, so many at once, they would take longer than Until waits
	var urls []string
	for i := range many {
		urls = append(urls, fmt.Sprintf("postgres://ada@%s/app%d?sslmode=disable", silent.Addr(), i))
	}
	var log pgtest.Log
	s := start(t, server.Config{Database: hub, Logger: log.Logger()}, Config{Open: weirui.Viewer, List: func() ([]string, error) { return urls, nil }})
	pgtest.Until(t, "all are shown", func() bool {
		_, text := ask(t, "GET", s.UIURL(), "Accept", "application/json")
		var page struct{ Total int }
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return page.Total == many+1
	})
}

// TestDatabasesThatNobodyLooksAtKeepNoConnections: there may be more of them than their server has connections.
func TestDatabasesThatNobodyLooksAtKeepNoConnections(t *testing.T) {
	t.Parallel()
	hub, one := pgtest.Database(t), pgtest.Database(t)
	var calls atomic.Int32
	start(t, server.Config{Database: hub}, Config{Open: weirui.Viewer, ListEvery: 20 * time.Millisecond, List: func() ([]string, error) {
		calls.Add(1)
		return []string{one}, nil
	}})
	pgtest.Until(t, "the list is read again, so it was asked which database it is", func() bool { return calls.Load() > 1 })
	pool := pgtest.Pool(t, one)
	pgtest.Until(t, "its connections are closed", func() bool {
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir ui'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

// TestThePageOfAllLeavesAServerItsConnections: while somebody watches it, a server that has more databases than connections has room for others.
func TestThePageOfAllLeavesAServerItsConnections(t *testing.T) {
	t.Parallel()
	const databases, most = 96, 92 // a read of each at a time, and those that are kept, are 48; a busy server may have as many that are ending
	its := pgtest.Installed(t, map[string]string{"max_connections": strconv.Itoa(most), "max_wal_size": "4GB"})
	conn, err := pgx.Connect(t.Context(), its.URL("template1"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var urls []string
	for i := range databases {
		name := fmt.Sprintf("app%d", i)
		if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE postgres"); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, its.URL(name))
	}
	s := start(t, server.Config{Database: pgtest.Database(t)}, Config{Open: weirui.Viewer, List: func() ([]string, error) { return urls, nil }})
	read := map[string]time.Time{}
	pgtest.Until(t, "each database is read a second time", func() bool {
		_, text := ask(t, "GET", s.UIURL(), "Accept", "application/json")
		var page struct {
			Databases []struct {
				Name, Problem string
				At            time.Time
			}
		}
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		again := 0
		for _, d := range page.Databases {
			if d.Problem != "" {
				t.Errorf("%s can't be read: %s", d.Name, d.Problem)
			}
			if read[d.Name].IsZero() {
				read[d.Name] = d.At
			} else if d.At.After(read[d.Name]) {
				again++
			}
		}
		return t.Failed() || again > databases
	})
}

// TestTheUIFollowsAList: databases come and go while it runs, one with two names is shown once, and one that can't be reached is shown as such.
func TestTheUIFollowsAList(t *testing.T) {
	t.Parallel()
	hub, one, two := pgtest.Database(t), pgtest.Database(t), pgtest.Database(t)
	again := func(url string) string { return strings.Replace(url, "127.0.0.1", "localhost", 1) }
	var list atomic.Pointer[[]string]
	set := func(urls ...string) { list.Store(&urls) }
	set(one, again(one), again(hub), "postgres://ada:secret@127.0.0.1:1/gone", "no connection string")
	var log pgtest.Log
	s := start(t, server.Config{Database: hub, Logger: log.Logger()}, Config{Open: weirui.Viewer, List: func() ([]string, error) { return *list.Load(), nil }, ListEvery: 20 * time.Millisecond})
	called := map[string]string{"gone.127.0.0.1-1": "gone"} // by their names in the UI
	for what, at := range map[string]string{"hub": hub, "one": one, "two": two} {
		names, err := connstring.Named(at)
		if err != nil {
			t.Fatal(err)
		}
		called[names.Full] = what
		if what == "hub" {
			called[names.Short] = what
		}
	}
	names := func() string {
		_, text := ask(t, "GET", s.UIURL(), "Accept", "application/json")
		var page struct{ Databases []struct{ Name string } }
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		var shown []string
		for _, d := range page.Databases {
			if what, known := called[d.Name]; known {
				shown = append(shown, what)
			} else {
				shown = append(shown, d.Name)
			}
		}
		slices.Sort(shown)
		return strings.Join(shown, " ")
	}
	pgtest.Until(t, "the databases of the list are shown once each", func() bool { return names() == "gone hub one" })
	stranger, err := url.Parse(two)
	if err != nil {
		t.Fatal(err)
	}
	stranger.User = url.UserPassword("nobody", "secret")
	set(stranger.String(), two, one)
	pgtest.Until(t, "another has come, and one has gone", func() bool { return names() == "hub one two" })
	set(two)
	pgtest.Until(t, "a second has gone", func() bool { return names() == "hub two" })
	own, err := connstring.Named(hub)
	if err != nil {
		t.Fatal(err)
	}
	if answer, text := ask(t, "GET", s.UIURL()+"db/"+own.Short+"/queues"); answer.StatusCode != http.StatusOK {
		t.Errorf("the hub's own: %s: %s", answer.Status, text)
	}
	if text := log.String(); strings.Contains(text, "secret") || strings.Count(text, "another one leads to the same place") != 1 || !strings.Contains(text, "place=1 ") || !strings.Contains(text, "user=nobody") || strings.Count(text, "a database of the web UI's list can't be used") != 1 {
		t.Errorf("the log: %s", text)
	}
}
