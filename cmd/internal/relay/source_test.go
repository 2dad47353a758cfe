package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// TestEachMessageOfASourceBecomesOneJob: though two processes run the relay, and its sessions are ended again and again; of one that can't be a job, a dead letter is made.
func TestEachMessageOfASourceBecomesOneJob(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(t *testing.T) (source func() weirrelay.Source, send func(payload string)){
		"NATS": func(t *testing.T) (func() weirrelay.Source, func(string)) {
			nc, js := dial(t, jetStream(t).ClientURL())
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in.>"}}); err != nil {
				t.Fatal(err)
			}
			return func() weirrelay.Source {
					s, err := natsrelay.NewSource(natsrelay.SourceConfig{Conn: nc, Stream: "IN"})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}, func(payload string) {
					if _, err := js.Publish(t.Context(), "in.x", []byte(payload)); err != nil {
						t.Fatal(err)
					}
				}
		},
		"Redis": func(t *testing.T) (func() weirrelay.Source, func(string)) {
			server := startRedis(t)
			c := server.client()
			return func() weirrelay.Source {
					s, err := redisrelay.NewSource(redisrelay.SourceConfig{Client: server.client(), Stream: "in.x"})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}, func(payload string) {
					if err := c.XAdd(t.Context(), &redis.XAddArgs{Stream: "in.x", Values: []any{"payload", payload}}).Err(); err != nil {
						t.Fatal(err)
					}
				}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool := pgtest.Pool(t, url)
			operator := pgtest.Pool(t, url+"&application_name=operator") // whose sessions stay
			source, send := prepare(t)
			for range 2 {
				c := weirrelay.FromConfig{Name: "in", Pool: pool, Source: source(), Queue: "q", Kind: "{payload.kind}", Key: "{subject}", MaxRecords: 7}
				relaying(t, func(ctx context.Context) error { return weirrelay.RunFrom(ctx, c) })
			}
			const n = 600
			for i := range n {
				send(fmt.Sprintf(`{"kind": "k", "n": %d}`, i))
				if i%100 == 50 {
					send(`{"kind": "", "n": "it has no kind"}`)
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
			pgtest.Until(t, "all jobs are there", func() bool { return count("q") >= n && count("in-dead-letters") >= 6 })
			if got := count("q"); got != n {
				t.Errorf("%d jobs, want %d", got, n)
			}
			page, err := client.Jobs(t.Context(), weir.JobsParams{Queue: "q", Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for i, j := range page.Jobs {
				var args struct{ N int }
				if err := json.Unmarshal(j.Args, &args); err != nil || args.N != i || j.Kind != "k" || j.Key != "in.x" {
					t.Fatalf("job %d: %s %s %s, %v", i, j.Kind, j.Key, j.Args, err)
				}
			}
			if got := count("in-dead-letters"); got != 6 {
				t.Errorf("%d dead letters, want 6", got)
			}
		})
	}
}
