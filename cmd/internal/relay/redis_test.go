package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// redisServer is a real Redis that writes every command to disk before it answers.
type redisServer struct {
	t         testing.TB
	dir, port string
	options   []string
	cmd       *exec.Cmd
}

// startRedis starts Debian's redis-server, with further options. If it is not installed, the test is skipped, or fails if WEIR_TEST_REQUIRE names it.
func startRedis(t testing.TB, options ...string) *redisServer {
	t.Helper()
	installed(t, "redis-server", "redis")
	s := &redisServer{t: t, dir: t.TempDir(), port: freePort(t), options: options}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// installed returns the path of a program. If it is not installed, the test is skipped, or fails if WEIR_TEST_REQUIRE names the tool.
func installed(t testing.TB, program, tool string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), tool) {
		t.Fatalf("%s is required by WEIR_TEST_REQUIRE but not installed", program)
	}
	t.Skipf("%s is not installed", program)
	return ""
}

func (s *redisServer) start() {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", append([]string{"--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"}, s.options...)...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: s.address()})
	defer c.Close()
	pgtest.Until(s.t, "Redis answers", func() bool { return c.Ping(context.Background()).Err() == nil })
}

// kill ends the server as kill -9 does.
func (s *redisServer) kill() {
	s.cmd.Process.Kill() //nolint:errcheck // it may have ended
	s.cmd.Wait()         //nolint:errcheck // it was killed
}

func (s *redisServer) address() string { return "127.0.0.1:" + s.port }

func (s *redisServer) client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.address()})
	s.t.Cleanup(func() { c.Close() })
	return c
}

// TestRedisGetsEveryMessageOnceInOrder: in a stream, in a list, and in queues of Sidekiq and BullMQ, though Redis is killed again and again, and relays come and go.
func TestRedisGetsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, form := range []redisrelay.Form{redisrelay.Stream, redisrelay.List, redisrelay.Sidekiq, redisrelay.BullMQ} {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			redisGetsEveryMessageOnce(t, form)
		})
	}
}

func redisGetsEveryMessageOnce(t *testing.T, form redisrelay.Form) {
	pool := pgtest.Pool(t, pgtest.Database(t))
	server := startRedis(t)
	c := server.client()
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "orders", Form: form})
	if err != nil {
		t.Fatal(err)
	}
	config := weirrelay.Config{Name: "orders", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), MaxRecords: 50,
		Routes: []weirrelay.Route{{Channels: "orders.>", Subject: "{channel}", Key: "{payload.n}"}}}
	if form == redisrelay.Sidekiq {
		config.Routes[0].Headers = map[string]string{"class": "Order"}
	}
	stop := run(t, config)
	var want []string
	for round := range 20 {
		for range 1 + rand.N(100) {
			want = append(want, fmt.Sprintf(`{"n":%d}`, len(want)))
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders.made', $1)`, want[len(want)-1]); err != nil {
				t.Fatal(err)
			}
		}
		if round%3 == 0 {
			server.kill()
			server.start()
		}
		if round%5 == 4 {
			stop()
			stop = run(t, config)
		}
	}
	var got []string
	pgtest.Until(t, "all messages are in Redis", func() bool {
		got = inRedis(t, c, form)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d, in their order", len(got), len(want))
	}
}

// inRedis returns the payloads that Redis has of the channel orders.made, in their order.
func inRedis(t *testing.T, c redis.UniversalClient, form redisrelay.Form) (got []string) {
	t.Helper()
	list := func(key string) []string {
		all := c.LRange(t.Context(), key, 0, -1).Val()
		slices.Reverse(all) // the newest is at the left
		return all
	}
	switch form {
	case redisrelay.List:
		return list("orders.made")
	case redisrelay.Sidekiq:
		for _, text := range list("queue:orders.made") {
			var job struct {
				Class string
				Args  []json.RawMessage
			}
			if err := json.Unmarshal([]byte(text), &job); err != nil || job.Class != "Order" || len(job.Args) != 1 {
				t.Fatalf("job %s: %v", text, err)
			}
			got = append(got, string(job.Args[0]))
		}
	case redisrelay.BullMQ:
		for _, id := range list("bull:orders.made:wait") {
			got = append(got, c.HGet(t.Context(), "bull:orders.made:"+id, "data").Val())
		}
	default:
		for i, e := range c.XRange(t.Context(), "orders.made", "-", "+").Val() {
			got = append(got, e.Values["payload"].(string))
			if e.Values["key"] != strconv.Itoa(i) || !strings.HasSuffix(e.Values["position"].(string), "."+strings.ReplaceAll(e.ID, "-", ".")) {
				t.Fatalf("entry %d: %+v", i, e)
			}
		}
	}
	return got
}

// TestInRedisClusterARelaysKeysAreInOneSlot: by the hash tag of its prefix; without one, the error says so.
func TestInRedisClusterARelaysKeysAreInOneSlot(t *testing.T) {
	t.Parallel()
	server := startRedis(t, "--cluster-enabled", "yes")
	plain := server.client()
	if err := plain.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.address()}})
	t.Cleanup(func() { c.Close() })
	pgtest.Until(t, "the cluster works", func() bool { return c.Set(t.Context(), "x", 1, 0).Err() == nil })
	for _, form := range []redisrelay.Form{redisrelay.Stream, redisrelay.List, redisrelay.BullMQ} {
		for _, prefix := range []string{"", "{shop}"} {
			target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "r", Form: form, Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := target.Begin(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			subject := string(form) // a stream, or a list, or a queue
			err = target.Send(t.Context(), []weirrelay.Record{{ID: "r/1.1.1", Position: "1.1.1", Channel: "c", Payload: []byte("1"), Subject: subject}, {ID: "r/1.1.2", Position: "1.1.2", Channel: "c", Payload: []byte("2"), Subject: subject}})
			if prefix == "" {
				if err == nil || !strings.Contains(err.Error(), "all keys of a relay must be in one slot: set its prefix to one with a hash tag") {
					t.Errorf("%s without a prefix: %v", form, err)
				}
				continue
			}
			at, _ := c.Get(t.Context(), "weir:relay:{shop}:r").Result() //nolint:errcheck // "" is not what is wanted
			if err != nil || at != "1.1.2" {
				t.Errorf("%s: at %q, %v", form, at, err)
			}
			if err := c.Del(t.Context(), "weir:relay:{shop}:r").Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n, m, k := c.XLen(t.Context(), "{shop}:stream").Val(), c.LLen(t.Context(), "{shop}:list").Val(), c.LLen(t.Context(), "{shop}:bullmq:wait").Val(); n != 2 || m != 2 || k != 2 {
		t.Errorf("%d entries, %d elements, %d jobs; want 2 of each", n, m, k)
	}
}

// TestRedisThatWasSetBackGetsAgainWhatItHasLost: as by a restore, or a failover to a replica that lagged; and one that was emptied is a gap.
func TestRedisThatWasSetBackGetsAgainWhatItHasLost(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t, pgtest.Database(t)), startRedis(t).client()
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "r", Form: redisrelay.List})
	if err != nil {
		t.Fatal(err)
	}
	var gaps atomic.Int32
	config := weirrelay.Config{Name: "r", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "orders.made"}}, Observe: func(p weirrelay.Progress) {
		if p.Gap != nil {
			gaps.Add(1)
		}
	}}
	stop := run(t, config)
	n := 0
	publish := func(more int) {
		t.Helper()
		for range more {
			if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders.made', $1)`, strconv.Itoa(n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	all := func() bool {
		got := inRedis(t, c, redisrelay.List)
		for i, payload := range got {
			if payload != strconv.Itoa(i) {
				t.Fatalf("element %d is %s", i, payload)
			}
		}
		return len(got) == n
	}
	publish(5)
	pgtest.Until(t, "five have arrived", all)
	backup := c.Get(t.Context(), "weir:relay:r").Val()
	publish(5)
	pgtest.Until(t, "ten have arrived", all)
	stop() // and so has recorded where it is
	if err := errors.Join(c.Set(t.Context(), "weir:relay:r", backup, 0).Err(), c.LTrim(t.Context(), "orders.made", -5, -1).Err()); err != nil {
		t.Fatal(err)
	}
	run(t, config)
	publish(1)
	pgtest.Until(t, "all are there again", all)
	if k := gaps.Load(); k != 0 {
		t.Errorf("%d gaps, want none", k)
	}
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	publish(1)
	pgtest.Until(t, "it goes on behind a gap", func() bool { return gaps.Load() == 1 && c.LIndex(t.Context(), "orders.made", 0).Val() == "11" })
}

// TestAStreamOfRedisHasNoMessageTwice: not even if the key with the position is lost, as by eviction, and a killed process had not recorded what it had sent.
func TestAStreamOfRedisHasNoMessageTwice(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "r"})
	if err != nil {
		t.Fatal(err)
	}
	send := func(from, to int) {
		t.Helper()
		if _, err := target.Begin(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		var records []weirrelay.Record
		for n := from; n <= to; n++ {
			at := weir.Position(fmt.Sprintf("7.1.%d", n))
			records = append(records, weirrelay.Record{ID: "r/" + string(at), Position: at, Channel: "orders.made", Subject: "orders.made", Key: strconv.Itoa(n - 1), Payload: []byte(strconv.Itoa(n))})
		}
		if err := target.Send(t.Context(), records); err != nil {
			t.Fatal(err)
		}
	}
	send(1, 5)
	if err := c.Del(t.Context(), "weir:relay:r").Err(); err != nil {
		t.Fatal(err)
	}
	send(3, 8)
	if got := inRedis(t, c, redisrelay.Stream); strings.Join(got, " ") != "1 2 3 4 5 6 7 8" {
		t.Errorf("got %v", got)
	}
}
