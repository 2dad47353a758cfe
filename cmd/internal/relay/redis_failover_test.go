package relay_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// TestAReplicaOfRedisThatLaggedGetsWhatTheMasterHad: the master is killed while messages are sent to it, its replica, which has not heard of some hundreds of them, is promoted, and the relay that
// lives through it sends them again. None is doubled or missing, and the log says that Redis was set back.
func TestAReplicaOfRedisThatLaggedGetsWhatTheMasterHad(t *testing.T) {
	t.Parallel()
	for _, form := range []redisrelay.Form{redisrelay.Stream, redisrelay.List, redisrelay.BullMQ} {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			redisFailsOver(t, form)
		})
	}
}

func redisFailsOver(t *testing.T, form redisrelay.Form) {
	pool := pgtest.Pool(t, pgtest.Database(t))
	master, replica := startRedis(t), startRedis(t)
	link := newWire(t, master.address())
	_, port, err := net.SplitHostPort(link.address())
	if err != nil {
		t.Fatal(err)
	}
	of, to := master.client(), replica.client()
	if err := to.Do(t.Context(), "REPLICAOF", "127.0.0.1", port).Err(); err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[redisServer]
	current.Store(master)
	c := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, current.Load().address())
	}})
	t.Cleanup(func() { c.Close() })
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "orders", Form: form})
	if err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	var gaps atomic.Int32
	run(t, weirrelay.Config{Name: "orders", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), MaxRecords: 50, Logger: log.Logger(), Routes: []weirrelay.Route{{Channels: "orders.made", Key: "{payload.n}"}},
		Observe: func(p weirrelay.Progress) {
			if p.Gap != nil {
				gaps.Add(1)
			}
		}})
	var want []string
	publish := func() {
		t.Helper()
		want = append(want, fmt.Sprintf(`{"n":%d}`, len(want)))
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders.made', $1)`, want[len(want)-1]); err != nil {
			t.Fatal(err)
		}
	}
	has := func(c *redis.Client, n int) bool { return len(inRedis(t, c, form)) >= n }
	for range 20 {
		publish()
	}
	pgtest.Until(t, "the replica has what came first", func() bool { return has(to, 20) })
	link.stand(true)
	for !has(of, 300) {
		publish()
	}
	for range 20 { // which are on their way
		publish()
	}
	master.kill()
	link.die()
	link.stand(false)
	if err := to.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if has(to, 300) {
		t.Fatal("the replica has not lagged")
	}
	current.Store(replica)
	publish()
	pgtest.Until(t, "all have arrived", func() bool { return has(to, len(want)) })
	if got := inRedis(t, to, form); !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d, in their order: %.200s", len(got), len(want), strings.Join(got, " "))
	}
	if n := gaps.Load(); n != 0 || log.Count("the target was set back") == 0 {
		t.Errorf("%d gaps, want none, and the log:\n%s", n, log.String())
	}
}
