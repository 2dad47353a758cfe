package weirrelay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// failing is a relay, its target that knows where it is, and a database that fails over.
type failing struct {
	target *elsewhere
	pool   *pgxpool.Pool
	config weirrelay.Config
	gaps   atomic.Int32
}

func newFailing(t *testing.T) *failing {
	t.Helper()
	f := &failing{target: &elsewhere{}, pool: pgtest.Pool(t, pgtest.Database(t))}
	f.config = weirrelay.Config{Name: "r", Pool: f.pool, Target: f.target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) {
		if p.Gap != nil {
			f.gaps.Add(1)
		}
	}}
	return f
}

// send publishes messages, each in a tick of its own, and stops the relay when the target has what it is to have.
func (f *failing) send(t *testing.T, want string, payloads ...string) {
	t.Helper()
	stop := run(t, f.config)
	defer stop()
	for _, payload := range payloads {
		exec(t, f.pool, `SELECT weir.publish('c', $1)`, payload)
		pgtest.Until(t, payload+" has arrived", func() bool { return hasLast(f.target.all(), payload) })
	}
	pgtest.Until(t, "the target has "+want, func() bool { return f.target.all() == want })
}

func hasLast(all, payload string) bool {
	return len(all) >= len(payload) && all[len(all)-len(payload):] == payload
}

// tick returns that of the target's position.
func (f *failing) tick(t *testing.T) int64 {
	t.Helper()
	p, err := hub.ParsePosition(string(f.target.place()))
	if err != nil {
		t.Fatal(err)
	}
	return p.Tick
}

// failOver sends a, b and c, and sets the database back to where it was after a, as a standby that lagged has it.
func (f *failing) failOver(t *testing.T) {
	t.Helper()
	f.send(t, "a", "a")
	kept, recorded := f.tick(t), value[int64](t, f.pool, `SELECT max(no) FROM weir.relay`)
	f.send(t, "a b c", "b", "c")
	exec(t, f.pool, `WITH gone AS (DELETE FROM weir.tick WHERE seq > $1), old AS (UPDATE weir.epoch SET started_at = started_at - interval '1 hour'),
		lost AS (DELETE FROM weir.message WHERE convert_from(payload, 'UTF8') IN ('b', 'c')), late AS (DELETE FROM weir.relay WHERE no > $2) SELECT setval('weir.tick_seq', $1)`, kept, recorded)
}

// isRecorded waits until what is recorded lies in a tick behind this one.
func (f *failing) isRecorded(t *testing.T, tick int64) {
	t.Helper()
	pgtest.Until(t, "the relay has passed over a message that is not for it", func() bool {
		return value[int64](t, f.pool, `SELECT coalesce((SELECT tick FROM weir.relay ORDER BY no DESC LIMIT 1), 0)`) > tick
	})
}

// TestATargetThatIsSetBackBehindAFailoverGetsAgainWhatItHasLost: its position is of a tick that the failover has lost, whose number is greater than that of what came after it.
func TestATargetThatIsSetBackBehindAFailoverGetsAgainWhatItHasLost(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.failOver(t)
	backup := f.target.place()
	lost := f.tick(t)
	f.send(t, "a b c d", "d")
	if f.tick(t) >= lost {
		t.Fatalf("d is in tick %d, want one before %d", f.tick(t), lost)
	}
	stop := run(t, f.config)
	for n := f.tick(t); n <= lost; n++ {
		exec(t, f.pool, `SELECT weir.publish('other', 'x')`)
		pgtest.Until(t, "a tick is cut", func() bool { return value[int64](t, f.pool, `SELECT weir.newest_tick()`) > n })
	}
	f.isRecorded(t, lost)
	stop()
	f.target.at, f.target.got = backup, []string{"a", "b", "c"}
	f.send(t, "a b c d e", "e")
}

// TestAFailoverIsOneGap: also if no message is for the relay from then on, and it begins anew: what is recorded lies behind the target's position, which is of a tick that was lost.
func TestAFailoverIsOneGap(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.failOver(t)
	first := f.tick(t) - 1 // that the failover has lost, and whose number is used again
	stop := run(t, f.config)
	pgtest.Until(t, "a gap is reported", func() bool { return f.gaps.Load() == 1 })
	exec(t, f.pool, `SELECT weir.publish('other', 'x')`)
	f.isRecorded(t, first)
	stop()
	f.send(t, "a b c d", "d")
	if n := f.gaps.Load(); n != 1 {
		t.Errorf("%d gaps after the relay began anew, want one", n)
	}
}

// TestATargetWithAPositionOfAnUnknownLogGoesOnWhereTheRelayIs: the server that was lost had restarted just before, and had counted anew.
func TestATargetWithAPositionOfAnUnknownLogGoesOnWhereTheRelayIs(t *testing.T) {
	t.Parallel()
	f := newFailing(t)
	f.send(t, "a b", "a", "b")
	f.target.at = "12345.1000000.1"
	f.send(t, "a b c", "c")
	if n := f.gaps.Load(); n != 1 {
		t.Errorf("%d gaps, want one", n)
	}
	f.target.at = "12345.1000000.1"
	f.send(t, "a b c d", "d")
}
