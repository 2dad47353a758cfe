package proof

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// publishings are the statements that publish.
var publishings = map[string]string{
	"publish":        `SELECT weir.publish('c', repeat('x', 3000))`,
	"publish_bytes":  `SELECT weir.publish_bytes('c', '\x00ff')`,
	"publish_many":   `SELECT weir.publish_many(ARRAY['c', 'd'], ARRAY['1', '2'])`,
	"publish_drafts": `SELECT weir._publish_drafts(ARRAY['c', 'd'], ARRAY['1', '2']::bytea[], ARRAY[false, true])`,
	"notify":         `SELECT weir.notify('c', 'x')`,
	"a large one":    `SELECT weir.publish('c', repeat('x', 1000000))`,
}

// TestPublishersNeverWaitForEachOther: transactions that publish and stay open let others publish, prepare, commit and roll back, and let ticks be
// cut.
func TestPublishersNeverWaitForEachOther(t *testing.T) {
	pgtest.Alone(t, "it sees all locks of the server")
	url := pgtest.Database(t)
	watch := connect(t, url)
	var open []*pgx.Conn
	for range 16 {
		conn := connect(t, url)
		exec(t, conn, `SET statement_timeout = '20s'`)
		exec(t, conn, `BEGIN`)
		open = append(open, conn)
	}
	at := newest(t, watch)
	// All run one after the other in one goroutine: if any waited for another, it would wait forever.
	for name, sql := range publishings {
		for _, conn := range open {
			exec(t, conn, sql)
		}
		if waiting := column[string](t, watch, `SELECT format('%s waits for a %s lock', pid, locktype) FROM pg_locks WHERE NOT granted`); len(waiting) > 0 {
			t.Errorf("%s: %s", name, strings.Join(waiting, "; "))
		}
		if seqs, _ := nextTicks(t, watch, at); seqs != nil {
			t.Fatalf("%s: found ticks %v although nothing is committed", name, seqs)
		}
	}
	for i, conn := range open {
		end := []string{`COMMIT`, `ROLLBACK`, fmt.Sprintf(`PREPARE TRANSACTION 'locks %d'`, i)}[i%3]
		exec(t, conn, end)
		if i%3 == 2 {
			exec(t, conn, fmt.Sprintf(`COMMIT PREPARED 'locks %d'`, i))
		}
	}
	got := 0
	for {
		seqs, counts := nextTicks(t, watch, at)
		if seqs == nil {
			break
		}
		for i, seq := range seqs {
			at, got = seq, got+int(counts[i])
		}
	}
	if want := 11 * 8; got != want { // 8 messages of each of 11 committed transactions
		t.Errorf("read %d messages, want %d", got, want)
	}
}

// TestPublishStaysInTheFastPath: a transaction that publishes holds no lock for which others wait, and so few relation locks that those of its own
// tables still fit into the 16 fast-path locks of PostgreSQL 14.
func TestPublishStaysInTheFastPath(t *testing.T) {
	pgtest.Alone(t, "strong locks of other sessions turn fast-path locks into slow ones")
	conn := connect(t, pgtest.Database(t))
	for name, sql := range publishings {
		for range 2 { // the second time with filled catalog caches
			exec(t, conn, `BEGIN`)
			exec(t, conn, sql)
			locks := locksOf(t, conn)
			slow := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND NOT fastpath`)
			exec(t, conn, `ROLLBACK`)
			relations := 0
			for _, lock := range locks {
				if strings.HasPrefix(lock, "advisory") || !strings.HasSuffix(lock, "AccessShareLock") && !strings.HasSuffix(lock, "RowExclusiveLock") && !strings.HasPrefix(lock, "own xid") {
					t.Errorf("%s: the transaction holds %s", name, lock)
				}
				if strings.HasPrefix(lock, "relation") {
					relations++
				}
			}
			if relations > 10 || slow > 0 {
				t.Errorf("%s: %d relation locks, %d of them without the fast path: %s", name, relations, slow, strings.Join(locks, ", "))
			}
		}
	}
}

// TestIdleTickHoldsNoTable: while a hub waits for messages, its session holds no lock on a table and so delays no reclaiming; on the two sequences
// that it polls, no one takes a conflicting lock.
func TestIdleTickHoldsNoTable(t *testing.T) {
	pgtest.Alone(t, "it examines a call while the call waits")
	url := pgtest.Database(t)
	conn, watch := connect(t, url), connect(t, url)
	var ids *int64
	var seen *string
	at := newest(t, conn)
	next := func(polls, patience int) (seqs []int64) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT seqs, ids_now, seen_now::text FROM weir._await_tick($1, $2, $3::text::pg_snapshot, $4, 0.01, $5)`, at, ids, seen, polls, patience).
			Scan(&seqs, &ids, &seen); err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	next(1, 0)
	for _, patience := range []int{0, 1000} { // polling commits too, or only the message counter
		var held []string
		caught := make(chan error, 1)
		go func() { // ends with its query
			rows, err := watch.Query(t.Context(), `SELECT coalesce(c.relkind::text || ' ' || c.relname || ' ' || l.mode, l.locktype || ' ' || l.mode) FROM pg_sleep(0.2), pg_locks l
				LEFT JOIN pg_class c ON c.oid = l.relation WHERE l.pid = $1 AND l.locktype <> 'virtualxid'`, conn.PgConn().PID())
			if err == nil {
				held, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			caught <- err
		}()
		for done := false; !done; {
			if seqs := next(100, patience); seqs != nil {
				t.Fatalf("found ticks %v although nothing was published", seqs)
			}
			select {
			case err := <-caught:
				if err != nil {
					t.Fatal(err)
				}
				done = true
			default:
			}
		}
		for _, lock := range held {
			if lock != "S tick_seq RowExclusiveLock" && lock != "S message_id RowExclusiveLock" {
				t.Errorf("patience %d: an idle tick holds %s", patience, lock)
			}
		}
		if len(held) == 0 {
			t.Errorf("patience %d: the call was not observed while it waited", patience)
		}
	}
	exec(t, watch, `SELECT weir.publish('c', 'x')`)
	until(t, "the idle call finds the message", func() bool { return next(10, 1000) != nil })
}
