package proof

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTruncatedHistoryIsSaid: while segments are reclaimed, a reader of old ticks gets a complete tick or an error with the last truncated tick, and
// never an incomplete one.
func TestTruncatedHistoryIsSaid(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	seed := newSeed(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.set('message_retention', '0 s')`)
	exec(t, conn, `SELECT weir.set('message_retention_bytes', '1048576')`)
	first := newest(t, conn)
	begin := time.Now()
	var whole, gone, given atomic.Int64
	over := func() bool { // also when enough has happened
		took := time.Since(begin)
		return took > loadTime(2*time.Second) && whole.Load() > 100 && gone.Load() > 10 && given.Load() > 1 || took > patience
	}
	var all sync.WaitGroup
	fail := func(format string, args ...any) {
		t.Errorf(format, args...)
	}
	for range 2 {
		publisher := connect(t, url)
		all.Go(func() {
			for !over() {
				if _, err := publisher.Exec(t.Context(), `SELECT weir.publish_many(array_fill('c'::text, ARRAY[20]), array_agg(lpad(n::text, 500) ORDER BY n)) FROM generate_series(1, 20) n`); err != nil {
					fail("publish: %v", err)
					return
				}
			}
		})
	}
	all.Go(func() {
		for !over() {
			var did *string
			if err := conn.QueryRow(t.Context(), `SELECT weir._rotate_messages()`).Scan(&did); err != nil {
				fail("rotate: %v", err)
				return
			}
			if did != nil && (*did)[0] == 'r' {
				given.Add(1)
			}
		}
	})
	for n := range 4 {
		reader := connect(t, url)
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		all.Go(func() {
			for from := first; !over(); {
				seqs, counts, floor, err := ticksAfter(t, reader, from)
				if err != nil {
					fail("ticks after %d: %v", from, err)
					return
				}
				if floor > 0 {
					if floor <= from {
						fail("ticks after %d are truncated up to %d", from, floor)
						return
					}
					gone.Add(1)
					from = floor
					continue
				}
				for i, seq := range seqs {
					if seq != from+1 {
						fail("tick %d follows %d without an error", seq, from)
						return
					}
					from = seq
					ids, err := queryColumn[int64](t, reader, `SELECT id FROM weir.read($1)`, seq)
					if sqlstate(err) == "WR005" {
						gone.Add(1)
						break
					}
					if err != nil || len(ids) != int(counts[i]) {
						fail("tick %d has %d messages, but %d were read: %v", seq, counts[i], len(ids), err)
						return
					}
					whole.Add(1)
				}
				if len(seqs) == 0 || rng.IntN(3) == 0 { // back to ticks that may be truncated
					from = max(first, from-int64(rng.IntN(200)))
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d ticks were read, %d were truncated, %d segments were reclaimed", whole.Load(), gone.Load(), given.Load())
	if whole.Load() == 0 || gone.Load() == 0 || given.Load() == 0 {
		t.Error("too little happened for the test to prove anything")
	}
}

// ticksAfter calls weir.tick, and returns the floor if the error reports one.
func ticksAfter(t *testing.T, conn *pgx.Conn, after int64) (seqs []int64, counts []int32, floor int64, err error) {
	err = conn.QueryRow(t.Context(), `SELECT seqs, counts FROM weir._await_tick($1)`, after).Scan(&seqs, &counts)
	if sqlstate(err) == "WR005" {
		if floor, err = detail(err); floor == 0 {
			err = fmt.Errorf("the error has a floor of 0")
		}
	}
	return seqs, counts, floor, err
}

func queryColumn[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) ([]T, error) {
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// TestSegmentsComeBackUnderReaders: segments are reclaimed even if readers hold locks on all of them for most of the time.
// back all the same.
func TestSegmentsComeBackUnderReaders(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.set('message_retention', '0 s')`)
	exec(t, conn, `SELECT weir.set('message_retention_bytes', '1048576')`)
	stop := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(stop)
	publisher := connect(t, url)
	all.Go(func() {
		for i := 0; !closed(stop); i++ {
			if _, err := publisher.Exec(t.Context(), `SELECT weir.publish('c', lpad($1, 2000))`, fmt.Sprint(i)); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
		}
	})
	for range 8 {
		reader := connect(t, url)
		all.Go(func() {
			var after int64 = 1
			for !closed(stop) {
				seqs, _, floor, err := ticksAfter(t, reader, after)
				if after = max(after, floor); err != nil {
					t.Errorf("tick: %v", err)
					return
				}
				for _, seq := range seqs {
					if _, err := queryColumn[int64](t, reader, `SELECT id FROM weir.read($1)`, seq); err != nil && sqlstate(err) != "WR005" {
						t.Errorf("read: %v", err)
						return
					}
					after = seq
				}
			}
		})
	}
	tries, given := 0, 0
	until(t, "three segments are reclaimed", func() bool {
		tries++
		if did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`); did != "" && did[0] == 'r' {
			given++
		}
		return given == 3
	})
	t.Logf("3 segments were reclaimed in %d calls", tries)
}
