package lab

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestForeignDatabaseIsRefusedUnlessTold(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"table":    `CREATE TABLE public.account (id int)`,
		"schema":   `CREATE SCHEMA shop`,
		"function": `CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		"weir":     `CREATE SCHEMA weir`,
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Empty(t)
			pool := pgtest.Pool(t, url)
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			c := tiny("notify", url)
			c.Duration = 200 * time.Millisecond
			_, err := Run(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), "--allow-nonempty") {
				t.Fatalf("got %v, want a refusal that names --allow-nonempty", err)
			}
			var there bool
			if err := pool.QueryRow(t.Context(), `SELECT to_regnamespace('weir_lab') IS NOT NULL`).Scan(&there); err != nil || there {
				t.Errorf("a refused run left schema weir_lab: %v", err)
			}
			c.AllowNonempty = true
			r, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if name == "weir" {
				if r.Way("insert + weir.publish") != nil || len(r.Notes) == 0 {
					t.Errorf("a schema weir that the lab did not create was used: %v", r.Notes)
				}
				if err := pool.QueryRow(t.Context(), `SELECT to_regnamespace('weir') IS NOT NULL`).Scan(&there); err != nil || !there {
					t.Errorf("a schema weir that the lab did not create was dropped: %v", err)
				}
			}
		})
	}
}

func TestSchemaOfTheSameNameIsNotDropped(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	pool := pgtest.Pool(t, url)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA weir_lab; CREATE TABLE weir_lab.dear (id int)`); err != nil {
		t.Fatal(err)
	}
	c := tiny("notify", url)
	c.AllowNonempty = true
	if _, err := Run(t.Context(), c); err == nil {
		t.Error("a schema weir_lab that the lab did not create was accepted")
	}
	if _, err := pool.Exec(t.Context(), `SELECT FROM weir_lab.dear`); err != nil {
		t.Errorf("it was dropped: %v", err)
	}
}

// TestTheLabsTreesLeaveASchemaOfTheirNameAlone: and a lab that was killed while it had one of its own is cleared away.
func TestTheLabsTreesLeaveASchemaOfTheirNameAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	pool := pgtest.Pool(t, url)
	for _, theirs := range []bool{true, false} {
		if theirs {
			if _, err := pool.Exec(t.Context(), `CREATE SCHEMA weir_bench; CREATE TABLE weir_bench.dear (id int)`); err != nil {
				t.Fatal(err)
			}
		}
		s, err := openSite(t.Context(), url, 0, theirs, needs{weir: true}, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		own, err := s.ownFlows(t.Context())
		if err != nil || own == theirs {
			t.Errorf("the schema is the lab's: %v, %v", own, err)
		}
		if own {
			if _, err := s.guard.Exec(t.Context(), `CREATE SCHEMA weir_bench`); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		var there bool
		if err := pool.QueryRow(t.Context(), `SELECT to_regnamespace('weir_bench') IS NOT NULL`).Scan(&there); err != nil || there != theirs {
			t.Errorf("afterwards there is a schema weir_bench: %v, and it was there before: %v; %v", there, theirs, err)
		}
		if _, err := pool.Exec(t.Context(), `DROP SCHEMA IF EXISTS weir_bench CASCADE`); err != nil {
			t.Fatal(err)
		}
	}
	nothingLeft(t, url)
}

// TestALabWhoseGuardIsInterruptedCleansUp: a query that is interrupted ends its session, and with it the lab's lock.
func TestALabWhoseGuardIsInterruptedCleansUp(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	s, err := openSite(t.Context(), url, 0, false, needs{weir: true}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := s.guard.Exec(ctx, `SELECT pg_sleep(3600)`)
		asked <- err
	}()
	pool := pgtest.Pool(t, url)
	pgtest.Until(t, "the guard is busy", func() bool {
		var busy bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')`).Scan(&busy)
		return err == nil && busy
	})
	cancel()
	if err := pgtest.Receive(t, asked, "the query is interrupted"); err == nil {
		t.Error("the query was not interrupted")
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, url)
}

func TestKilledLabIsClearedAwayByTheNext(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	dead, err := openSite(t.Context(), url, 0, false, needs{weir: true}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openSite(t.Context(), url, 0, false, needs{}, func(string) {}); err == nil || !strings.Contains(err.Error(), "another lab") {
		t.Errorf("got %v, want an error about another running lab", err)
	}
	var there bool
	if err := dead.guard.QueryRow(t.Context(), `SELECT to_regnamespace('weir_lab') IS NOT NULL`).Scan(&there); err != nil || !there {
		t.Errorf("the refused lab has removed the other one's schema: %v", err)
	}
	closeConn(dead.guard) // as at the end of a process
	next, err := openSite(t.Context(), url, 0, false, needs{}, func(string) {})
	for end := time.Now().Add(time.Minute); err != nil && strings.Contains(err.Error(), "another lab") && time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		next, err = openSite(t.Context(), url, 0, false, needs{}, func(string) {}) // the server may not have noticed the end yet
	}
	if err != nil {
		t.Fatalf("the schema of a killed lab was refused: %v", err)
	}
	if err := next.close(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, url)
}
