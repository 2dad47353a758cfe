package adverse_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/adverse"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestWhatWorksAgainstWeirIsNamed: each bad setting is reported with its value, its harm and what to do, and nothing is reported if there
// is none, whatever the session itself has set.
func TestWhatWorksAgainstWeirIsNamed(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	pool := pgtest.Pool(t, url)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	read := func() map[string]string {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		for _, sql := range []string{"SET synchronous_commit = on", "SET jit = off"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		found, err := adverse.Read(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]string{}
		for _, s := range found {
			if s.Name != "fsync" && s.Name != "full_page_writes" { // of the tests' own server
				said[s.Name] = s.String()
			}
		}
		return said
	}
	if said := read(); len(said) > 0 {
		t.Errorf("the defaults are reported as bad: %v", said)
	}
	var database string
	if err := pool.QueryRow(t.Context(), "SELECT quote_ident(current_database())").Scan(&database); err != nil {
		t.Fatal(err)
	}
	adverse := map[string]string{
		"synchronous_commit": "off", "jit_above_cost": "0", "commit_delay": "100", "log_statement": "all",
		"log_min_duration_statement": "0", "client_encoding": "LATIN1", "enable_indexscan": "off", "default_transaction_read_only": "on",
	}
	for name, value := range adverse {
		exec("BEGIN READ WRITE; ALTER DATABASE " + database + " SET " + name + " = '" + value + "'; COMMIT")
	}
	said := read()
	for name, value := range adverse {
		if text := said[name]; !strings.HasPrefix(text, name+" = "+value+": ") || strings.Count(text, ": ") < 2 {
			t.Errorf("%s = %s is reported as %q", name, value, text)
		}
	}
	if len(said) != len(adverse) {
		t.Errorf("other settings are reported too: %v", said)
	}
}

// TestADatabaseOfAnotherEncodingIsNamed: SQL_ASCII is reported, in which texts mean what each client makes of them, and so are encodings that
// lack characters.
func TestADatabaseOfAnotherEncodingIsNamed(t *testing.T) {
	t.Parallel()
	for encoding, harm := range map[string]string{"SQL_ASCII": "whatever encoding clients send", "LATIN1": "characters that this encoding lacks"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Empty(t))
			var name string
			if err := pool.QueryRow(t.Context(), `SELECT left(current_database(), 50) || '_' || $1::text`, encoding).Scan(&name); err != nil {
				t.Fatal(err)
			}
			quoted := pgx.Identifier{name}.Sanitize()
			if _, err := pool.Exec(t.Context(), `CREATE DATABASE `+quoted+` TEMPLATE template0 ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C'`); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if _, err := pool.Exec(t.Context(), `DROP DATABASE `+quoted+` WITH (FORCE)`); err != nil {
					t.Error(err)
				}
			}()
			config := pool.Config().ConnConfig
			config.Database = name
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			found, err := adverse.Read(t.Context(), conn)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range found {
				if s.Name == "server_encoding" && s.Value == encoding && strings.Contains(s.Harm, harm) {
					return
				}
			}
			t.Errorf("%s is not reported: %v", encoding, found)
		})
	}
}
