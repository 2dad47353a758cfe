package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

var bulkFlag = flag.Int("bulk", 1500, "how many jobs the tests of bulk operations change")

// TestABulkOperationThatIsKilledIsContinuedByTheSameCommand: a command that retries or moves thousands of jobs is killed in the midst of a step. The same
// command, run again, does the rest: no job is lost, or retried or moved twice.
func TestABulkOperationThatIsKilledIsContinuedByTheSameCommand(t *testing.T) {
	t.Parallel()
	jobs := *bulkFlag
	for _, c := range []struct {
		name      string
		fail      bool   // all jobs have failed
		held      string // the key of an advisory lock, for which a step in the midst waits
		args      []string
		dealtWith string // counts the jobs that are as they should be in the end
		wrong     string // counts those that are so twice, or that are not there
	}{
		{
			"retry", true,
			`SELECT -1 - (min(id) % 1000000)::integer FROM weir.job WHERE lane & 3 = 1`, // the newest failures come first, and so those of priority 3
			[]string{"jobs", "retry", "--queue", "q"},
			`SELECT count(*) FROM weir.job WHERE attempt = 2`,
			`SELECT count(*) - count(DISTINCT id) FROM weir.job WHERE attempt = 2`,
		},
		{
			"move", false,
			`SELECT max((lane >> 39) * 4 + (lane & 3)) FROM weir.job`, // steps begin with the first priority,
			[]string{"jobs", "move", "--queue", "q", "--to-queue", "r"},
			`SELECT count(*) FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39 WHERE q.name = 'r'`,
			`SELECT abs(count(*) - $1) + count(*) - count(DISTINCT id) FROM weir.job`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, holder := open(t, url), open(t, url)
			must := func(conn *pgx.Conn, sql string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			count := func(sql string, args ...any) (n int) {
				t.Helper()
				if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			for done := 0; done < jobs; done += 1000 {
				must(conn, fmt.Sprintf(`SELECT weir.enqueue_many(array_agg('q'::text), array_agg('k'::text), priority => array_agg(1 + n %% 3)) FROM generate_series(1, %d) n`, min(1000, jobs-done)))
			}
			for worker := 0; c.fail; {
				if worker == 0 {
					worker = count(`SELECT weir.start('w', '{q}')`)
				}
				var ends *string
				if err := conn.QueryRow(t.Context(), `SELECT json_agg(json_build_object('token', token, 'outcome', 'failed', 'final', true, 'error', 'x'))::text FROM weir.take($1, '{q}', '{1000}') WHERE event = 'job'`, worker).Scan(&ends); err != nil {
					t.Fatal(err)
				}
				if ends == nil {
					break
				}
				if n := count(`SELECT count(*) FROM weir.record($1, $2)`, worker, *ends); n > 0 {
					t.Fatalf("%d ends were refused", n)
				}
			}
			must(holder, fmt.Sprintf(`SELECT pg_advisory_lock(1464158546, %d)`, count(c.held)))

			command := exec.CommandContext(t.Context(), "weir", append(c.args, "--database", url)...)
			var first bytes.Buffer
			command.Stderr = &first
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			const waits = `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted`
			pgtest.Until(t, "a step waits", func() bool { return count(waits) > 0 })
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := command.Wait(); !errors.As(err, &exit) {
				t.Fatalf("%v: %s", err, first.Bytes())
			}
			before := count(c.dealtWith)
			if before == 0 || before >= jobs {
				t.Errorf("when it was killed, it had dealt with %d of %d jobs", before, jobs)
			}
			must(holder, `SELECT pg_advisory_unlock_all()`)

			out, err := exec.CommandContext(t.Context(), "weir", append(c.args, "--database", url)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if n, wrong := count(c.dealtWith), count(c.wrong, pgxArgs(c.wrong, jobs)...); n != jobs || wrong != 0 {
				t.Errorf("%d of %d jobs were dealt with, %d of them wrongly; the second command said: %s", n, jobs, wrong, out)
			}
			t.Logf("%d of %d jobs when it was killed; then: %s", before, jobs, bytes.TrimSpace(out))
		})
	}
}

// TestABulkOperationThatIsInterruptedSaysWhatItHasDone: also in its first step, when that is nothing.
func TestABulkOperationThatIsInterruptedSaysWhatItHasDone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := open(t, url), open(t, url)
	for _, c := range []struct {
		conn *pgx.Conn
		sql  string
	}{
		{conn, `SELECT weir.enqueue('q', 'k')`},
		{holder, `SELECT pg_advisory_lock(1464158546, ((lane >> 39) * 4 + (lane & 3))::integer) FROM weir.job`},
	} {
		if _, err := c.conn.Exec(t.Context(), c.sql); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "weir", "jobs", "move", "--queue", "q", "--to-queue", "r", "--database", url)
	var errs bytes.Buffer
	command.Stderr = &errs
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "its first step waits", func() (waits bool) {
		const sql = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted)`
		if err := conn.QueryRow(t.Context(), sql).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("it ended with %v, want the exit code %d", err, exitInterrupted)
	}
	const want = "weir: moved 0 jobs; run the same command again for the rest\nweir: interrupted\n"
	if errs.String() != want {
		t.Errorf("it said %q, want %q", errs.String(), want)
	}
}

// pgxArgs returns the argument for a query that has one.
func pgxArgs(sql string, arg any) []any {
	if strings.Contains(sql, "$1") {
		return []any{arg}
	}
	return nil
}

func open(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
