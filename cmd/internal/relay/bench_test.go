package relay_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// postgres starts a PostgreSQL of its own that waits for the disk, as people's do.
func postgres(b *testing.B) (url string) {
	b.Helper()
	return pgtest.Installed(b, map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}).URL("postgres")
}

// stream starts JetStream, on disk, with a stream.
func stream(b *testing.B) *nats.Conn {
	b.Helper()
	nc, js := dial(b, jetStream(b).ClientURL())
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, AllowAtomicPublish: true}); err != nil {
		b.Fatal(err)
	}
	return nc
}

func target(b *testing.B, nc *nats.Conn) weirrelay.Target {
	b.Helper()
	t, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "bench", Stream: "S"})
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// BenchmarkJobsIntoJetStream moves a backlog of jobs: go test ./cmd/internal/relay -run '^$' -bench JobsInto -benchtime 300000x.
func BenchmarkJobsIntoJetStream(b *testing.B) {
	nc, pool := stream(b), pgtest.Pool(b, postgres(b))
	for left := b.N; left > 0; left -= 10_000 {
		if _, err := pool.Exec(b.Context(), `SELECT weir.enqueue_many(array_fill('q'::text, ARRAY[$1::integer]), array_fill('k'::text, ARRAY[$1]), ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(1, $1) i))`, min(left, 10_000)); err != nil {
			b.Fatal(err)
		}
	}
	ctx := b.Context()
	b.ResetTimer()
	relaying(b, func(ctx context.Context) error {
		return weirrelay.RunJobs(ctx, weirrelay.JobsConfig{Name: "bench", Pool: pool, Target: target(b, nc), Routes: []weirrelay.Route{{Queue: "q", Subject: "s.{kind}"}}})
	})
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	s, err := js.Stream(ctx, "S")
	if err != nil {
		b.Fatal(err)
	}
	for {
		info, err := s.Info(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if info.State.Msgs >= uint64(b.N) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkMessagesThrough publishes 10,000 messages a second for as many messages as it is told, in transactions of a hundred, and measures how long each takes from before its
// transaction to a subscriber of the target; alone, and while a hub delivers them to a subscriber of its own:
// go test ./cmd/internal/relay -run '^$' -bench MessagesThrough -benchtime 200000x.
func BenchmarkMessagesThrough(b *testing.B) {
	for _, c := range []struct {
		target  string
		through func(b *testing.B, url string)
	}{
		{"JetStream", throughJetStream},
		{"Kafka", throughKafka},
		{"Redis", throughRedis},
		{"AnotherDatabase", throughAnotherDatabase},
	} {
		b.Run(c.target+"/Alone", func(b *testing.B) { c.through(b, postgres(b)) })
		b.Run(c.target+"/BesideAHub", func(b *testing.B) {
			url := postgres(b)
			delivered := besideAHub(b, url)
			c.through(b, url)
			b.ReportMetric(float64(delivered())/float64(max(b.N, 1)), "delivered/message")
		})
	}
}

func throughJetStream(b *testing.B, url string) {
	nc := stream(b)
	messagesThrough(b, url, target(b, nc), func(arrived func(payload []byte)) {
		sub, err := nc.Subscribe("s.>", func(m *nats.Msg) { arrived(m.Data) })
		if err != nil {
			b.Fatal(err)
		}
		if err := sub.SetPendingLimits(-1, -1); err != nil {
			b.Fatal(err)
		}
	})
}

// throughKafka: the consumer reads what is committed.
func throughKafka(b *testing.B, url string) {
	kafka := ownKafka(b)
	kafka.createTopic(b, "s.c", 1)
	messagesThrough(b, url, kafka.target(b, "bench"), func(arrived func(payload []byte)) {
		consumer := kafka.consumer(b, "s.c")
		go func() { // ends with the consumer
			for b.Context().Err() == nil {
				consumer.PollFetches(b.Context()).EachRecord(func(r *kgo.Record) { arrived(r.Value) })
			}
		}()
	})
}

// throughRedis: a stream of a Redis that writes each command to disk before it answers.
func throughRedis(b *testing.B, url string) {
	client := startRedis(b).client()
	target, err := redisrelay.New(redisrelay.Config{Client: client, Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	messagesThrough(b, url, target, func(arrived func(payload []byte)) {
		go func() { // ends with the benchmark
			for last := "0"; b.Context().Err() == nil; {
				read, err := client.XRead(b.Context(), &redis.XReadArgs{Streams: []string{"s.c", last}, Count: 1000, Block: time.Second}).Result()
				if err != nil {
					continue // nothing has come for a second, or the benchmark has ended
				}
				for _, entry := range read[0].Messages {
					arrived([]byte(entry.Values["payload"].(string)))
					last = entry.ID
				}
			}
		}()
	})
}

// throughAnotherDatabase: one on a server of its own, of which a client reads the log.
func throughAnotherDatabase(b *testing.B, url string) {
	to := pgtest.Pool(b, postgres(b))
	messagesThrough(b, url, &weirrelay.Database{Pool: to, Name: "bench"}, func(arrived func(payload []byte)) {
		sub, err := weir.Subscribe(b.Context(), weir.SubscribeConfig{Client: weir.NewClient(to), Channels: []string{"s.c"}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(sub.Close)
		go func() { // ends with the subscription
			for event, err := range sub.All(context.Background()) {
				if err == nil && event.Message != nil {
					arrived(event.Message.Payload)
				}
			}
		}()
	})
}

// besideAHub runs a hub with a subscriber, and returns what says how many messages that got.
func besideAHub(b *testing.B, url string) (delivered func() int64) {
	b.Helper()
	hub, err := server.Start(b.Context(), server.Config{Name: b.Name(), Database: url, ListenHTTP: "127.0.0.1:0", Web: web.Config{Anonymous: true}})
	if err != nil {
		b.Fatal(err)
	}
	sub, err := weir.Subscribe(b.Context(), weir.SubscribeConfig{Hubs: []string{"http://" + hub.HTTPAddr().String()}, Channels: []string{"c"}})
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	done := make(chan struct{})
	go func() { // ends with the subscription
		defer close(done)
		for event, err := range sub.All(context.Background()) {
			if err == nil && event.Message != nil {
				n.Add(1)
			}
		}
	}()
	b.Cleanup(func() {
		sub.Close()
		<-done
		if err := hub.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return n.Load
}

func messagesThrough(b *testing.B, url string, target weirrelay.Target, subscribe func(arrived func(payload []byte))) {
	b.Helper()
	const each, every = 100, 10 * time.Millisecond
	pool := pgtest.Pool(b, url)
	relaying(b, func(ctx context.Context) error {
		return weirrelay.Run(ctx, weirrelay.Config{Name: "bench", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{{Channels: "c", Subject: "s.{channel}"}}})
	})
	n := max(b.N/each, 1) * each
	took := make([]time.Duration, 0, n)
	first, arrived, begun := make(chan struct{}), make(chan struct{}), false
	subscribe(func(payload []byte) {
		if !begun {
			begun = true
			close(first)
			return
		}
		sent, err := strconv.ParseInt(string(payload), 10, 64)
		if err != nil {
			b.Error(err)
		}
		if took = append(took, time.Duration(time.Now().UnixNano()-sent)); len(took) == n {
			close(arrived)
		}
	})
	publish := func(n int) {
		if _, err := pool.Exec(b.Context(), `SELECT weir.publish_many(array_fill('c'::text, ARRAY[$1::integer]), array_fill($2::text, ARRAY[$1]), true)`, n, strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
			b.Fatal(err)
		}
	}
	// A first message has the relay, the target and the subscriber begin, each of which may take a second.
	publish(1)
	<-first
	b.ResetTimer()
	begin := time.Now()
	for i := range n / each {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * every))) // the rate that is offered
		publish(each)
	}
	published := time.Since(begin)
	<-arrived
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(n)/published.Seconds(), "messages/s")
	b.ReportMetric(float64(took[n/2])/1e6, "p50-ms")
	b.ReportMetric(float64(took[n*99/100])/1e6, "p99-ms")
}
