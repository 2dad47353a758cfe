//go:build unix

package relay_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/kafkarelay"
)

// standing is a relay of messages and one of jobs, of which a side stands still.
type standing struct {
	pool           *pgxpool.Pool // to publish
	from           *pgxpool.Pool // of the relays
	stop, resume   func()
	messages, jobs func() []string // those that have arrived
	log            pgtest.Log
	file           string                        // its relays are called messages and jobs
	relays         []func(context.Context) error // if there is no file
	repeats        bool                          // it does not tell jobs that come again
}

func (s *standing) signal(t *testing.T, server *redisServer, what syscall.Signal) {
	t.Helper()
	if err := server.cmd.Process.Signal(what); err != nil {
		t.Fatal(err)
	}
}

// stopped makes what is at the end of the wire stand still.
func (s *standing) stopped(w *wire) {
	s.stop, s.resume = func() { w.stand(true) }, func() { w.stand(false) }
}

// outOfReach makes what is sent get lost, and with it all connections that are tried meanwhile, of which nobody hears anything any more.
func (s *standing) outOfReach(w *wire) {
	s.stop, s.resume = func() { w.stand(true) }, func() { w.die(); w.stand(false) }
}

// onWire is the URL of a database by way of a wire.
func onWire(t *testing.T, at string) (*wire, string) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, u.Host)
	u.Host = w.address()
	return w, u.String()
}

const routes = `
[relay.messages]
since = "oldest"
route = [{ channels = "orders" }]
[relay.jobs]
route = [{ queue = "jobs" }]
`

func (s *standing) toRedis(t *testing.T, server *redisServer, address string) {
	t.Helper()
	c := server.client()
	s.file = routes + strings.ReplaceAll("[relay.messages.redis]\nurl = \"redis://AT\"\nform = \"list\"\n[relay.jobs.redis]\nurl = \"redis://AT\"\nform = \"list\"\n", "AT", address)
	s.messages = func() []string { return list(t, c, "orders") }
	s.jobs = func() []string { return list(t, c, "jobs") }
}

func (s *standing) toNATS(t *testing.T) *wire {
	t.Helper()
	at := jetStream(t).ClientURL()
	_, js := dial(t, at)
	for _, name := range []string{"orders", "jobs"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, AllowAtomicPublish: name == "orders"}); err != nil {
			t.Fatal(err)
		}
	}
	w := newWire(t, strings.TrimPrefix(at, "nats://"))
	s.file = routes + strings.ReplaceAll("[relay.messages.nats]\nurl = \"nats://AT\"\nstream = \"orders\"\n[relay.jobs.nats]\nurl = \"nats://AT\"\nstream = \"jobs\"\n", "AT", w.address())
	s.messages = func() []string { return stored(t, js, "orders", 0) }
	s.jobs = func() []string { return stored(t, js, "jobs", 0) }
	return w
}

func (s *standing) toKafka(t *testing.T) *wire {
	t.Helper()
	kafka := sharedKafka(t)
	w := newWire(t, kafka.address())
	by := kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) { // Kafka says itself where it is
		return new(net.Dialer).DialContext(ctx, network, w.address())
	})
	orders, jobs := unique("orders"), unique("jobs")
	kafka.createTopic(t, orders, 1)
	kafka.createTopic(t, jobs, 1)
	pass, err := kafkarelay.New(kafkarelay.Config{Name: jobs, Options: []kgo.Opt{kgo.SeedBrokers(kafka.address()), by}, Jobs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pass.Close)
	s.relays = []func(context.Context) error{
		func(ctx context.Context) error {
			return weirrelay.Run(ctx, weirrelay.Config{Name: orders, Pool: s.from, Target: kafka.target(t, orders, by), Since: time.Now().Add(-time.Hour), Logger: s.log.Logger(), Routes: []weirrelay.Route{{Channels: "orders", Subject: orders}}})
		},
		func(ctx context.Context) error {
			return weirrelay.RunJobs(ctx, weirrelay.JobsConfig{Name: jobs, Pool: s.from, Target: pass, Logger: s.log.Logger(), Routes: []weirrelay.Route{{Queue: "jobs", Subject: jobs}}})
		},
	}
	all := map[string][]string{}
	reader := func(topic string) func() []string {
		c := kafka.consumer(t, topic)
		return func() []string {
			all[topic] = append(all[topic], values(poll(t, c))...)
			return all[topic]
		}
	}
	s.messages, s.jobs, s.repeats = reader(orders), reader(jobs), true
	return w
}

var still = flag.Bool("still", false, "TestWhatStandsStillIsSaidAndGoesOn has every side stand still, and be out of reach, which takes two minutes; without it, two of them")

// TestWhatStandsStillIsSaidAndGoesOn: a broker, or PostgreSQL, accepts connections and what is sent, and does not answer for longer than any time-out; or what is sent on a connection is lost, and nobody hears
// of it. The log says so; and afterwards nothing is lost, and nothing doubled.
func TestWhatStandsStillIsSaidAndGoesOn(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(t *testing.T, s *standing){
		"Redis is stopped": func(t *testing.T, s *standing) {
			server := startRedis(t)
			s.toRedis(t, server, server.address())
			s.stop, s.resume = func() { s.signal(t, server, syscall.SIGSTOP) }, func() { s.signal(t, server, syscall.SIGCONT) }
		},
		"Redis is out of reach": func(t *testing.T, s *standing) {
			server := startRedis(t)
			w := newWire(t, server.address())
			s.toRedis(t, server, w.address())
			s.outOfReach(w)
		},
		"NATS is stopped": func(t *testing.T, s *standing) {
			w := s.toNATS(t)
			s.stopped(w)
		},
		"NATS is out of reach": func(t *testing.T, s *standing) {
			w := s.toNATS(t)
			s.outOfReach(w)
		},
		"Kafka is stopped": func(t *testing.T, s *standing) {
			w := s.toKafka(t)
			s.stopped(w)
		},
		"PostgreSQL is stopped": func(t *testing.T, s *standing) {
			server := startRedis(t)
			s.toRedis(t, server, server.address())
			w, at := onWire(t, s.pool.Config().ConnString())
			s.from = pgtest.Pool(t, at)
			s.stopped(w)
		},
		"another database is out of reach": func(t *testing.T, s *standing) {
			at := pgtest.Database(t)
			to := pgtest.Pool(t, at)
			w, by := onWire(t, at)
			s.file = routes + fmt.Sprintf("[relay.messages.database]\nurl = %q\n[relay.jobs.database]\nurl = %[1]q\n", by)
			s.messages = func() []string {
				return texts(t, to, `SELECT convert_from(payload, 'UTF8') FROM weir.message WHERE channel = 'orders' ORDER BY id`)
			}
			s.jobs = func() []string { return texts(t, to, `SELECT args::text FROM weir.job WHERE kind = 'k'`) }
			s.outOfReach(w)
		},
		"PostgreSQL is out of reach": func(t *testing.T, s *standing) {
			server := startRedis(t)
			s.toRedis(t, server, server.address())
			w, at := onWire(t, s.pool.Config().ConnString())
			s.from = pgtest.Pool(t, at+"&connect_timeout=10")
			s.outOfReach(w)
		},
	} {
		if what != "Redis is stopped" && what != "NATS is stopped" && !*still {
			continue
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := &standing{pool: pgtest.Pool(t, pgtest.Database(t))}
			s.from = s.pool
			prepare(t, s)
			s.goesOn(t)
		})
	}
}

func (s *standing) goesOn(t *testing.T) {
	var want []string
	add := func(n int) {
		t.Helper()
		for range n {
			want = append(want, fmt.Sprintf(`{"n": %d}`, len(want)))
		}
		if _, err := s.pool.Exec(t.Context(), `SELECT weir.publish('orders', n), weir.enqueue('jobs', 'k', n::jsonb) FROM unnest($1::text[]) n`, want[len(want)-n:]); err != nil {
			t.Fatal(err)
		}
	}
	arrive := func() {
		t.Helper()
		var messages, jobs []string
		pgtest.Until(t, fmt.Sprintf("%d have arrived", len(want)), func() bool {
			messages, jobs = s.messages(), slices.Clone(s.jobs())
			return len(messages) >= len(want) && len(jobs) >= len(want)
		})
		slices.SortFunc(jobs, func(a, b string) int { return number(a) - number(b) })
		if s.repeats {
			jobs = slices.Compact(jobs)
		}
		if !slices.Equal(messages, want) || !slices.Equal(jobs, want) {
			t.Fatalf("messages %q, jobs %q; want %d of each, once", messages, jobs, len(want))
		}
	}
	if s.file != "" {
		runFileTo(t, s.from, s.file, s.log.Logger())
	}
	for _, relay := range s.relays {
		relaying(t, relay)
	}
	add(20)
	arrive()
	s.stop()
	defer s.resume() // what has failed is to end
	add(20)
	pgtest.Until(t, "the log says it", func() bool { return s.log.Count("fail, retrying") > 0 })
	s.resume()
	add(20)
	arrive()
	pgtest.Until(t, "the log says that it is over", func() bool { return s.log.Count("succeed again") >= s.log.Count("fail, retrying") })
	arrive()
}

func number(text string) (n int) {
	_, _ = fmt.Sscanf(text, `{"n": %d}`, &n) // 0 is not what is wanted
	return n
}
