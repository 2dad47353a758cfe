package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhoIsRefusedIsToldWhatToDo: what is amiss is the role's, or the database's, and waiting for the server does not help.
func TestWhoIsRefusedIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	at := pgtest.Server(t, nil).URL("postgres")
	admin, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	for _, sql := range []string{
		"CREATE ROLE app LOGIN PASSWORD 'w'", "CREATE ROLE nobody LOGIN PASSWORD 'w' CONNECTION LIMIT 0", "CREATE DATABASE closed ALLOW_CONNECTIONS false", "CREATE DATABASE own",
		"REVOKE CONNECT ON DATABASE own FROM PUBLIC", "CREATE DATABASE small CONNECTION LIMIT 0",
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ user, database, want string }{
		{"app", "own", "GRANT CONNECT ON DATABASE"}, {"app", "closed", "ALLOW_CONNECTIONS true"}, {"app", "small", "CONNECTION LIMIT"}, {"nobody", "postgres", "CONNECTION LIMIT"},
	} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		u.User, u.Path = url.UserPassword(c.user, "w"), "/"+c.database
		config, err := pgx.ParseConfig(u.String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = pgx.ConnectConfig(t.Context(), config)
		if err == nil {
			t.Fatalf("%s may connect to %s", c.user, c.database)
		}
		if text := unreachable(config, false, err).Error(); !strings.Contains(text, c.want) || strings.Contains(text, "when the server is ready") {
			t.Errorf("%s at %s: %s", c.user, c.database, text)
		}
	}
}

// TestALockThatLetsNobodyInIsNamed: the server is ready, and will let nobody in until that lock is released.
func TestALockThatLetsNobodyInIsNamed(t *testing.T) {
	t.Parallel()
	at := pgtest.Server(t, nil).URL("postgres")
	holder, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(t.Context())
	if _, err := holder.Exec(t.Context(), "BEGIN; LOCK TABLE pg_db_role_setting IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	_, err = openDoctor(t.Context(), at, false, doctor.Config{})
	if err == nil {
		t.Fatal("it has connected")
	}
	if text := err.Error(); !strings.Contains(text, "a lock on a catalog that every login needs") || strings.Contains(text, "when the server is ready") || exitCode(t.Context(), err) != exitUnreachable {
		t.Errorf("exit code %d: %s", exitCode(t.Context(), err), text)
	}
}
