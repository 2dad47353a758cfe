package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// nextTicks calls weir.tick once.
func nextTicks(t *testing.T, q querier, after int64) (seqs []int64, counts []int32) {
	t.Helper()
	if err := q.QueryRow(t.Context(), `SELECT seqs, counts FROM weir._await_tick($1)`, after).Scan(&seqs, &counts); err != nil {
		t.Fatalf("tick after %d: %v", after, err)
	}
	return seqs, counts
}

// hearAll reads every tick after the given one, and returns their payloads by tick, and the last tick.
func hearAll(t *testing.T, q querier, after int64) (ticks [][]string, last int64) {
	t.Helper()
	for {
		seqs, counts := nextTicks(t, q, after)
		if seqs == nil {
			return ticks, after
		}
		for i, seq := range seqs {
			got := column[string](t, q, `SELECT encode(payload, 'escape') FROM weir.read($1, 0, 1000000) ORDER BY id`, seq)
			if len(got) != int(counts[i]) {
				t.Fatalf("tick %d has %d messages, but %d were read", seq, counts[i], len(got))
			}
			if ticks, after = append(ticks, got), seq; seq > 1 && len(got) == 0 {
				ticks = ticks[:len(ticks)-1]
			}
		}
	}
}

func newest(t *testing.T, q querier) int64 {
	t.Helper()
	return value[int64](t, q, `SELECT weir.newest_tick()`)
}

// TestGiantTransactionHidesNobody: a transaction with more messages than fit into a tick is a tick of its own, and what was committed around it, in
// any order of beginning and end, is in the ticks before and after.
func TestGiantTransactionHidesNobody(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]string{ // upper case: begin and publish; lower case: commit
		"alone, then others":          "G g A a B b",
		"first, others inside":        "G A a B b g",
		"between":                     "A a G g B b",
		"begins amid":                 "A G B a b g",
		"two":                         "G H g h A a",
		"two, late":                   "X G H A a ! h g x B b",
		"late, with fresh ones":       "X G A ! a g B b x",
		"late, others late with it":   "X A G B C ! c g a b x",
		"fresh, one stays in between": "A a G X B b g ! x",
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			conn := connect(t, url)
			start := newest(t, conn)
			open := map[string]*pgx.Conn{}
			want := map[string]int{}
			heard := map[string]int{}
			hear := func() {
				t.Helper()
				var ticks [][]string
				ticks, start = hearAll(t, conn, start)
				for _, tick := range ticks {
					for _, text := range tick {
						heard[text[:1]]++
					}
					whole := map[string]int{}
					for _, text := range tick {
						whole[text[:1]]++
					}
					for who, n := range whole {
						if n != want[who] {
							t.Errorf("a tick has %d messages of %s, not all %d", n, who, want[who])
						}
					}
					if len(tick) > 10_000 && len(whole) > 1 {
						t.Errorf("a tick of %d messages holds %d transactions", len(tick), len(whole))
					}
				}
			}
			for step := range strings.FieldsSeq(order) {
				who := strings.ToUpper(step)
				switch {
				case step == "!":
					hear()
				case step == who:
					open[who] = connect(t, url)
					exec(t, open[who], `BEGIN`)
					n := 3
					if who == "G" || who == "H" {
						n = 10_500
					}
					want[who] = n
					exec(t, open[who], `SELECT weir.publish_many(array_fill('c'::text, ARRAY[$2::int]), array_agg($1::text || n)) FROM generate_series(1, $2::int) n`, who, n)
				default:
					exec(t, open[who], `COMMIT`)
				}
			}
			hear()
			for who, n := range want {
				if heard[who] != n {
					t.Errorf("read %d messages of %s, want %d", heard[who], who, n)
				}
			}
		})
	}
}

// TestCutThatIsRolledBackStopsNobody: after a cut was rolled back, which leaves its number assigned, other sessions still cut ticks.
func TestCutThatIsRolledBackStopsNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, other := connect(t, url), connect(t, url)
	start := newest(t, conn)
	for round := range 3 {
		exec(t, other, `SELECT weir.publish('c', $1)`, fmt.Sprint(round))
		exec(t, conn, `BEGIN`)
		if seqs, _ := nextTicks(t, conn, start); len(seqs) != 1 {
			t.Fatalf("cut %v", seqs)
		}
		if seqs, _ := nextTicks(t, other, start); seqs != nil {
			t.Fatalf("the ticks %v are visible before their commit", seqs)
		}
		exec(t, conn, `ROLLBACK`)
		if round == 1 {
			continue // the next tick contains what should have been in two
		}
		ticks, last := hearAll(t, other, start)
		want := []string{"0"}
		if round == 2 {
			want = []string{"1", "2"}
		}
		if len(ticks) != 1 || !slices.Equal(ticks[0], want) {
			t.Fatalf("read %v, want %v", ticks, want)
		}
		start = last
	}
	// The sequence is right again, so that pollers need only the counters.
	if at := value[int64](t, conn, `SELECT last_value FROM weir.tick_seq`); at != start {
		t.Errorf("the sequence is at %d, but the newest tick is %d", at, start)
	}
	// Reclaiming a segment cuts a tick too, and may have to roll it back.
	exec(t, conn, `SELECT weir.set('message_retention', '1 hour')`)
	exec(t, other, `SELECT weir.publish('c', 'young')`)
	exec(t, conn, `UPDATE weir.segment SET at = at - interval '2 hours'`)
	for _, want := range []string{"opened message 2", ""} {
		if did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`); did != want {
			t.Errorf("rotate_messages did %q, want %q", did, want)
		}
		exec(t, conn, `UPDATE weir.segment SET at = at - interval '2 hours'`)
	}
	if ticks, _ := hearAll(t, other, start); len(ticks) != 1 || ticks[0][0] != "young" {
		t.Errorf("read %v after a segment was not reclaimed", ticks)
	}
}

// TestLargeTransactionIsReadInStretches: a tick that is too large for memory is read in parts, in order.
func TestLargeTransactionIsReadInStretches(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	start := newest(t, conn)
	exec(t, conn, `SELECT weir.publish_many(array_fill('c'::text, ARRAY[30]), array_agg(lpad(n::text, 1000000) ORDER BY n)) FROM generate_series(1, 30) n`)
	exec(t, conn, `SELECT weir.publish('c', 'next')`)
	var seqs, sizes []int64
	if err := conn.QueryRow(t.Context(), `SELECT seqs, sizes FROM weir._await_tick($1)`, start).Scan(&seqs, &sizes); err != nil || len(seqs) != 1 || sizes[0] != 30_000_000 {
		t.Fatalf("the ticks are %v of %v bytes (%v)", seqs, sizes, err)
	}
	after, got, calls := int64(0), []string{}, 0
	for len(got) < 30 {
		rows, err := conn.Query(t.Context(), `SELECT id, ltrim(convert_from(payload, 'UTF8')) FROM weir.read($1, $2)`, seqs[0], after)
		if err != nil {
			t.Fatal(err)
		}
		var text string
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&after, &text}, func() error { got, n = append(got, text), n+1; return nil }); err != nil {
			t.Fatal(err)
		}
		if calls++; n == 0 || n > 9 {
			t.Fatalf("one read returned %d messages of 1 MB", n)
		}
	}
	if got[0] != "1" || got[29] != "30" || calls < 4 {
		t.Errorf("read %v in %d calls", got, calls)
	}
	if ticks, _ := hearAll(t, conn, seqs[0]); len(ticks) != 1 || ticks[0][0] != "next" {
		t.Errorf("read %v after the tick", ticks)
	}
}

// TestTickSaysWhenItCannotBeRight: a position ahead of the log, an open transaction, another isolation level and invalid arguments are refused.
func TestTickSaysWhenItCannotBeRight(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	_, err := conn.Exec(t.Context(), `SELECT * FROM weir._await_tick(1000)`)
	wantCode(t, "a tick ahead of the log", err, "WR006")
	if at, _ := detail(err); at != newest(t, conn) {
		t.Errorf("the error says that the newest tick is %d", at)
	}
	_, err = conn.Exec(t.Context(), `SELECT * FROM weir._await_tick(1000, cuts => false)`)
	wantCode(t, "a tick ahead of the log, without cutting", err, "WR006")
	for sql, code := range map[string]string{
		`SELECT * FROM weir._await_tick(NULL)`:                                     "22023",
		`SELECT * FROM weir._await_tick(-1)`:                                       "22023",
		`SELECT * FROM weir._await_tick(1, polls => 0)`:                            "22023",
		`SELECT * FROM weir._await_tick(1, polls => 1000)`:                         "22023",
		`SELECT * FROM weir._await_tick(1, pause => 'infinity')`:                   "22023",
		`SELECT * FROM weir._await_tick(1, pause => 'NaN')`:                        "22023",
		`SELECT * FROM weir.read(7)`:                                               "22023",
		`SELECT * FROM weir.read(NULL)`:                                            "22023",
		`SELECT weir.publish('a'); SELECT * FROM weir._await_tick(1)`:              "WR004",
		`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM weir._await_tick(1)`: "WR004",
		`BEGIN; SELECT pg_current_xact_id(); SELECT weir._rotate_messages()`:       "WR004",
	} {
		_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		wantCode(t, sql, err, code)
		exec(t, conn, `ROLLBACK`)
	}
	for _, tick := range []int64{-1, 0, 7} {
		_, err := conn.Exec(t.Context(), `SELECT * FROM weir.read($1)`, tick)
		if says := fmt.Sprintf("tick %d does not exist", tick); sqlstate(err) != "22023" || !strings.Contains(err.Error(), says) {
			t.Errorf("read says %v, want %q", err, says)
		}
	}
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT pg_sleep(2.1)`)
	_, err = conn.Exec(t.Context(), `SELECT * FROM weir._await_tick(1)`)
	wantCode(t, "tick in a transaction that has been open for too long", err, "55000")
}

// TestLongTransactionDoesNotSlowTicks: a hundred thousand messages that are published but not committed cost ticks and reads nothing, whether their
// transaction is older or younger than the tick.
func TestLongTransactionDoesNotSlowTicks(t *testing.T) {
	pgtest.Alone(t, "what a cut touches depends on the transactions of the whole server")
	url := pgtest.Database(t)
	conn, long, young := connect(t, url), connect(t, url), connect(t, url)
	at := newest(t, conn)
	var cut, read int64
	cost := func() (int64, int64) {
		t.Helper()
		exec(t, conn, `SELECT weir.publish('c', 'x')`)
		c := buffers(t, conn, fmt.Sprintf(`SELECT * FROM weir._await_tick(%d)`, at))
		at = newest(t, conn)
		return c, buffers(t, conn, fmt.Sprintf(`SELECT * FROM weir.read(%d)`, at))
	}
	for range 3 { // warms the caches
		cut, read = cost()
	}
	many := `SELECT weir.publish_many(array_fill('c'::text, ARRAY[100000]), array_agg(n::text)) FROM generate_series(1, 100000) n`
	exec(t, long, `BEGIN`)
	exec(t, long, many)
	exec(t, young, `BEGIN`)
	exec(t, young, `SELECT weir.publish('c', 'y')`)
	exec(t, conn, `SELECT weir.publish('c', 'x')`) // so that both are within the next tick's range
	exec(t, young, many)
	for i := range 4 {
		c, r := cost()
		t.Logf("a tick and its reading touch %d and %d buffers with a long transaction, %d and %d without", c, r, cut, read)
		if c > 2*cut+200 || r > 2*read+200 {
			t.Errorf("poll %d: a tick touches %d buffers and its reading %d; without the long transaction, %d and %d", i, c, r, cut, read)
		}
	}
	_ = long.Close(context.Background())
	exec(t, young, `ROLLBACK`)
}

// buffers returns how many buffers a query touches.
func buffers(t *testing.T, conn *pgx.Conn, sql string) int64 {
	t.Helper()
	var plan []struct {
		Plan struct {
			Hit     int64 `json:"Shared Hit Blocks"`
			Read    int64 `json:"Shared Read Blocks"`
			Dirtied int64 `json:"Shared Dirtied Blocks"`
		}
	}
	text := value[string](t, conn, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+sql)
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	return plan[0].Plan.Hit + plan[0].Plan.Read
}
