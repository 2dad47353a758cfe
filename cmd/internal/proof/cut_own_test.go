package proof

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestPublishingMayCutItsTick: a tick cut in the transaction of its messages contains them and everything committed so far, exists if and only if
// they do, and hides no transaction in progress; it is returned only if it contains nothing else.
func TestPublishingMayCutItsTick(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.publish('c', 'first')`) // this begins an epoch, because the database is a copy
	_, at := hearAll(t, conn, newest(t, conn))
	type cut struct{ tick, epoch, prior *int64 }
	publish := func(text string) (c cut) {
		t.Helper()
		err := conn.QueryRow(t.Context(), `SELECT tick, epoch, prior FROM weir._publish_drafts(ARRAY['c', 'c'], ARRAY[convert_to($1 || 'a', 'UTF8'), convert_to($1 || 'b', 'UTF8')], ARRAY[false, false], true)`,
			text).Scan(&c.tick, &c.epoch, &c.prior)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	expect := func(want ...string) {
		t.Helper()
		var ticks [][]string
		ticks, at = hearAll(t, conn, at)
		var got []string
		for _, tick := range ticks {
			got = append(got, tick...)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the ticks contain %v, want %v", got, want)
		}
	}
	epoch := value[int64](t, conn, `SELECT weir._epoch_of($1)`, at)
	if c := publish("alone "); c.tick == nil || *c.tick != at+1 || *c.epoch != epoch || *c.prior != epoch {
		t.Errorf("alone: %+v", c)
	}
	if newest(t, conn) != at+1 {
		t.Error("the tick was not committed with its messages")
	}
	expect("alone a", "alone b")
	exec(t, conn, `SELECT weir.publish('c', 'other')`)
	if c := publish("with another "); c.tick != nil {
		t.Errorf("a tick that contains a message of another transaction was returned: %+v", c)
	}
	expect("other", "with another a", "with another b")

	// In a transaction that ends in another way, and twice in one transaction.
	exec(t, conn, `BEGIN`)
	publish("rolled back ")
	exec(t, conn, `ROLLBACK`)
	expect()
	_, err := conn.Exec(t.Context(), `SELECT weir._publish_drafts(ARRAY['c'], ARRAY['x']::bytea[], ARRAY[false], true), weir._publish_drafts(ARRAY['c'], ARRAY['y']::bytea[], ARRAY[false], true)`)
	wantCode(t, "two cuts in one transaction", err, "WR004")
	expect()

	// A message published after the cut would be in no tick, so it is refused until the cut is rolled back or the transaction has ended.
	for _, sql := range []string{`SELECT weir.publish('c', 'x')`, `SELECT weir.publish_bytes('c', 'x')`, `SELECT weir.publish_many(ARRAY['c'], ARRAY['x'])`,
		`SELECT weir.notify('c', 'x')`, `SELECT weir._publish_drafts(ARRAY['c'], ARRAY['x']::bytea[], ARRAY[false])`} {
		exec(t, conn, `BEGIN`)
		publish("cut ")
		_, err := conn.Exec(t.Context(), sql)
		wantCode(t, sql+" after a cut", err, "WR004")
		exec(t, conn, `ROLLBACK`)
	}
	expect()
	exec(t, conn, `BEGIN; SAVEPOINT s`)
	publish("undone ")
	exec(t, conn, `ROLLBACK TO s; SELECT weir.publish('c', 'instead'); COMMIT`)
	expect("instead")
	publish("in autocommit ")
	exec(t, conn, `SELECT weir.publish('c', 'next')`)
	expect("in autocommit a", "in autocommit b", "next")

	// Other transactions begin and end around it, in any order; some have subtransactions and use up many transaction ids.
	rng := rand.New(rand.NewPCG(newSeed(t), 1))
	open := map[string]*pgx.Conn{}
	want, heard := map[string]int{}, map[string]int{}
	for i := range 300 {
		switch name := fmt.Sprint("t", i); {
		case len(open) < 4 && rng.IntN(2) == 0:
			open[name] = connect(t, url)
			exec(t, open[name], `BEGIN`)
			exec(t, open[name], `SELECT weir.publish('c', $1)`, name)
			for range rng.IntN(3) {
				exec(t, open[name], `SAVEPOINT s`)
				exec(t, open[name], `SELECT weir.publish('c', $1, true)`, name)
				want[name]++
			}
			want[name]++
		case len(open) > 0 && rng.IntN(2) == 0:
			for other, c := range open {
				if exec(t, c, `COMMIT`); rng.IntN(4) > 0 {
					publish(name)
					want[name+"a"], want[name+"b"] = 1, 1
				}
				_ = c.Close(t.Context())
				delete(open, other)
				break
			}
		default:
			publish(name)
			want[name+"a"], want[name+"b"] = 1, 1
		}
		if i%7 == 0 || i == 299 {
			for _, c := range open {
				if i == 299 {
					exec(t, c, `COMMIT`)
				}
			}
			var ticks [][]string
			ticks, at = hearAll(t, conn, at)
			for _, tick := range ticks {
				for _, text := range tick {
					heard[text]++
				}
			}
		}
	}
	for name, n := range want {
		if heard[name] != n {
			t.Errorf("the ticks contain %d of %d messages of %s", heard[name], n, name)
		}
	}
}
