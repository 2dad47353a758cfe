package relay_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// TestTenThousandChannelsCostARelayLittleMoreThanOne: as many messages take it not much longer, by a pattern and by a route for each channel; and it keeps nothing of a channel.
func TestTenThousandChannelsCostARelayLittleMoreThanOne(t *testing.T) {
	pgtest.Alone(t, "it compares how long something takes, and what the process keeps")
	const messages, channels, most = 20_000, 10_000, 4
	pattern, each := []weirrelay.Route{{Channels: "orders.>"}}, make([]weirrelay.Route, channels)
	for i := range each {
		each[i] = weirrelay.Route{Channels: fmt.Sprint("orders.", i)}
	}
	target := intoRedis(t)
	pass := func(name string, channels int, routes []weirrelay.Route) time.Duration {
		t.Helper()
		pool := pgtest.Pool(t, pgtest.Database(t))
		for from := 0; from < messages; from += 5000 {
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish_many(array_agg('orders.' || i % $1), array_agg(i::text)) FROM generate_series($2::integer, $2 + 4999) i`, channels, from); err != nil {
				t.Fatal(err)
			}
		}
		to, err := target(name)
		if err != nil {
			t.Fatal(err)
		}
		var sent atomic.Int64
		begun := time.Now()
		stop := run(t, weirrelay.Config{Name: name, Pool: pool, Target: to, Routes: routes, Since: time.Now().Add(-time.Hour), Observe: func(p weirrelay.Progress) { sent.Add(int64(p.Sent)) }})
		pgtest.Until(t, "all have arrived", func() bool { return sent.Load() >= messages })
		took := time.Since(begun)
		stop()
		return took
	}
	pass("first", 1, pattern)
	one := pass("one", 1, pattern)
	before := heap()
	many, routed := pass("many", channels, pattern), pass("routed", channels, each)
	kept := heap() - before
	t.Logf("%v; %d channels by a pattern %v, by a route each %v; %d KB are kept", one, channels, many, routed, kept>>10)
	if limit := most*one + time.Second; many > limit || routed > limit {
		t.Errorf("%v with one channel, and %v and %v with %d; want up to %v", one, many, routed, channels, limit)
	}
	if kept > 16<<20 {
		t.Errorf("%d MB are kept", kept>>20)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// intoRedis returns what makes targets, each with streams of its own.
func intoRedis(t *testing.T) func(name string) (weirrelay.Target, error) {
	t.Helper()
	c := startRedis(t).client()
	return func(name string) (weirrelay.Target, error) {
		return redisrelay.New(redisrelay.Config{Client: c, Name: name, Prefix: name})
	}
}
