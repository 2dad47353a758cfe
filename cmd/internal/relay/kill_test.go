package relay_test

import (
	"context"
	"flag"
	"fmt"
	"net"
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

var kills = flag.Int("kills", 24, "how often TestNothingIsLostOrDoubledThoughEachSideIsKilled kills something, which takes two seconds each")

// TestNothingIsLostOrDoubledThoughEachSideIsKilled: relays, JetStream and PostgreSQL are killed as by kill -9.
func TestNothingIsLostOrDoubledThoughEachSideIsKilled(t *testing.T) {
	pgtest.Alone(t, "it kills processes all the time")
	pg := pgtest.Installed(t, nil)
	url := pg.URL("postgres")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "relay.toml")
	text := fmt.Sprintf("[relay.orders]\nsince = \"oldest\"\nroute = [{ channels = \"orders\" }]\n[relay.orders.nats]\nurl = \"nats://127.0.0.1:%s\"\nstream = \"ORDERS\"\n", port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := process(t, "nats", dir, port)
	t.Cleanup(func() { kill(broker) })
	_, js := dial(t, "nats://127.0.0.1:"+port)
	pgtest.Until(t, "the stream is there", func() bool {
		_, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, AllowAtomicPublish: true})
		return err == nil
	})
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
	arrived := func() uint64 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stream, err := js.Stream(ctx, "ORDERS")
		if err != nil {
			return 0 // the server was killed
		}
		return stream.CachedInfo().State.Msgs
	}
	passed := uint64(0)
	for n := range *kills {
		switch n % 4 {
		case 0, 2:
			i := n / 2 % 2
			kill(relays[i])
			relays[i] = process(t, "relay", url, file)
		case 1:
			kill(broker)
			broker = process(t, "nats", dir, port)
		case 3:
			if err := pg.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := pg.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		// Somebody publishes, and somebody passes on, between one kill and the next.
		pgtest.Until(t, "more has arrived", func() bool { return arrived() > passed+20 })
		passed = arrived()
	}
	stop()
	<-published
	want := make([]string, made.Load())
	for i := range want {
		want[i] = strconv.Itoa(i)
	}
	begun := time.Now()
	got := stored(t, js, "ORDERS", len(want))
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
