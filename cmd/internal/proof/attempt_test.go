package proof

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

var errStillHeld = errors.New("fence returns NULL although no transaction of the worker is open")

// TestEveryAttemptIsInExactlyOneBatch: every attempt at a committed job is claimed by exactly one batch, no job that was rolled back is claimed,
// and each attempt that does not end its job is followed by the next.
func TestEveryAttemptIsInExactlyOneBatch(t *testing.T) {
	t.Parallel()
	l := newLoad(t, pgtest.Database(t), newSeed(t))
	l.run(loadTime(2*time.Second), nil)
	l.verify(time.Time{})
}

// loadTime returns how long to load the server.
func loadTime(normal time.Duration) time.Duration {
	if *longFlag > 0 {
		return *longFlag
	}
	return normal
}

// run loads the server for d, and then drains it. disturb is called halfway.
func (l *load) run(d time.Duration, disturb func()) {
	conn := connect(l.t, l.url)
	for _, sql := range []string{`SELECT weir.set('completed_retention', '0 s')`, `SELECT weir.set('retention_bytes', '1048576')`} {
		exec(l.t, conn, sql)
	}
	_ = conn.Close(l.t.Context())
	var producers, others sync.WaitGroup
	for n := range 8 {
		producers.Go(func() { l.produce(n) })
	}
	for n := range 5 {
		others.Go(func() { l.work(n) })
	}
	for n := range 2 {
		others.Go(func() { l.maintain(n) })
	}
	others.Go(l.terminate)
	if disturb != nil {
		l.pause(d / 2)
		disturb()
		l.pause(d / 2)
	} else {
		l.pause(d)
	}
	// On a slow machine it goes on until there was something to find.
	l.await(func() bool { return l.has("opened") && l.has("promoted") })
	close(l.stop)
	producers.Wait()
	l.draining.Store(true)
	if l.ctx.Err() == nil {
		l.drain()
	}
	l.await(func() bool { return l.has("reclaimed") })
	close(l.drained)
	others.Wait()
	if err := context.Cause(l.ctx); err != nil {
		l.t.Fatal(err)
	}
}

// has tells whether maintenance has done something.
func (l *load) has(did string) bool {
	n, ok := l.did.Load(did)
	return ok && n.(*atomic.Int64).Load() > 0
}

// await waits for what a load needs to prove anything; verify tells what is missing.
func (l *load) await(done func() bool) {
	for end := time.Now().Add(patience); !done() && l.ctx.Err() == nil && time.Now().Before(end); {
		l.pause(50 * time.Millisecond)
	}
}

// drain ends prepared transactions whose answer was lost, and waits until every row of the log has been claimed and finished.
func (l *load) drain() {
	conn := connect(l.t, l.url)
	for _, gid := range column[string](l.t, conn, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`) {
		exec(l.t, conn, `COMMIT PREPARED '`+gid+`'`)
	}
	begin, missing := time.Now(), ""
	for end := begin.Add(patience); ; l.pause(50 * time.Millisecond) {
		if missing = l.unfinished(conn); missing == "" || l.ctx.Err() != nil {
			break
		}
		if time.Now().After(end) {
			l.t.Errorf("not drained after %v: %s", patience, missing)
			break
		}
	}
	l.t.Logf("drained in %v", time.Since(begin).Round(time.Millisecond))
}

// unfinished returns an example of what remains to be done, or "".
func (l *load) unfinished(conn *pgx.Conn) string {
	rows, err := conn.Query(l.ctx, `SELECT id, attempt, put_off FROM weir.job UNION ALL SELECT id, attempt, put_off FROM weir.later`)
	if err != nil {
		return err.Error()
	}
	var id int64
	var t step
	missing := ""
	_, err = pgx.ForEachRow(rows, []any{&id, &t.attempt, &t.putOff}, func() error {
		if missing == "" && !l.model.has(id, t) {
			missing = fmt.Sprintf("job %d attempt %v is in the log but was not claimed", id, t)
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	if missing == "" {
		var open int
		err = conn.QueryRow(l.ctx, `SELECT count(*) FROM (
			SELECT b.lane, b.seq, i.id FROM weir.batch b, unnest(b.ids) i(id) EXCEPT SELECT r.lane, r.seq, i.id FROM weir.result r, unnest(r.ids) i(id)) u`).Scan(&open)
		if err != nil || open > 0 {
			missing = fmt.Sprintf("%d attempts were claimed but have no result %v", open, err)
		}
	}
	return missing
}

// verify compares what clients saw with the model.
func (l *load) verify(killed time.Time) {
	l.t.Helper()
	fates := map[fate]int{}
	for _, f := range l.model.jobs {
		fates[f]++
	}
	did := map[string]int64{}
	l.did.Range(func(k, v any) bool { did[k.(string)] = v.(*atomic.Int64).Load(); return true })
	l.t.Logf("%d jobs committed, %d rolled back, %d uncertain; %d claims of %d jobs; maintenance: %v",
		fates[committed], fates[rolledBack], fates[uncertain], l.model.count, len(l.model.claims), did)
	problems := l.model.problems(killed)
	for _, p := range problems[:min(len(problems), 20)] {
		l.t.Error(p)
	}
	if len(problems) > 0 {
		l.t.Errorf("there are %d problems", len(problems))
	}
	if fates[committed] == 0 || did["opened"] == 0 || did["reclaimed"] == 0 || did["promoted"] == 0 {
		l.t.Errorf("the load was too light for the test to prove anything: %v, %v", fates, did)
	}
}
