package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/internal/pgtest"
)

// runFile runs the relays of a file until the test ends.
func runFile(t *testing.T, pool *pgxpool.Pool, text string) (path string) {
	t.Helper()
	return runFileTo(t, pool, text, slog.Default())
}

// runFileTo does the same, with a log.
func runFileTo(t *testing.T, pool *pgxpool.Pool, text string, log *slog.Logger) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	relays, err := relay.Open(t.Context(), relay.Config{Path: path, Log: log, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relays.Close)
	relaying(t, func(ctx context.Context) error { return relays.Run(ctx, pool) })
	return path
}

// replayed runs a replay.
func replayed(t *testing.T, pool *pgxpool.Pool, c relay.ReplayConfig) (relay.Replayed, error) {
	t.Helper()
	r, err := relay.OpenReplay(t.Context(), c)
	if err != nil {
		return relay.Replayed{}, err
	}
	defer r.Close()
	return r.Run(t.Context(), pool)
}

// TestAReplayPassesOnWhatWasPassedOn: from a time and from a position, while the relay runs, also to targets that drop repeats; and one that is called again goes on where it was.
func TestAReplayPassesOnWhatWasPassedOn(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(t *testing.T) (settings, subject string, arrived func() int){
		"NATS": func(t *testing.T) (string, string, func() int) {
			server := jetStream(t)
			_, js := dial(t, server.ClientURL())
			stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, AllowAtomicPublish: true})
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("[relay.orders.nats]\nurl = %q\nstream = \"ORDERS\"", server.ClientURL()), "", func() int {
				info, err := stream.Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return int(info.State.Msgs)
			}
		},
		"a stream of Redis": func(t *testing.T) (string, string, func() int) {
			server := startRedis(t)
			c := server.client()
			return fmt.Sprintf("[relay.orders.redis]\nurl = \"redis://%s\"", server.address()), "again.{channel}", func() int {
				return int(c.XLen(t.Context(), "orders").Val() + c.XLen(t.Context(), "again.orders").Val() + c.XLen(t.Context(), "third.orders").Val())
			}
		},
		"a queue of BullMQ": func(t *testing.T) (string, string, func() int) {
			server := startRedis(t)
			c := server.client()
			return fmt.Sprintf("[relay.orders.redis]\nurl = \"redis://%s\"\nform = \"bullmq\"", server.address()), "", func() int { return int(c.LLen(t.Context(), "bull:orders:wait").Val()) }
		},
		"another database": func(t *testing.T) (string, string, func() int) {
			url := pgtest.Database(t)
			to := pgtest.Pool(t, url)
			return fmt.Sprintf("[relay.orders.database]\nurl = %q", url), "", func() (n int) {
				if err := to.QueryRow(t.Context(), `SELECT count(*) FROM weir.message WHERE channel = 'orders'`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
		},
		"Kafka": func(t *testing.T) (string, string, func() int) {
			kafka, topic := sharedKafka(t), unique("orders")
			kafka.createTopic(t, topic, 1)
			consumer, n := kafka.consumer(t, topic), 0
			return fmt.Sprintf("[relay.orders.kafka]\nbrokers = %q", kafka.address()), topic, func() int {
				n += len(poll(t, consumer))
				return n
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			settings, subject, arrived := prepare(t)
			name := unique("orders") // of all relays into one Kafka
			text := strings.ReplaceAll("[relay.orders]\nsince = \"oldest\"\nroute = [{ channels = \"orders\", subject = \"SUBJECT\" }]\n"+settings, "[relay.orders", "[relay."+name)
			first := "{channel}"
			if what == "Kafka" {
				first, subject = subject, ""
			}
			path := runFile(t, pool, strings.Replace(text, "SUBJECT", first, 1))
			publish := func(n int) {
				t.Helper()
				if _, err := pool.Exec(t.Context(), `SELECT weir.publish('orders', i::text), weir.publish('others', 'x') FROM generate_series(1, $1) i`, n); err != nil {
					t.Fatal(err)
				}
			}
			until := func(n int) {
				t.Helper()
				pgtest.Until(t, fmt.Sprintf("%d have arrived", n), func() bool { return arrived() >= n })
				if got := arrived(); got != n {
					t.Fatalf("%d have arrived, want %d", got, n)
				}
			}
			replay := func(as, since string, sent int, again bool) relay.Replayed {
				t.Helper()
				var made relay.Replayed
				done, err := replayed(t, pool, relay.ReplayConfig{Path: path, Relay: name, As: as, Since: since, Subject: subject, Log: slog.Default(), Made: func(r relay.Replayed) { made = r }})
				if err != nil || made != done || done.Sent != sent || done.Dead != 0 || done.Gaps != 0 || done.Again != again {
					t.Fatalf("%+v, %v; want %d sent, again %t", done, err, sent, again)
				}
				return done
			}
			publish(10)
			until(10)
			done := replay(name+"-1", "1h", 10, false)
			until(20)
			publish(5)
			until(25)
			replay(name+"-1", "1h", 5, true)
			until(30)
			subject = strings.Replace(subject, "again", "third", 1) // a stream has no message twice
			replay(name+"-2", string(done.To), 5, false)
			until(35)
			listed := 0
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.relays()`).Scan(&listed); err != nil || listed != 1 {
				t.Errorf("%d relays are listed, %v; want that which runs", listed, err)
			}
		})
	}
}

// TestAReplayThatCannotBeIsRefused: with what to do instead.
func TestAReplayThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	path := filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(path, []byte(relay.Example), 0o600); err != nil {
		t.Fatal(err)
	}
	good := relay.ReplayConfig{Path: path, Relay: "orders", As: "again", Since: "1h", Log: slog.Default()}
	for want, change := range map[string]func(c *relay.ReplayConfig){
		`has no relay "x": it has`: func(c *relay.ReplayConfig) { c.Relay = "x" },
		`begin`:                    func(c *relay.ReplayConfig) { c.Since = "now" },
		`"yesterday": write "oldest", how long ago`: func(c *relay.ReplayConfig) { c.Since = "yesterday" },
		`is to come`: func(c *relay.ReplayConfig) { c.Since = "2999-01-01T00:00:00Z" },
		`is of a log that this database does not know`: func(c *relay.ReplayConfig) { c.Since = "1.999999999.1" },
		`the name "orders" is that of a relay`:         func(c *relay.ReplayConfig) { c.As = "orders" },
		`must have 1 to 100 letters`:                   func(c *relay.ReplayConfig) { c.As = "a b" },
		`weir jobs retry runs them again`:              func(c *relay.ReplayConfig) { c.Relay = "mail" },
		`makes jobs of another broker's messages`:      func(c *relay.ReplayConfig) { c.Relay = "clicks" },
		`the ids of a stream of Redis only grow`:       func(c *relay.ReplayConfig) { c.Relay = "cache" },
		`{queue} is not one of {channel}, {position`:   func(c *relay.ReplayConfig) { c.Subject = "{queue}" },
	} {
		c := good
		change(&c)
		if _, err := replayed(t, pool, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
