package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// streams are the brokers from which messages come: what makes sources of a new stream, what sends to it, and its name.
var streams = map[string]func(t *testing.T) (source func(isNew bool) weirrelay.Source, send func(payload string), name string){
	"NATS": func(t *testing.T) (func(bool) weirrelay.Source, func(string), string) {
		nc, js := dial(t, jetStream(t).ClientURL())
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in.>"}}); err != nil {
			t.Fatal(err)
		}
		return func(isNew bool) weirrelay.Source {
				s, err := natsrelay.NewSource(natsrelay.SourceConfig{Conn: nc, Stream: "IN", New: isNew})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, func(payload string) {
				if _, err := js.Publish(t.Context(), "in.x", []byte(payload)); err != nil {
					t.Fatal(err)
				}
			}, "in.x"
	},
	"Redis": func(t *testing.T) (func(bool) weirrelay.Source, func(string), string) {
		server := startRedis(t)
		c := server.client()
		return func(isNew bool) weirrelay.Source {
				s, err := redisrelay.NewSource(redisrelay.SourceConfig{Client: server.client(), Stream: "in.x", New: isNew})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}, func(payload string) {
				if err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: "in.x", Values: []any{"payload", payload}}).Err(); err != nil {
					t.Fatal(err)
				}
			}, "in.x"
	},
	"Kafka": func(t *testing.T) (func(bool) weirrelay.Source, func(string), string) {
		kafka, topic := sharedKafka(t), unique("in")
		kafka.createTopic(t, topic, 1)
		c := kafka.consumer(t)
		return func(isNew bool) weirrelay.Source { return kafka.source(t, topic, isNew) }, func(payload string) {
			if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(payload)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}, topic
	},
}

// TestEachMessageOfASourceBecomesOneJob: though two processes run the relay, and its sessions are ended again and again; of one that can't be a job, a dead letter is made.
func TestEachMessageOfASourceBecomesOneJob(t *testing.T) {
	t.Parallel()
	for what, prepare := range streams {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.Pool(t, url)
			operator := pgtest.Pool(t, url+"&application_name=operator") // whose sessions stay
			source, send, name := prepare(t)
			for range 2 {
				c := weirrelay.FromConfig{Name: "in", Pool: pool, Source: source(false), Queue: "q", Kind: "{payload.kind}", Key: "{subject}", MaxRecords: 7}
				relaying(t, func(ctx context.Context) error { return weirrelay.RunFrom(ctx, c) })
			}
			const n = 600
			for i := range n {
				send(fmt.Sprintf(`{"kind": "k", "n": %d}`, i))
				if i%100 == 50 {
					send(`{"kind": "", "n": "it has no kind"}`)
					send(`{"kind": "k", "n": "PostgreSQL has no \u0000"}`)
					if _, err := operator.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'operator'`); err != nil {
						t.Fatal(err)
					}
				}
			}
			client := weir.NewClient(operator)
			count := func(queue string) (all int) {
				for after := ""; ; {
					page, err := client.Jobs(t.Context(), weir.JobsParams{Queue: queue, Limit: 1000, After: after})
					if err != nil {
						t.Fatal(err)
					}
					all += len(page.Jobs)
					if after = page.Next; after == "" {
						return all
					}
				}
			}
			pgtest.Until(t, "all jobs are there", func() bool { return count("q") >= n && count("in-dead-letters") >= 12 })
			if got := count("q"); got != n {
				t.Errorf("%d jobs, want %d", got, n)
			}
			page, err := client.Jobs(t.Context(), weir.JobsParams{Queue: "q", Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for i, j := range page.Jobs {
				var args struct{ N int }
				if err := json.Unmarshal(j.Args, &args); err != nil || args.N != i || j.Kind != "k" || j.Key != name {
					t.Fatalf("job %d: %s %s %s, %v", i, j.Kind, j.Key, j.Args, err)
				}
			}
			if got := count("in-dead-letters"); got != 12 {
				t.Errorf("%d dead letters, want 12", got)
			}
			if page, err = client.Jobs(t.Context(), weir.JobsParams{Queue: "in-dead-letters"}); err != nil {
				t.Fatal(err)
			}
			places := make(map[weir.Position]bool)
			for i, j := range page.Jobs { // as text, for people
				var letter weirrelay.DeadLetter
				if err := json.Unmarshal(j.Args, &letter); err != nil || !strings.HasPrefix(letter.Payload, `{"kind": `) || letter.Bytes != nil {
					t.Errorf("dead letter %d: %s, %v", i, j.Args, err)
				}
				places[letter.Position] = true
			}
			if len(places) != len(page.Jobs) {
				t.Errorf("%d dead letters name %d places in the stream: %v", len(page.Jobs), len(places), places)
			}
		})
	}
}

// TestARelayThatBeginsWithWhatIsNewMissesNothing: of what comes while it is not there, before it has had a single message.
func TestARelayThatBeginsWithWhatIsNewMissesNothing(t *testing.T) {
	t.Parallel()
	for what, prepare := range streams {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			source, send, _ := prepare(t)
			send(`{"n": "old"}`)
			begin := func() (stop func()) {
				return relaying(t, func(ctx context.Context) error {
					return weirrelay.RunFrom(ctx, weirrelay.FromConfig{Name: "in", Pool: pool, Source: source(true), Queue: "q", Kind: "k"})
				})
			}
			count := func(sql string) (n int) {
				if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			stop := begin()
			pgtest.Until(t, "the relay is known", func() bool { return count(`SELECT count(*) FROM weir.relays()`) == 1 })
			stop()
			send(`{"n": "missed"}`)
			begin()
			send(`{"n": "new"}`)
			pgtest.Until(t, "the last has arrived", func() bool { return count(`SELECT count(*) FROM weir.job WHERE args->>'n' = 'new'`) == 1 })
			if n := count(`SELECT count(*) FROM weir.job WHERE kind = 'k'`); n != 2 {
				t.Errorf("%d jobs, want 2", n)
			}
		})
	}
}

// TestAStreamOfNATSThatIsMadeAnewIsReadFromItsBeginning: while the relay runs, and with as many messages as the old one had, or fewer.
func TestAStreamOfNATSThatIsMadeAnewIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	nc, js := dial(t, jetStream(t).ClientURL())
	source, err := natsrelay.NewSource(natsrelay.SourceConfig{Conn: nc, Stream: "IN"})
	if err != nil {
		t.Fatal(err)
	}
	var gaps atomic.Int32
	c := weirrelay.FromConfig{Name: "in", Pool: pool, Source: source, Queue: "q", Kind: "k", Observe: func(p weirrelay.Progress) {
		if p.Gap != nil {
			gaps.Add(1)
		}
	}}
	var want []string
	for round, n := range []int{5, 7, 2} {
		// In memory: of a stream in files that is deleted soon after it was written, the next one sometimes has what it had.
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}, Storage: jetstream.MemoryStorage}); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			want = append(want, fmt.Sprintf("%d of stream %d", i, round))
			if _, err := js.Publish(t.Context(), "in", []byte(want[len(want)-1])); err != nil {
				t.Fatal(err)
			}
		}
		if round == 0 {
			relaying(t, func(ctx context.Context) error { return weirrelay.RunFrom(ctx, c) })
		}
		var got []string
		pgtest.Until(t, fmt.Sprintf("%d are jobs", len(want)), func() bool {
			got = texts(t, pool, `SELECT args->>'payload' FROM weir.job WHERE kind = 'k' ORDER BY id`)
			return len(got) >= len(want)
		})
		if !slices.Equal(got, want) {
			t.Fatalf("the jobs are %q, want %q", got, want)
		}
		if err := js.DeleteStream(t.Context(), "IN"); err != nil {
			t.Fatal(err)
		}
	}
	if n := gaps.Load(); n != 2 {
		t.Errorf("%d gaps, want one for each stream that was made anew", n)
	}
}

// TestWhatAStreamOfNATSDropsIsAGap: while the relay reads it, more slowly than it is written; what it dropped before the relay began is none, and neither is what was deleted in its middle.
func TestWhatAStreamOfNATSDropsIsAGap(t *testing.T) {
	t.Parallel()
	nc, js := dial(t, jetStream(t).ClientURL())
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}, MaxMsgs: 100})
	if err != nil {
		t.Fatal(err)
	}
	source, err := natsrelay.NewSource(natsrelay.SourceConfig{Conn: nc, Stream: "IN"})
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	send := func(n int) {
		t.Helper()
		for range n {
			sent++
			if _, err := js.PublishAsync("in", fmt.Append(nil, sent)); err != nil {
				t.Fatal(err)
			}
			if sent%1000 == 0 { // the client takes no more than some that are not stored yet
				pgtest.Receive(t, js.PublishAsyncComplete(), "these are stored")
			}
		}
		pgtest.Receive(t, js.PublishAsyncComplete(), "all are stored")
	}
	// until returns which messages have arrived when the last one has, and how many gaps there were.
	until := func() (arrived map[string]bool, gaps int) {
		t.Helper()
		for arrived = map[string]bool{}; !arrived[fmt.Sprint(sent)]; {
			some, _, err := source.Next(t.Context(), 1000)
			if errors.As(err, new(*weirrelay.Lost)) {
				gaps++
			} else if err != nil {
				t.Fatal(err)
			}
			for _, a := range some {
				arrived[string(a.Payload)] = true
			}
		}
		return arrived, gaps
	}
	send(150)
	if err := stream.DeleteMsg(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if arrived, gaps := until(); len(arrived) != 99 || gaps != 0 {
		t.Errorf("%d arrived, and there were %d gaps, want 99 and none", len(arrived), gaps)
	}
	send(20_000)
	if arrived, gaps := until(); len(arrived) >= 20_000 || gaps == 0 {
		t.Errorf("%d of 20000 arrived, and there were %d gaps, want some", len(arrived), gaps)
	}
}

// TestAStreamOfRedisThatIsSetBackIsAGap: while it is read, as by a failover to a replica that lagged.
func TestAStreamOfRedisThatIsSetBackIsAGap(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	source, err := redisrelay.NewSource(redisrelay.SourceConfig{Client: c, Stream: "in"})
	if err != nil {
		t.Fatal(err)
	}
	add := func(id string) {
		t.Helper()
		if err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", ID: id, Values: []any{"payload", id}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := source.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	add("5-1")
	_, at, err := source.Next(t.Context(), 10)
	if err != nil || at != "5-1" {
		t.Fatalf("%q, %v", at, err)
	}
	if err := c.Del(t.Context(), "in").Err(); err != nil {
		t.Fatal(err)
	}
	add("3-1")
	if _, _, err := source.Next(t.Context(), 10); err == nil || !strings.Contains(err.Error(), "set back") {
		t.Fatalf("got %v, want an error: the stream was set back", err)
	}
	if _, err := source.Begin(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if _, _, err := source.Next(t.Context(), 10); !errors.As(err, new(*weirrelay.Lost)) {
		t.Errorf("got %v, want a gap", err)
	}
	add("3-2")
	if arrived, at, err := source.Next(t.Context(), 10); err != nil || len(arrived) != 1 || at != "3-2" {
		t.Errorf("%+v, %q, %v", arrived, at, err)
	}
}

// TestASourceThatCannotBeReadDoesNotBegin: a relay that has begun counts as one that works.
func TestASourceThatCannotBeReadDoesNotBegin(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	c := server.client()
	for _, isNew := range []bool{false, true} {
		source, err := redisrelay.NewSource(redisrelay.SourceConfig{Client: c, Stream: "in", New: isNew})
		if err != nil {
			t.Fatal(err)
		}
		for _, position := range []string{"", "5-1"} {
			begins := func() error {
				_, err := source.Begin(t.Context(), position)
				return err
			}
			if err := begins(); err != nil {
				t.Errorf("a stream that is not there yet: %v", err)
			}
			if err := c.LPush(t.Context(), "in", "x").Err(); err != nil {
				t.Fatal(err)
			}
			if err := begins(); err == nil || !strings.Contains(err.Error(), "stream in: WRONGTYPE") {
				t.Errorf("a list instead of a stream, from %q: %v", position, err)
			}
			if err := c.Del(t.Context(), "in").Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	server.kill()
	source, err := redisrelay.NewSource(redisrelay.SourceConfig{Client: c, Stream: "in"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Begin(t.Context(), ""); err == nil {
		t.Error("it begins although Redis is away")
	}
}

// TestTrimmedEntriesOfAStreamOfRedisAreAGap: those that were not read before they were trimmed, while the source waits and while it is away; trimming what was read is none.
func TestTrimmedEntriesOfAStreamOfRedisAreAGap(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	source, err := redisrelay.NewSource(redisrelay.SourceConfig{Client: c, Stream: "in"})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	add := func(more int) {
		t.Helper()
		for range more {
			n++
			if err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", Values: []any{"payload", fmt.Sprint(n)}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	keep := func(most int64) {
		t.Helper()
		if err := c.XTrimMaxLen(t.Context(), "in", most).Err(); err != nil {
			t.Fatal(err)
		}
	}
	position := ""
	begin := func() {
		t.Helper()
		if _, err := source.Begin(t.Context(), position); err != nil {
			t.Fatal(err)
		}
	}
	next := func(what string, want string, gap bool) {
		t.Helper()
		arrived, at, err := source.Next(t.Context(), 2)
		var lost *weirrelay.Lost
		if is := errors.As(err, &lost); is != gap {
			t.Errorf("%s: a gap: %t, %v; want %t", what, is, err, gap)
		} else if is {
			if !strings.Contains(lost.What, "may have been trimmed") {
				t.Errorf("%s: %s", what, lost.What)
			}
			arrived, at, err = source.Next(t.Context(), 2)
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range arrived {
			got = append(got, string(a.Payload))
		}
		if position = at; strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	begin()
	add(5)
	next("the first", "1 2", false)
	next("the next", "3 4", false)
	next("the last", "5", false)
	add(3)
	keep(3)
	next("what was read was trimmed", "6 7", false)
	add(3)
	keep(4)
	next("the same, before the end was read", "8 9", false)
	add(3)
	keep(2)
	next("three were trimmed that were not read", "13 14", true)
	add(1)
	keep(1)
	next("what was read was trimmed, after a gap", "15", false)
	begin()
	keep(0)
	add(1)
	next("what was read was trimmed while it was away", "16", false)
	add(4)
	keep(2)
	begin()
	next("two were trimmed while it was away", "19 20", true)
	add(3)
	if err := c.XDel(t.Context(), "in", c.XRange(t.Context(), "in", position, position).Val()[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	next("the last that was read was deleted", "21 22", false)
}
