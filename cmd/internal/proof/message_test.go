package proof

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestEveryMessageIsInExactlyOneTick: each committed transaction is in exactly one tick, complete and in order, and no other transaction is in any;
// all listeners read the same ticks, and none before the rows of its transactions are visible.
func TestEveryMessageIsInExactlyOneTick(t *testing.T) {
	t.Parallel()
	l := newLoad(t, pgtest.Database(t), newSeed(t))
	talk := newTalk()
	exec(t, connect(t, l.url), `SELECT weir.set('message_retention', '4 s')`)
	l.converse(talk, loadTime(4*time.Second), nil)
	l.verifyTalk(talk)
	if !l.has("opened") {
		t.Error("no segment was opened: the load was too light for the test to prove anything")
	}
}

// TestKilledServerLosesNoTick: if the postmaster is killed under load, each tick that was returned exists unchanged afterwards, and every committed
// message is in a tick.
func TestKilledServerLosesNoTick(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	l := newLoad(t, server.URL("postgres"), newSeed(t))
	talk := newTalk()
	l.converse(talk, loadTime(3*time.Second), func() {
		if err := server.Kill(); err != nil {
			l.fail(err)
		} else if err := server.Restart(t.Context()); err != nil {
			l.fail(err)
		}
	})
	l.verifyTalk(talk)
	// Read again from the beginning: each tick is compared with what was read before the crash.
	again := newLoad(t, l.url, l.seed)
	close(again.stop)
	close(again.drained)
	again.listen(talk, 1, 0)
	if err := context.Cause(again.ctx); err != nil {
		t.Error(err)
	}
}

// converse runs publishers and listeners for d, and then lets the listeners read to the end. disturb is called halfway.
func (l *load) converse(talk *talk, d time.Duration, disturb func()) {
	conn := connect(l.t, l.url)
	exec(l.t, conn, `CREATE TABLE spoken (tx text PRIMARY KEY)`)
	first := value[int64](l.t, conn, `SELECT weir.newest_tick()`)
	_ = conn.Close(l.t.Context())
	var publishers, others sync.WaitGroup
	for n := range 8 {
		publishers.Go(func() { l.publish(talk, n) })
	}
	for n := range 4 {
		others.Go(func() { l.listen(talk, n, first) })
	}
	others.Go(func() { l.rotate(talk) })
	others.Go(l.terminate)
	l.pause(d / 2)
	if disturb != nil {
		disturb()
	}
	l.pause(d / 2)
	l.await(func() bool { return talk.isEnough() }) // on a busy machine it takes longer
	if disturb == nil {
		l.await(func() bool { return l.has("opened") })
	}
	close(l.stop)
	publishers.Wait()
	if l.ctx.Err() == nil {
		l.hush(talk)
	}
	close(l.drained)
	others.Wait()
	if err := context.Cause(l.ctx); err != nil {
		l.t.Fatal(err)
	}
}

// hush ends prepared transactions whose answer was lost, and cuts ticks until nothing is left.
func (l *load) hush(talk *talk) {
	conn := connect(l.t, l.url)
	for _, gid := range column[string](l.t, conn, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`) {
		exec(l.t, conn, `COMMIT PREPARED '`+gid+`'`)
	}
	// A terminated session may still be committing.
	until(l.t, "all publishers' transactions have ended", func() bool {
		return value[int](l.t, conn, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'victim publisher'`) == 0
	})
	until(l.t, "the last tick is cut", func() bool {
		var none bool
		newest := value[int64](l.t, conn, `SELECT weir.newest_tick()`)
		err := conn.QueryRow(l.t.Context(), `SELECT seqs IS NULL AND ids_now IS NOT NULL FROM weir._await_tick($1)`, newest).Scan(&none)
		if err != nil {
			l.t.Fatal(err)
		}
		talk.last.Store(newest)
		return none
	})
}

// verifyTalk compares what listeners read with the model.
func (l *load) verifyTalk(talk *talk) {
	l.t.Helper()
	fates, messages := talk.tally()
	did := map[string]int64{}
	l.did.Range(func(k, v any) bool { did[k.(string)] = v.(*atomic.Int64).Load(); return true })
	l.t.Logf("%d transactions committed, %d rolled back, %d uncertain; %d messages in %d ticks; %d gaps; segments: %v",
		fates[committed], fates[rolledBack], fates[uncertain], messages, len(talk.ticks), talk.gaps.Load(), did)
	problems := talk.problems(2) // the first tick came with the schema
	if len(problems) > 0 {
		l.t.Errorf("there are %d problems: %s", len(problems), strings.Join(problems[:min(len(problems), 20)], "\n"))
	}
	if !talk.isEnough() {
		l.t.Error("the load was too light for the test to prove anything")
	}
}
