package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// redisServer is a real Redis that writes every command to disk before it answers.
type redisServer struct {
	t         *testing.T
	dir, port string
	cmd       *exec.Cmd
}

// startRedis starts Debian's redis-server. If it is not installed, the test is skipped, or fails if WEIR_TEST_REQUIRE names it.
func startRedis(t *testing.T) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "redis") {
			t.Fatal("redis-server is required by WEIR_TEST_REQUIRE but not installed")
		}
		t.Skip("redis-server is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	s := &redisServer{t: t, dir: t.TempDir(), port: port}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *redisServer) start() {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", "--port", s.port, "--bind", "127.0.0.1", "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning")
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

// TestRedisGetsEveryMessageOnceInOrder: in a stream and in a list, though Redis is killed again and again, and relays come and go.
func TestRedisGetsEveryMessageOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, form := range []redisrelay.Form{redisrelay.Stream, redisrelay.List} {
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
	stop := run(t, config)
	var want []string
	for round := range 20 {
		for range 1 + rand.N(100) {
			want = append(want, fmt.Sprintf(`{"n": %d}`, len(want)))
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
		got = got[:0]
		if form == redisrelay.List {
			got = c.LRange(t.Context(), "orders.made", 0, -1).Val()
			slices.Reverse(got) // the newest is at the left
		} else {
			for i, e := range c.XRange(t.Context(), "orders.made", "-", "+").Val() {
				got = append(got, e.Values["payload"].(string))
				if e.Values["key"] != strconv.Itoa(i) || !strings.HasSuffix(e.Values["position"].(string), "."+strings.ReplaceAll(e.ID, "-", ".")) {
					t.Fatalf("entry %d: %+v", i, e)
				}
			}
		}
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %d messages, want %d, in their order", len(got), len(want))
	}
}
