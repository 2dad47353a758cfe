package relay_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weir-pg/weir/internal/pgtest"
)

// process is this test's binary as another program.
func process(t *testing.T, as string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asVariable+"="+as)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	cmd.Process.Kill() //nolint:errcheck // it may have ended
	cmd.Wait()         //nolint:errcheck // it was killed
}

var kills = flag.Int("kills", 8, "how often each test NothingIsLostOrDoubledThoughEachSideIsKilled kills something, which takes two seconds each")

// dying is a broker that the test kills.
type dying struct {
	target  string // in the relay's file
	kill    func()
	start   func()
	arrived func() int // about how many messages it has; 0 while it is away
	stored  func(n int) []string
}

// TestNothingIsLostOrDoubledThoughEachSideIsKilled: relays, the broker and PostgreSQL are killed as by kill -9.
func TestNothingIsLostOrDoubledThoughEachSideIsKilled(t *testing.T) {
	pgtest.Alone(t, "it kills processes all the time")
	t.Run("NATS", func(t *testing.T) { killEachSide(t, dyingNATS(t)) })
	t.Run("Kafka", func(t *testing.T) { killEachSide(t, dyingKafka(t)) })
	t.Run("Redis", func(t *testing.T) { killEachSide(t, dyingRedis(t)) })
}

func dyingNATS(t *testing.T) *dying {
	t.Helper()
	port, dir := freePort(t), t.TempDir()
	var server *exec.Cmd
	b := &dying{target: fmt.Sprintf("[relay.orders.nats]\nurl = \"nats://127.0.0.1:%s\"\nstream = \"ORDERS\"\n", port)}
	b.kill = func() { kill(server) }
	b.start = func() { server = process(t, "nats", dir, port) }
	b.start()
	t.Cleanup(b.kill)
	_, js := dial(t, "nats://127.0.0.1:"+port)
	pgtest.Until(t, "the stream is there", func() bool {
		_, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, AllowAtomicPublish: true})
		return err == nil
	})
	b.arrived = func() int {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stream, err := js.Stream(ctx, "ORDERS")
		if err != nil {
			return 0 // the server was killed
		}
		return int(stream.CachedInfo().State.Msgs)
	}
	b.stored = func(n int) []string { return stored(t, js, "ORDERS", n) }
	return b
}

func dyingRedis(t *testing.T) *dying {
	t.Helper()
	server := startRedis(t)
	c := server.client()
	return &dying{
		target: fmt.Sprintf("[relay.orders.redis]\nurl = \"redis://%s\"\nform = \"bullmq\"\n", server.address()), kill: server.kill, start: server.start,
		arrived: func() int { return int(c.LLen(t.Context(), "bull:orders:wait").Val()) },
		stored: func(n int) (all []string) {
			pgtest.Until(t, fmt.Sprintf("%d jobs are in the queue", n), func() bool { return c.LLen(t.Context(), "bull:orders:wait").Val() >= int64(n) })
			for _, id := range c.LRange(t.Context(), "bull:orders:wait", 0, -1).Val() {
				all = append(all, c.HGet(t.Context(), "bull:orders:"+id, "data").Val())
			}
			slices.Reverse(all) // the newest is at the left
			return all
		},
	}
}

func dyingKafka(t *testing.T) *dying {
	t.Helper()
	kafka := ownKafka(t)
	kafka.createTopic(t, "orders", 1)
	consumer := kafka.consumer(t, "orders")
	var read []string
	b := &dying{target: fmt.Sprintf("[relay.orders.kafka]\nbrokers = %q\n", kafka.address()), kill: kafka.kill, start: func() { kafka.start(t) }}
	b.arrived = func() int {
		read = append(read, values(poll(t, consumer))...)
		return len(read)
	}
	b.stored = func(n int) []string {
		pgtest.Until(t, fmt.Sprintf("%d messages are in the topic", n), func() bool { return b.arrived() >= n })
		again := values(kafka.read(t, n, "orders")) // whatever a consumer sees that reads only now
		if !slices.Equal(again, read) {
			t.Errorf("a consumer that was there all the time has read %d messages, and one that comes later others: %d", len(read), len(again))
		}
		return again
	}
	return b
}

func killEachSide(t *testing.T, broker *dying) {
	pg := pgtest.Installed(t, nil)
	url := pg.URL("postgres")
	file := filepath.Join(t.TempDir(), "relay.toml")
	text := "[relay.orders]\nsince = \"oldest\"\nroute = [{ channels = \"orders\" }]\n" + broker.target
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	relays := []*exec.Cmd{process(t, "relay", url, file), process(t, "relay", url, file)}
	t.Cleanup(func() { kill(relays[0]); kill(relays[1]) })

	// The publisher has a row for each message, in the same transaction: so it knows after a crash which are committed.
	pool := pgtest.Pool(t, url)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE made (n integer PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var made atomic.Int64
	published := make(chan struct{})
	go func() { // ends with ctx
		defer close(published)
		for n := 0; ctx.Err() == nil; {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `WITH one AS (INSERT INTO made VALUES ($1) ON CONFLICT DO NOTHING RETURNING n) SELECT weir.publish('orders', n::text) FROM one`, n)
				return err
			})
			cancel()
			if err == nil {
				n++
				made.Store(int64(n))
			}
		}
	}()
	passed := 0
	for n := range *kills {
		switch n % 4 {
		case 0, 2:
			i := n / 2 % 2
			kill(relays[i])
			relays[i] = process(t, "relay", url, file)
		case 1:
			broker.kill()
			broker.start()
		case 3:
			if err := pg.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := pg.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// Somebody publishes, and somebody passes on, between one kill and the next.
		pgtest.Until(t, "more has arrived", func() bool { return broker.arrived() > passed+20 })
		passed = broker.arrived()
	}
	stop()
	<-published
	want := make([]string, made.Load())
	for i := range want {
		want[i] = strconv.Itoa(i)
	}
	begun := time.Now()
	got := broker.stored(len(want))
	t.Logf("%d messages, the last %v after the last was published", len(want), time.Since(begun))
	if slices.Equal(got, want) {
		return
	}
	seen := map[string]int{}
	for _, m := range got {
		seen[m]++
	}
	lost, doubled := 0, 0
	for _, m := range want {
		switch n := seen[m]; {
		case n == 0:
			lost++
		case n > 1:
			doubled++
		}
	}
	t.Errorf("of %d messages, %d are lost and %d doubled; in order: %t", len(want), lost, doubled, slices.IsSortedFunc(got, func(a, b string) int { x, _ := strconv.Atoi(a); y, _ := strconv.Atoi(b); return x - y }))
}
