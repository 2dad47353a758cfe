package weirrelay_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// away is a target that a relay can't begin at while it is off.
type away struct{ refusing }

func (a *away) Begin(ctx context.Context, recorded weir.Position) (weir.Position, error) {
	if a.off.Load() {
		return "", errors.New("the target is away")
	}
	return a.refusing.Begin(ctx, recorded)
}

// TestARelaySaysSinceWhenMessagesWait: while the target refuses, or is away when another process begins, that does not change, whatever is published or not; and nothing waits once all were passed on.
func TestARelaySaysSinceWhenMessagesWait(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &away{}
	var waiting atomic.Pointer[time.Time]
	never := time.Unix(0, 0)
	waiting.Store(&never)
	c := weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) { waiting.Store(&p.Waiting) }}
	publish := func(payload string) { exec(t, pool, `SELECT weir.publish('c', $1)`, payload) }
	waits := func() bool { return !waiting.Load().IsZero() }
	nothing := func() bool { return !waits() }

	stop := run(t, c)
	publish("a")
	pgtest.Until(t, "a has arrived, and nothing waits", func() bool { return target.has("a") && nothing() })

	// The target refuses.
	target.off.Store(true)
	before := time.Now()
	publish("b")
	pgtest.Until(t, "b waits", waits)
	since := *waiting.Load()
	if since.Before(before) || since.After(time.Now()) {
		t.Errorf("b waits since %s, want after %s", since, before)
	}
	publish("c")
	pgtest.Until(t, "c is in a tick", func() bool { return value[int](t, pool, `SELECT sum(count) FROM weir.tick`) == 3 })
	if got := *waiting.Load(); !got.Equal(since) {
		t.Errorf("with c, b waits since %s, and before since %s", got, since)
	}

	// Another process begins two hours later, while the target is away: it asks the log.
	stop()
	exec(t, pool, `UPDATE weir.tick SET at = at - interval '2 hours'`)
	waiting.Store(&never)
	run(t, c)
	old := func() bool { age := time.Since(*waiting.Load()); return age > 119*time.Minute && age < 150*time.Minute }
	pgtest.Until(t, "b waits since two hours", old)

	// So it does when the target is there, and refuses, and not any more once it has everything.
	target.off.Store(false)
	pgtest.Until(t, "all have arrived", func() bool { return target.all() == "a b c" })
	pgtest.Until(t, "nothing waits", nothing)
	target.off.Store(true)
	publish("d")
	pgtest.Until(t, "d waits", waits)
	if got := *waiting.Load(); time.Since(got) > time.Since(before) {
		t.Errorf("d waits since %s", got)
	}
	target.off.Store(false)
	pgtest.Until(t, "nothing waits", nothing)
}

// TestWhoeverStandsBySaysNothingOfWhatWaits: that is for the process to say that has the relay.
func TestWhoeverStandsBySaysNothingOfWhatWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target := &refusing{}
	var active, other atomic.Pointer[weirrelay.Progress]
	c := weirrelay.Config{Name: "r", Pool: pool, Target: target, Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) { active.Store(&p) }}
	stop := run(t, c)
	pgtest.Until(t, "it passes on", func() bool { p := active.Load(); return p != nil && p.Active && p.Waiting.IsZero() })
	c.Observe = func(p weirrelay.Progress) { other.Store(&p) }
	run(t, c)
	target.off.Store(true)
	exec(t, pool, `SELECT weir.publish('c', 'x')`)
	pgtest.Until(t, "x waits", func() bool { return !active.Load().Waiting.IsZero() })
	if p := other.Load(); p != nil && !p.Waiting.IsZero() {
		t.Errorf("who stands by says %+v", p)
	}
	stop()
	pgtest.Until(t, "the other process has taken over, and x waits", func() bool { p := other.Load(); return p != nil && p.Active && !p.Waiting.IsZero() })
	target.off.Store(false)
	pgtest.Until(t, "nothing waits", func() bool { return target.has("x") && other.Load().Waiting.IsZero() })
}

// TestAMessageOf300BytesTakes380: docs/relays.md says from that how much is kept for a relay that lags.
func TestAMessageOf300BytesTakes380(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	const messages = 10_000
	exec(t, pool, `SELECT weir.publish_many(array_agg('orders.made'::text), array_agg(left(repeat(md5(i::text), 10), 300))) FROM generate_series(1, $1::integer) i`, messages)
	each := value[float64](t, pool, `SELECT sum(pg_table_size(format('weir.message_%s', s)))::float / $1 FROM generate_series(1, 4) s`, messages)
	if each < 370 || each > 390 {
		t.Errorf("a message takes %v bytes", each)
	}
}
