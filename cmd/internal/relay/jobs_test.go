package relay_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/kafkarelay"
	"github.com/weir-pg/weir/weirrelay/natsrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// TestJobsMoveToEachTargetOnce: and have completed then; one that the target refuses has failed.
func TestJobsMoveToEachTargetOnce(t *testing.T) {
	t.Parallel()
	const jobs = 5000
	for what, prepare := range map[string]func(t *testing.T) (target weirrelay.Target, prefix string, arrived func() []string){
		"NATS": func(t *testing.T) (weirrelay.Target, string, func() []string) {
			nc, js := dial(t, jetStream(t).ClientURL())
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}, AllowAtomicPublish: true, MaxMsgSize: 2000}); err != nil {
				t.Fatal(err)
			}
			target, err := natsrelay.New(natsrelay.Config{Conn: nc, Name: "mail", Stream: "JOBS"})
			if err != nil {
				t.Fatal(err)
			}
			return target, "jobs.", func() []string { return stored(t, js, "JOBS", jobs) }
		},
		"Redis": func(t *testing.T) (weirrelay.Target, string, func() []string) {
			c := startRedis(t).client()
			if err := c.Set(t.Context(), "jobs.big", "text", 0).Err(); err != nil {
				t.Fatal(err)
			}
			target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "mail"})
			if err != nil {
				t.Fatal(err)
			}
			return target, "jobs.", func() (all []string) {
				pgtest.Until(t, "the jobs are in Redis", func() bool { return c.XLen(t.Context(), "jobs.small").Val() >= jobs })
				for _, e := range c.XRange(t.Context(), "jobs.small", "-", "+").Val() {
					all = append(all, e.Values["payload"].(string))
				}
				return all
			}
		},
		"Kafka": func(t *testing.T) (weirrelay.Target, string, func() []string) {
			kafka := sharedKafka(t)
			name := unique("jobs")
			kafka.createTopic(t, name+".small", 3)
			kafka.createTopic(t, name+".big", 1, "max.message.bytes=100")
			target, err := kafkarelay.New(kafkarelay.Config{Name: name, Options: []kgo.Opt{kgo.SeedBrokers(kafka.address())}, Jobs: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(target.Close)
			return target, name + ".", func() []string { return values(kafka.read(t, jobs, name+".small")) }
		},
		"another database": func(t *testing.T) (weirrelay.Target, string, func() []string) {
			to := pgtest.Pool(t, pgtest.Database(t))
			return &weirrelay.Database{Pool: to, Name: "mail"}, "jobs.", func() (all []string) {
				pgtest.Until(t, "the jobs are there", func() bool {
					rows, err := to.Query(t.Context(), `SELECT args::text FROM weir.job WHERE kind = 'small'`)
					if err != nil {
						t.Fatal(err)
					}
					all = nil
					for rows.Next() {
						var text string
						if err := rows.Scan(&text); err != nil {
							t.Fatal(err)
						}
						all = append(all, text)
					}
					return len(all) >= jobs
				})
				return all
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			target, prefix, arrived := prepare(t)
			if _, err := pool.Exec(t.Context(), `SELECT weir.enqueue_many(array_fill('mail'::text, ARRAY[$1::integer]), array_fill('small'::text, ARRAY[$1]), ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(1, $1) i))`, jobs); err != nil {
				t.Fatal(err)
			}
			var big int64
			if err := pool.QueryRow(t.Context(), `SELECT weir.enqueue('mail', 'big', jsonb_build_object('text', repeat('x', 3000)))`).Scan(&big); err != nil {
				t.Fatal(err)
			}
			stop := relaying(t, func(ctx context.Context) error {
				return weirrelay.RunJobs(ctx, weirrelay.JobsConfig{Name: "mail", Pool: pool, Target: target, Routes: []weirrelay.Route{{Queue: "mail", Subject: prefix + "{kind}"}}})
			})
			got := arrived()
			pgtest.Until(t, "all jobs have ended", func() bool {
				left, err := someJob(t, pool, weir.JobsParams{States: []weir.State{weir.StateAvailable, weir.StateRunning}})
				return err == nil && left == nil
			})
			stop()
			want := make([]string, jobs)
			for i := range want {
				want[i] = fmt.Sprintf(`{"n": %d}`, i+1)
			}
			key := func(s string) int { n, _ := strconv.Atoi(s[6 : len(s)-1]); return n }
			slices.SortFunc(got, func(a, b string) int { return key(a) - key(b) })
			if !slices.Equal(got, want) {
				t.Errorf("got %d jobs, want %d", len(got), len(want))
			}
			job, err := weir.NewClient(pool).Job(t.Context(), big)
			if state := map[bool]weir.State{true: weir.StateCompleted, false: weir.StateFailed}[what == "another database"]; err != nil || job.State != state {
				t.Errorf("the big job is %s, want %s: %v", job.State, state, err)
			}
		})
	}
}
