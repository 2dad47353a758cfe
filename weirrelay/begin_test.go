package weirrelay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// TestARelayThatBeginsWhileATickIsCommittedPassesItOn: it begins now, or with a time before that tick, which nobody sees yet, although its number is assigned.
func TestARelayThatBeginsWhileATickIsCommittedPassesItOn(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	exec(t, pool, `SELECT weir.publish('c', 'early')`)
	exec(t, pool, `SELECT seqs FROM weir._await_tick(weir.newest_tick())`)
	since := value[time.Time](t, pool, `SELECT clock_timestamp()`)
	exec(t, pool, `SELECT weir.publish('c', 'while it begins')`)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT seqs FROM weir._await_tick(weir.newest_tick())`); err != nil {
		t.Fatal(err)
	}
	targets := map[string]*refusing{}
	for name, from := range map[string]time.Time{"now": {}, "with a time": since} {
		targets[name] = &refusing{}
		run(t, weirrelay.Config{Name: name, Pool: pgtest.Pool(t, url), Target: targets[name], Since: from, Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) {
			if p.Gap != nil {
				t.Errorf("%s: there is a gap: %+v", name, p.Gap)
			}
		}})
	}
	pgtest.Until(t, "both have begun", func() bool { return value[int](t, pool, `SELECT count(*) FROM weir.relays()`) == 2 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT weir.publish('c', 'and then')`)
	for name, target := range targets {
		pgtest.Until(t, "what follows has arrived: "+name, func() bool { return target.has("and then") })
		if got := target.all(); got != "while it begins and then" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// TestARelayBeginsWithATimeInsideTheLog: it passes on what came after that time, and all of it, up to where it ends.
func TestARelayBeginsWithATimeInsideTheLog(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	const ticks = 5
	var since [ticks + 1]time.Time // that of each is before message i
	var want []string
	for i := range ticks {
		since[i] = value[time.Time](t, pool, `SELECT clock_timestamp()`)
		want = append(want, fmt.Sprint(i))
		exec(t, pool, `SELECT weir.publish('others', 'x'), weir.publish('c', $1)`, want[i])
		exec(t, pool, `SELECT seqs FROM weir._await_tick(weir.newest_tick())`)
	}
	since[ticks] = value[time.Time](t, pool, `SELECT clock_timestamp()`)
	end := weir.Position(value[string](t, pool, `SELECT weir._epoch_of(n) || '.' || n + 1 || '.0' FROM weir.newest_tick() n`))
	exec(t, pool, `SELECT weir.publish('c', 'behind the end')`)
	for i, from := range since {
		target := &refusing{}
		err := weirrelay.Run(t.Context(), weirrelay.Config{Name: fmt.Sprint("from ", i), Pool: pool, Target: target, Since: from, Until: end, Routes: []weirrelay.Route{{Channels: "c"}}, Observe: func(p weirrelay.Progress) {
			if p.Gap != nil {
				t.Errorf("from %d: there is a gap: %+v", i, p.Gap)
			}
		}})
		if got := strings.Join(want[i:], " "); err != nil || target.all() != got {
			t.Errorf("from %d: got %q, %v; want %q", i, target.all(), err, got)
		}
	}
}
