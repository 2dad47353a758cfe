package weirrelay_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
)

// published publishes messages, and returns where the log ends then.
func published(t *testing.T, pool *pgxpool.Pool, payloads ...string) weir.Position {
	t.Helper()
	for _, payload := range payloads {
		exec(t, pool, `SELECT weir.publish('c', $1)`, payload)
		exec(t, pool, `SELECT seqs FROM weir._await_tick(weir.newest_tick())`)
	}
	return weir.Position(value[string](t, pool, `SELECT weir._epoch_of(n) || '.' || n + 1 || '.0' FROM weir.newest_tick() n`))
}

func listed(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return value[string](t, pool, `SELECT coalesce(string_agg(relay, ' '), '') FROM weir.relays()`)
}

// ending is a relay from the beginning up to a position, whose target keeps none.
func ending(pool *pgxpool.Pool, target weirrelay.Target, until weir.Position, log *pgtest.Log) weirrelay.Config {
	return weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Unix(0, 0), Until: until, Routes: []weirrelay.Route{{Channels: "c"}}, Logger: log.Logger()}
}

// TestARelayThatHasEndedIsNotListed: and one of the same name goes on where it was. One that is interrupted when everything has been passed on, and nothing is recorded of that yet, is listed, until it is run again.
func TestARelayThatHasEndedIsNotListed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target, log := &refusing{}, new(pgtest.Log)
	until := published(t, pool, "a", "b")
	exec(t, pool, `CREATE FUNCTION public.never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not the end' USING ERRCODE = '53000'; END $$`)
	exec(t, pool, `CREATE TRIGGER never BEFORE INSERT ON weir.relay FOR EACH ROW WHEN (NEW.tick IS NULL) EXECUTE FUNCTION public.never()`)
	stop := run(t, ending(pool, target, until, log))
	pgtest.Until(t, "the relay tries to record that it has ended", func() bool { return log.Count("not the end") > 0 })
	stop()
	if all := listed(t, pool); all != "r" {
		t.Errorf("listed are %q while it is interrupted", all)
	}
	exec(t, pool, `DROP TRIGGER never ON weir.relay`)
	for i, more := range []string{"", "c"} {
		want := "a b"
		if more != "" {
			until, want = published(t, pool, more), want+" "+more
		}
		if err := weirrelay.Run(t.Context(), ending(pool, target, until, log)); err != nil {
			t.Fatal(err)
		}
		if all := listed(t, pool); target.all() != want || all != "" {
			t.Errorf("call %d: the target has %q, want %q; listed are %q", i, target.all(), want, all)
		}
	}
	if recorded := value[int](t, pool, `SELECT count(DISTINCT relay) FROM weir.relay WHERE relay = 'r'`); recorded != 1 {
		t.Error("where it has ended is not recorded any more")
	}
}

// gated is a target that takes nothing until it is opened.
type gated struct {
	refusing
	open chan struct{}
}

func (g *gated) Send(ctx context.Context, records []weirrelay.Record) error {
	select {
	case <-g.open:
		return g.refusing.Send(ctx, records)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestTwoProcessesEndARelayTogether: one stands by until the other has ended, passes on what is behind the other's end alone, and ends as well; in either order of their ends.
func TestTwoProcessesEndARelayTogether(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]int{"the first ends first": 0, "the second ends first": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.Pool(t, url)
			target := &gated{open: make(chan struct{})}
			ends := []weir.Position{published(t, pool, "a", "b"), published(t, pool, "c")}
			if first == 1 {
				ends[0], ends[1] = ends[1], ends[0]
			}
			var logs [2]pgtest.Log
			var running sync.WaitGroup
			errs := make([]error, 2)
			for i := range 2 {
				c := ending(pgtest.Pool(t, url), target, ends[i], &logs[i])
				running.Go(func() { errs[i] = weirrelay.Run(t.Context(), c) })
				pgtest.Until(t, "it has begun, or stands by", func() bool { return logs[i].Count([]string{"passes messages on", "stands by"}[i]) > 0 })
			}
			close(target.open)
			running.Wait()
			for i, err := range errs {
				if err != nil {
					t.Errorf("process %d: %v", i, err)
				}
			}
			if all := listed(t, pool); target.all() != "a b c" || all != "" {
				t.Errorf("the target has %q, listed are %q", target.all(), all)
			}
		})
	}
}

// TestARelayThatWasSetBackBehindItsEndPassesOnTheRest: a failover has lost what it had passed on, and the numbers of its position are greater than those of the log's end.
func TestARelayThatWasSetBackBehindItsEndPassesOnTheRest(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	target, log := &refusing{}, new(pgtest.Log)
	if err := weirrelay.Run(t.Context(), ending(pool, target, published(t, pool, "a"), log)); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT weir._relay_reached('r', weir._epoch_of(n) || '.' || n + 1000 || '.1', n + 1000, NULL, '') FROM weir.newest_tick() n`) // of ticks that this log does not have
	exec(t, pool, `UPDATE weir.epoch SET started_at = started_at - interval '1 hour'`)
	gaps := 0
	c := ending(pool, target, published(t, pool, "b", "c"), log)
	c.Observe = func(p weirrelay.Progress) {
		if p.Gap != nil {
			gaps++
		}
	}
	if err := weirrelay.Run(t.Context(), c); err != nil || target.all() != "a b c" || gaps != 1 {
		t.Errorf("the target has %q after %d gaps, %v", target.all(), gaps, err)
	}
}

// TestARelayThatHasEndedIsForgottenWhenItCanRepeatNothing: that is, all that it has passed on is truncated, and it ended longer than relay_retention ago; and no other relay is.
func TestARelayThatHasEndedIsForgottenWhenItCanRepeatNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for _, row := range []struct {
		name, position, sent string
		tick                 any
		old                  bool
	}{
		{"gone", "7.10.1", "7.10.1", nil, true},
		{"gone without a message", "7.10.0", "", nil, true},
		{"kept: not truncated", "7.11.0", "7.10.1", nil, true},
		{"kept: ended just now", "7.10.1", "7.10.1", nil, false},
		{"kept: interrupted", "7.10.1", "7.10.1", 10, true},
		{"kept: of another form", "10", "x", nil, true},
	} {
		exec(t, pool, `SELECT weir._relay_reached($1, '7.1.0', 1, NULL, '')`, row.name)
		exec(t, pool, `SELECT weir._relay_reached($1, $2, $3, NULL, $4)`, row.name, row.position, row.tick, row.sent)
		if row.old {
			exec(t, pool, `UPDATE weir.relay SET at = at - interval '2 days' WHERE relay = $1`, row.name)
		}
	}
	exec(t, pool, `SELECT weir._relay_reached('kept: a target''s', '7.10.1', after => '')`)
	exec(t, pool, `UPDATE weir.relay SET at = at - interval '2 days' WHERE sent IS NULL`)
	exec(t, pool, `SELECT weir._relay_reached('kept: runs', i::text, i, NULL, repeat('x', 500)) FROM generate_series(1, 7000) i`)
	exec(t, pool, `SELECT setval('weir.tick_floor', 10)`)
	pgtest.Until(t, "the positions are compacted", func() bool {
		return value[string](t, pool, `SELECT coalesce(weir._compact_relays(), '')`) == "compacted relays"
	})
	var want []string
	for _, name := range []string{"a target's", "ended just now", "interrupted", "not truncated", "of another form", "runs"} {
		want = append(want, "kept: "+name)
	}
	if got := value[string](t, pool, `SELECT string_agg(relay, ', ' ORDER BY relay COLLATE "C") FROM weir.relay`); got != strings.Join(want, ", ") {
		t.Errorf("left are %s", got)
	}
	if at := value[string](t, pool, `SELECT position FROM weir._relay_position('kept: interrupted')`); at != "7.10.1" {
		t.Errorf("what was interrupted is at %s", at)
	}
}
