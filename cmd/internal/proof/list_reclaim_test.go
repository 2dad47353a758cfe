package proof

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// reads lists functions that show jobs, with what each shows of ten available and ten running jobs. $1 is the id of an available one.
var reads = []struct {
	name, sql string
	want      int
}{
	{"available page", `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(ARRAY['available']) WHERE $1 > 0`, 10},
	{"available jobs", `SELECT count(*) FROM weir.jobs('available') WHERE $1 > 0`, 10},
	{"running page", `SELECT jsonb_array_length(jobs) FROM weir.jobs_page(ARRAY['running']) WHERE $1 > 0`, 10},
	{"running jobs", `SELECT count(*) FROM weir.jobs('running') WHERE $1 > 0`, 10},
	{"queues available", `SELECT sum(available) FROM weir.queues() WHERE $1 > 0`, 10},
	{"queues running", `SELECT sum(running) FROM weir.queues() WHERE $1 > 0`, 10},
	{"job_info", `SELECT count(*) FROM weir.job_info($1)`, 1},
	{"cancel", `SELECT count(*) FROM weir.cancel($1) c WHERE c = 'cancelled'`, 1},
}

// aboutToReclaim makes ten available and ten running jobs in a closed segment, and returns the id of an available one.
func aboutToReclaim(t *testing.T, conn *pgx.Conn) int64 {
	t.Helper()
	exec(t, conn, `SELECT weir.set('completed_retention', '1 hour'), weir.set('retention_bytes', '1048576')`)
	worker := startWorker(t, conn, "q", "r", "filler")
	enqueueN(t, conn, "r", 10)
	mustClaim(t, conn, worker, "r", 10)
	ids := enqueueN(t, conn, "q", 10)
	openNext(t, conn, worker)
	return ids[0]
}

// TestReadersThatWaitForAReclaimMissNothing: a reader that starts while a segment is being reclaimed waits, and then shows every job where it is.
func TestReadersThatWaitForAReclaimMissNothing(t *testing.T) {
	t.Parallel()
	for _, c := range reads {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			conn, reclaim, reader := connect(t, url), connect(t, url), connect(t, url)
			id := aboutToReclaim(t, conn)
			exec(t, reclaim, `BEGIN`)
			if !value[bool](t, reclaim, `SELECT weir._reclaim(1)`) {
				t.Fatal("the first segment was not reclaimed")
			}
			type answer struct {
				n   int
				err error
			}
			answers := make(chan answer, 1)
			go func() { // ends when the reclaim commits or the connection is closed
				var a answer
				a.err = reader.QueryRow(t.Context(), c.sql, id).Scan(&a.n)
				answers <- a
			}()
			blocked(t, conn, reader)
			exec(t, reclaim, `COMMIT`)
			if a := pgtest.Receive(t, answers, "the reader returns"); a.err != nil || a.n != c.want {
				t.Errorf("%d, %v; want %d", a.n, a.err, c.want)
			}
		})
	}
}

// TestAnOldSnapshotIsRefused: a transaction with a snapshot older than a reclaim, in REPEATABLE READ or SERIALIZABLE, gets a serialization failure
// instead of an incomplete answer; before the reclaim, and in the next transaction, it gets the whole answer.
func TestAnOldSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	id := aboutToReclaim(t, conn)
	var old []*pgx.Conn
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED"} {
		reader := connect(t, url)
		exec(t, reader, `BEGIN ISOLATION LEVEL `+level)
		for _, c := range reads[:len(reads)-1] { // all but cancel, which writes
			if n := value[int](t, reader, c.sql, id); n != c.want {
				t.Errorf("%s: before the reclaim, %s returned %d, want %d", level, c.name, n, c.want)
			}
		}
		old = append(old, reader)
	}
	if !value[bool](t, conn, `SELECT weir._reclaim(1)`) {
		t.Fatal("the first segment was not reclaimed")
	}
	for i, reader := range old {
		for _, c := range reads {
			exec(t, reader, `SAVEPOINT s`)
			var n int
			err := reader.QueryRow(t.Context(), c.sql, id).Scan(&n)
			if i < 2 {
				wantCode(t, c.name+" with a snapshot from before a reclaim", err, "40001")
			} else if err != nil || n != c.want {
				t.Errorf("in READ COMMITTED, %s returned %d (%v), want %d", c.name, n, err, c.want)
			}
			exec(t, reader, `ROLLBACK TO s`)
		}
		exec(t, reader, `ROLLBACK`)
		exec(t, reader, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		for _, c := range reads {
			exec(t, reader, `SAVEPOINT s`)
			if n := value[int](t, reader, c.sql, id); n != c.want {
				t.Errorf("in the next transaction, %s returned %d, want %d", c.name, n, c.want)
			}
			exec(t, reader, `ROLLBACK TO s`)
		}
		exec(t, reader, `ROLLBACK`)
	}
}

// TestAnOldSnapshotIsRefusedAfterEveryTruncate: this also holds for the other tables that lists read and chores truncate to compact them.
func TestAnOldSnapshotIsRefusedAfterEveryTruncate(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, reader := connect(t, url), connect(t, url)
	id := enqueueN(t, conn, "q", 1)[0]
	truncated := column[string](t, conn, `SELECT DISTINCT m[1] FROM pg_proc p, regexp_matches(p.prosrc, 'TRUNCATE ([^;'']*)', 'g') l(list),
			regexp_matches(l.list[1], 'weir\.([a-z]+)', 'g') m
		WHERE p.pronamespace = 'weir'::regnamespace AND m[1] NOT IN ('message', 'tick', 'hub', 'failure', 'survey', 'last', 'minute', 'request')`) // of these, only what nobody reads any more is truncated, or what readers can do without
	if len(truncated) < 6 {
		t.Fatalf("found only these truncated tables: %v", truncated)
	}
	exec(t, conn, `SELECT weir.set_schedule('s', '* * * * *', 'q', 'k')`)
	exec(t, conn, `SET lock_timeout = '1min'`) // a reader that stays open leaves no lock behind
	for _, table := range truncated {
		list := `SELECT FROM weir.job_info($1)`
		if table == "firing" {
			list = `SELECT FROM weir.schedules() WHERE $1 > 0`
		} else if table == "gate" || table == "release" {
			list = `SELECT FROM weir.limits() WHERE $1 > 0`
		} else if table == "flow" || table == "edge" || table == "fold" || table == "arrival" {
			list = `SELECT FROM weir.flow_info($1)`
		} else if table == "relay" {
			list = `SELECT FROM weir.relays() WHERE $1 > 0`
		} else if table == "operation" {
			list = `SELECT FROM weir.operations() WHERE $1 > 0`
		}
		exec(t, reader, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
		exec(t, reader, list, id)
		exec(t, conn, `BEGIN`)
		exec(t, conn, `CREATE TEMP TABLE kept ON COMMIT DROP AS TABLE weir.`+table)
		exec(t, conn, `TRUNCATE weir.`+table)
		exec(t, conn, `INSERT INTO weir.`+table+` TABLE kept`)
		exec(t, conn, `COMMIT`)
		_, err := reader.Exec(t.Context(), list, id)
		wantCode(t, "after a TRUNCATE of weir."+table, err, "40001")
		exec(t, reader, `ROLLBACK`)
	}
	wantState(t, conn, id, "available")
}
