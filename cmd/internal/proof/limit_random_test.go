package proof

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestLimitsAreExactUnderEveryInterleaving: under producers that roll back, workers that die or lose their sessions and their answers, completions in
// open transactions, reclaiming, and a server that is killed, no snapshot ever shows more attempts than a limit allows, though limits are raised,
// lowered, removed and set again meanwhile; and in the end every slot is free.
func TestLimitsAreExactUnderEveryInterleaving(t *testing.T) {
	t.Parallel()
	for _, crashes := range []bool{false, true} {
		t.Run(fmt.Sprintf("crashes=%v", crashes), func(t *testing.T) { exactUnderLoad(t, crashes) })
	}
}

func exactUnderLoad(t *testing.T, crashes bool) {
	server := pgtest.Server(t, map[string]string{"max_prepared_transactions": "50"})
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	l := newLoad(t, server.URL("postgres"), newSeed(t))
	l.crashing = crashes
	for queue, limit := range map[string]int{"a": 7, "b": 23} {
		exec(t, conn, `SELECT weir.set_limit($1, running => $2)`, queue, limit)
	}
	exec(t, conn, `SELECT weir.set_limit('c', running => 11, rate => 3000, burst => 30)`)
	exec(t, conn, `SELECT weir.set_limit('a', running => 2, per_key => true)`)
	exec(t, conn, `SELECT weir.set_limit('b', per_key => true, in_order => true)`)
	s := &slots{load: l}
	var watchers sync.WaitGroup
	watchers.Go(s.sample)
	watchers.Go(s.sample)
	watchers.Go(s.change)
	var killed time.Time
	crash := func() {
		killed = time.Now()
		if err := server.Kill(); err != nil {
			l.fail(err)
			return
		}
		killed = time.Now()
		if err := server.Restart(t.Context()); err != nil {
			l.fail(err)
		}
	}
	if !crashes {
		crash = nil
	}
	l.run(loadTime(5*time.Second), crash)
	watchers.Wait()
	l.verify(killed)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("%d samples, %d of them at a limit; limits were changed %d times", s.samples, s.atLimit, s.changes)
	if s.samples == 0 || s.atLimit == 0 || s.changes == 0 {
		t.Error("the test proves nothing")
	}
	conn = connect(t, server.URL("postgres"))
	for _, left := range column[string](t, conn, `SELECT l.queue || ' counts ' || l.running_now FROM weir.limits() l WHERE l.running_now <> 0`) {
		t.Errorf("in the end, %s", left)
	}
	// The state of a gate is what its rows and releases say, whatever was compacted.
	if n := value[int](t, conn, `SELECT count(*) FROM weir.queue_limit`); n == 0 {
		t.Error("no limit is left")
	}
}

// slots watches the limits of a load.
type slots struct {
	*load
	mu                        sync.Mutex
	samples, atLimit, changes int
}

// sample compares what runs with the limits, each time under one snapshot. After a limit was set or changed, more may run until enough have ended.
func (s *slots) sample() {
	type version struct{ gate, row, limit uint32 }
	kept := map[string]version{} // the version of the limit that was seen to be kept
	var conn *pgx.Conn
	for s.ctx.Err() == nil && !closed(s.drained) {
		if conn == nil || conn.IsClosed() {
			if conn = s.dial("sampler"); conn == nil {
				return
			}
		}
		begin := time.Now()
		// Attempts of fenced workers count until they are logged again.
		rows, err := conn.Query(s.ctx, `SELECT 'queue ' || l.name, l.gate, l.xmin::text::bigint, l.running, (
			SELECT count(*) FROM weir.queue q CROSS JOIN generate_series(0, 4) p JOIN weir.batch b ON b.lane = (q.id::bigint << 39) + p CROSS JOIN unnest(b.ids) i(id)
			WHERE q.name = l.name AND NOT EXISTS (SELECT FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq AND i.id = ANY (r.ids)))
			FROM weir.queue_limit l WHERE l.running IS NOT NULL
			UNION ALL
			SELECT 'a key of queue ' || l.name, l.gate, l.xmin::text::bigint, l.key_running, (SELECT coalesce(max(k.n), 0) FROM (
				SELECT count(*) AS n FROM weir.queue q JOIN weir.batch b ON b.lane = (q.id::bigint << 39) + 4 CROSS JOIN unnest(b.ids, b.lanes) i(id, lane)
				WHERE q.name = l.name AND NOT EXISTS (SELECT FROM weir.result r WHERE r.segment = b.segment AND r.lane = b.lane AND r.seq = b.seq AND i.id = ANY (r.ids))
				GROUP BY i.lane & 549755813880) k)
			FROM weir.queue_limit l WHERE l.key_running IS NOT NULL`)
		var name string
		var v version
		var n uint32
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&name, &v.gate, &v.row, &v.limit, &n}, func() error {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.samples++
				if n == v.limit {
					s.atLimit++
				}
				if n <= v.limit {
					kept[name] = v
				} else if kept[name] == v {
					return fmt.Errorf("%d attempts of %s run, at most %d may", n, name, v.limit)
				}
				return nil
			})
		}
		if err != nil && sqlstate(err) == "" && !conn.IsClosed() && !errors.Is(err, s.ctx.Err()) {
			s.fail(err)
			return
		}
		s.check(conn, "sample", err)
		s.pause(2*time.Millisecond + time.Since(begin)) // reclaiming does not wait for readers: where a sample takes long, it must find none at times
	}
	if conn != nil {
		_ = conn.Close(s.t.Context())
	}
}

// change changes limits at random, and in the end sets all of them.
func (s *slots) change() {
	rng := rand.New(rand.NewPCG(s.seed, 4000))
	var conn *pgx.Conn
	for s.ctx.Err() == nil && !closed(s.stop) {
		s.pause(time.Duration(100+rng.IntN(300)) * time.Millisecond)
		if conn == nil || conn.IsClosed() {
			if conn = s.dial("operator"); conn == nil {
				return
			}
		}
		sql := fmt.Sprintf(`SELECT weir.set_limit('b', running => %d)`, 5+rng.IntN(30))
		switch rng.IntN(7) {
		case 4:
			sql = fmt.Sprintf(`SELECT weir.set_limit('a', running => %d, per_key => true)`, 1+rng.IntN(4))
		case 5:
			sql = fmt.Sprintf(`SELECT weir.set_limit('c', running => %d, per_key => true)`, 1+rng.IntN(2))
		case 6:
			sql = fmt.Sprintf(`SELECT weir.clear_limit('%c', per_key => true)`, 'a'+rng.IntN(3))
		case 0:
			sql = `SELECT weir.clear_limit('c')`
		case 1:
			sql = fmt.Sprintf(`SELECT weir.set_limit('c', running => %d, rate => 3000, burst => 30)`, 5+rng.IntN(20))
		}
		if _, err := conn.Exec(s.ctx, sql); sqlstate(err) == "55P03" { // claims are always in progress, on a busy machine: it says so, and changes nothing
			continue
		} else if !s.check(conn, sql, err) {
			s.mu.Lock()
			s.changes++
			s.mu.Unlock()
		}
	}
	// What is left is to be drained soon, and each queue has limits in the end.
	for i := range 2 * len(s.queues) {
		queue, set := s.queues[i/2], `SELECT weir.set_limit($1, running => 500)`
		if i%2 == 1 {
			set = `SELECT weir.set_limit($1, running => 50, per_key => true)`
		}
		for err := errors.New("not yet set"); err != nil && s.ctx.Err() == nil; {
			if conn == nil || conn.IsClosed() {
				if conn = s.dial("operator"); conn == nil {
					return
				}
			}
			_, err = conn.Exec(s.ctx, set, queue)
			if sqlstate(err) != "55P03" {
				s.check(conn, "set_limit", err)
			}
		}
	}
	if conn != nil {
		_ = conn.Close(s.t.Context())
	}
}
