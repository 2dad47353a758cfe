package main

import (
	"bytes"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestStatementsThatAnEncodingLacksAreRead: the doctor and the guard read the statements of everybody, whatever encoding their own role is set to, and in which the
// databases are.
func TestStatementsThatAnEncodingLacksAreRead(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	admin := pgtest.Pool(t, server.URL("postgres"))
	for _, sql := range []string{
		"CREATE ROLE watcher LOGIN PASSWORD 'secret' IN ROLE pg_monitor", "ALTER ROLE watcher SET client_encoding = 'LATIN1'",
		"CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'", "CREATE DATABASE japan TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C'",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"postgres": "漢字", "ascii": "\xff\xfe"} {
		conn, err := pgtest.Pool(t, server.URL(name)).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
		for _, sql := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT '" + text + "'"} {
			if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"postgres", "ascii", "japan"} {
		u, err := url.Parse(server.URL(name))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("watcher", "secret")
		var out, errs bytes.Buffer
		at := &database{url: u.String(), err: &errs}
		if err := (&doctorCmd{For: time.Second}).Run(t.Context(), &streams{out: &out, err: &errs}, at); err != nil || strings.Contains(out.String(), "failed") {
			t.Errorf("the doctor at %s: %v\n%s", name, err, out.String())
		}
		out.Reset()
		if err := (&guardCmd{Once: true, jsonFlag: jsonFlag{JSON: true}}).Run(t.Context(), &streams{out: &out, err: &errs}, at); err != nil {
			t.Errorf("the guard at %s: %v", name, err)
		}
		if name == "postgres" && !strings.Contains(out.String(), "漢字") {
			t.Errorf("what the guard shows of %s:\n%s", name, out.String())
		}
	}
}
