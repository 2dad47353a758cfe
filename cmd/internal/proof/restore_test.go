package proof

import (
	"bytes"
	"fmt"
	"io"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestRestoredDumpGoesOn: a log copied into another cluster, where its transaction ids mean nothing, reports that and is rebased; everything
// unfinished is worked again, and nothing that had ended.
func TestRestoredDumpGoesOn(t *testing.T) {
	t.Parallel()
	t.Run("copied tables", func(t *testing.T) {
		source := newSource(t)
		server := pgtest.Server(t, nil)
		target := connect(t, server.URL("postgres"))
		if err := schema.Up(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		copyAll(t, source.conn, target)
		source.goesOn(t, target)
	})
	t.Run("pg_dump", func(t *testing.T) {
		dump := dumpProgram(t)
		source := newSource(t)
		server := pgtest.Server(t, nil)
		target := connect(t, server.URL("postgres"))
		for _, role := range []string{"weir_enqueue", "weir_work", "weir_operate", "weir_publish", "weir_subscribe", "weir_hub"} { // roles are restored with pg_dumpall -g
			exec(t, target, `CREATE ROLE `+role)
		}
		sql := run(t, nil, dump, "--schema=weir", source.url)
		run(t, bytes.NewReader(sql), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", server.URL("postgres"))
		source.goesOn(t, target)

		// Without the roles, psql reports each missing privilege and continues.
		bare := pgtest.Server(t, nil)
		target = connect(t, bare.URL("postgres"))
		run(t, bytes.NewReader(sql), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", bare.URL("postgres"))
		if err := schema.Up(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if want, got := describeSchema(t, source.conn), describeSchema(t, target); got != want {
			t.Errorf("restored without Weir's roles and migrated, the schema differs\n%s", firstDifference(want, got))
		}
	})
}

// run runs a program and returns its output.
func run(t *testing.T, in io.Reader, name string, args ...string) []byte {
	t.Helper()
	cmd := osexec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = in
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, errs.String())
	}
	return out.Bytes()
}

var dumpVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// findDump returns the path of a pg_dump of the server's major version or a newer one.
func findDump(major int) (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
	if onPath, err := osexec.LookPath("pg_dump"); err == nil {
		found = append(found, onPath)
	}
	var seen []string
	for _, path := range found {
		out, err := osexec.Command(path, "--version").Output()
		if err != nil {
			continue
		}
		if m := dumpVersion.FindSubmatch(out); m != nil {
			if n, err := strconv.Atoi(string(m[1])); err == nil && n >= major {
				return path, nil
			}
		}
		seen = append(seen, path+" ("+strings.TrimSpace(string(out))+")")
	}
	return "", fmt.Errorf("no pg_dump of PostgreSQL %d or newer: found %v; install postgresql-client-%d", major, seen, major)
}

// copyAll copies all tables and sequences of schema weir.
func copyAll(t *testing.T, from, to *pgx.Conn) {
	t.Helper()
	for _, table := range column[string](t, from, `SELECT c.oid::regclass::text FROM pg_class c
		WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1`) {
		exec(t, to, `TRUNCATE `+table)
		var data bytes.Buffer
		if _, err := from.PgConn().CopyTo(t.Context(), &data, `COPY (SELECT * FROM `+table+`) TO STDOUT (FORMAT binary)`); err != nil {
			t.Fatalf("copy %s: %v", table, err)
		}
		if _, err := to.PgConn().CopyFrom(t.Context(), &data, `COPY `+table+` FROM STDIN (FORMAT binary)`); err != nil {
			t.Fatalf("copy %s: %v", table, err)
		}
	}
	for _, name := range column[string](t, from, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'weir'::regnamespace AND relkind = 'S'`) {
		var last int64
		var called bool
		if err := from.QueryRow(t.Context(), `SELECT last_value, is_called FROM `+name).Scan(&last, &called); err != nil {
			t.Fatal(err)
		}
		exec(t, to, `SELECT setval($1::text::regclass, $2, $3)`, name, last, called)
	}
}

// source is a database whose log has jobs in every state, and positions ahead of the transaction ids of a new cluster.
type source struct {
	url        string
	conn       *pgx.Conn
	worker     int32
	inFlight   []attempt        // held by worker
	unfinished map[int64]int32  // by id: the attempt that must be worked
	history    map[int64]string // by id: the state
}

func newSource(t *testing.T) *source {
	s := &source{url: pgtest.Database(t), unfinished: map[int64]int32{}, history: map[int64]string{}}
	s.conn = connect(t, s.url)
	late := connect(t, s.url)
	exec(t, s.conn, `DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	smallSegments(t, s.conn)
	s.worker = startWorker(t, s.conn, "q", "r", "filler")
	ctx := t.Context()

	exec(t, late, `BEGIN`)
	for _, id := range enqueueN(t, late, "q", 2) {
		s.unfinished[id] = 1 // committed behind the position, not claimed yet
	}
	enqueueN(t, s.conn, "q", 20)
	got := mustClaim(t, s.conn, s.worker, "q", 10)
	for _, a := range got[:4] {
		s.history[a.ID] = "completed"
	}
	mustComplete(t, s.conn, s.worker, got[:4])
	for i, outcome := range []string{"failed", "cancelled", "retried", "snoozed"} {
		a := got[4+i]
		var runAt time.Time
		switch outcome {
		case "retried":
			s.unfinished[a.ID] = 2
		case "snoozed":
			s.unfinished[a.ID], runAt = 1, time.Now().Add(time.Second)
		default:
			s.history[a.ID] = outcome
		}
		if _, err := finish(ctx, s.conn, s.worker, a, outcome, runAt); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, late, `COMMIT`)
	openNext(t, s.conn, s.worker) // finished jobs in one segment, more jobs in the next
	s.inFlight = got[8:10]
	enqueueN(t, s.conn, "r", 3)
	s.inFlight = append(s.inFlight, mustClaim(t, s.conn, s.worker, "r", 2)...)
	for _, a := range s.inFlight {
		s.unfinished[a.ID] = 1
	}
	for _, id := range column[int64](t, s.conn, `SELECT j.id FROM weir.job j WHERE j.kind = 'k' AND j.args ? 'k'`) {
		if _, ended := s.history[id]; !ended && s.unfinished[id] == 0 {
			s.unfinished[id] = 1
		}
	}
	s.unfinished[value[int64](t, s.conn, `SELECT weir.enqueue('r', 'soon', run_at => now() + interval '1 second')`)] = 1
	for _, sql := range []string{`SELECT weir._promote()`, `SELECT weir.enqueue('r', 'soon', run_at => now() + interval '1 second')`} {
		exec(t, s.conn, sql)
	}
	s.unfinished[value[int64](t, s.conn, `SELECT max(id) FROM weir.later`)] = 1
	return s
}

// goesOn checks a restored copy.
func (s *source) goesOn(t *testing.T, target *pgx.Conn) {
	t.Helper()
	ctx := t.Context()
	if ahead := value[bool](t, target, `SELECT bool_or(pos_xid > pg_snapshot_xmax(pg_current_snapshot())) FROM weir.batch`); !ahead {
		t.Fatal("the copy's positions are not ahead of the new cluster, so the test proves nothing")
	}
	s.unfinished[value[int64](t, target, `SELECT weir.enqueue('q', 'before rebase')`)] = 1
	_, err := target.Exec(ctx, `SELECT weir._start('new', ARRAY['q'])`)
	wantCode(t, "worker_start before the rebase", err, "WR003")
	_, err = claim(ctx, target, s.worker, []string{"q", "r"}, []int32{100, 100})
	wantCode(t, "claim before the rebase", err, "WR003")
	// New jobs lie before the position of their lane: without an error, they would wait forever.
	s.unfinished[value[int64](t, target, `SELECT weir.enqueue('filler', 'before rebase')`)] = 1
	_, err = claim(ctx, target, s.worker, []string{"filler"}, []int32{100})
	wantCode(t, "claim of a lane with only new jobs before the rebase", err, "WR003")

	inLater := value[int](t, target, `SELECT count(*) FROM weir.later`)
	if n := value[int](t, target, `SELECT weir.rebase()`); n != len(s.unfinished)-inLater {
		t.Errorf("rebase logged %d attempts again, want %d", n, len(s.unfinished)-inLater)
	}
	if n := value[*int](t, target, `SELECT weir.rebase()`); n != nil {
		t.Errorf("a second rebase logged %d attempts again", *n)
	}
	wantCode(t, "complete by a worker from before", complete(ctx, target, s.worker, s.inFlight[:1]), "WR001")
	for id, state := range s.history {
		if got := value[string](t, target, `SELECT coalesce((SELECT state FROM weir.job_info($1)), 'unknown')`, id); got != state {
			t.Errorf("finished job %d is %s, want %s", id, got, state)
		}
	}

	worker := startWorker(t, target, "q", "r", "filler")
	worked := map[int64]int32{}
	work := func() {
		for _, queue := range []string{"q", "r", "filler"} {
			for _, a := range claimAll(t, target, worker, queue) {
				if worked[a.ID] != 0 || s.unfinished[a.ID] != a.Attempt {
					t.Errorf("attempt %[2]d of job %[1]d (%[3]s) was claimed, want attempt %[4]d once", a.ID, a.Attempt, a.Kind, s.unfinished[a.ID])
				}
				worked[a.ID] = a.Attempt
				mustComplete(t, target, worker, []attempt{a})
			}
		}
	}
	until(t, "everything unfinished is worked", func() bool {
		exec(t, target, `SELECT weir._promote()`)
		work()
		return len(worked) >= len(s.unfinished)
	})
	// Finished jobs are deleted with their segments, and none reappears.
	for range 5 {
		turn(t, target, worker)
		exec(t, target, `SELECT weir._promote()`)
		work()
	}
	for id, state := range s.history {
		if state != "failed" {
			state = "unknown"
		}
		wantState(t, target, id, state) // failures are kept for longer
	}
	for id := range s.unfinished {
		if worked[id] == 0 {
			t.Errorf("job %d was not worked", id)
		}
	}
	next := value[int64](t, target, `SELECT weir.enqueue('q', 'after')`)
	if got := claimAll(t, target, worker, "q"); len(got) != 1 || got[0].ID != next {
		t.Errorf("claimed %v, want job %d", got, next)
	}
}
