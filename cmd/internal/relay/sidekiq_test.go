package relay_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// TestSidekiqRunsWhatIsRelayed: the real one sees the jobs with their times, runs each once with its args, and retries those that fail.
func TestSidekiqRunsWhatIsRelayed(t *testing.T) {
	t.Parallel()
	sidekiq := installed(t, "sidekiq", "sidekiq")
	server := startRedis(t)
	c := server.client()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for name, routes := range map[string][]weirrelay.Route{
		"signups": {{Channels: "signups", Subject: "mailers", Headers: map[string]string{"class": "WelcomeJob", "source": "{channel}"}}},
		"bad":     {{Channels: "bad", Subject: "mailers", Headers: map[string]string{"class": "{payload.class}"}}},
	} {
		target, err := redisrelay.New(redisrelay.Config{Client: c, Name: name, Form: redisrelay.Sidekiq})
		if err != nil {
			t.Fatal(err)
		}
		run(t, weirrelay.Config{Name: name, Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: routes})
	}
	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('signups', '{"user": "<é>", "n": 12345678901234567890}'), weir.publish('signups', '[1, "two", null]'), weir.publish('signups', 'text'), weir.publish_bytes('signups', '\xff00'),
		weir.publish('bad', '{"class": "FailingJob"}'), weir.publish('bad', '{"class": 5.5}'), weir.publish('bad', '{}')`); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, "all jobs are in the queue", func() bool { return c.LLen(t.Context(), "queue:mailers").Val() == 6 })

	environment := append(os.Environ(), "REDIS_URL=redis://"+server.address()+"/0")
	look := exec.Command(strings.TrimSuffix(sidekiq, "sidekiq")+"ruby", "testdata/sidekiq/look.rb")
	look.Env, look.Stderr = environment, os.Stderr
	text, err := look.Output()
	if err != nil {
		t.Fatal(err)
	}
	var seen struct {
		Queues  []string
		Latency float64
		Jobs    []struct {
			Class      string
			CreatedAt  float64 `json:"created_at"`
			EnqueuedAt float64 `json:"enqueued_at"`
		}
	}
	if err := json.Unmarshal(text, &seen); err != nil || !slices.Equal(seen.Queues, []string{"mailers"}) || seen.Latency < 0 || seen.Latency > 3600 || len(seen.Jobs) != 6 {
		t.Errorf("Sidekiq sees %s, %v", text, err)
	}
	for _, j := range seen.Jobs {
		if now := float64(time.Now().Unix()); j.CreatedAt < now-3600 || j.CreatedAt > now+3600 || j.EnqueuedAt < j.CreatedAt {
			t.Errorf("created at %f, enqueued at %f", j.CreatedAt, j.EnqueuedAt)
		}
	}

	worker := exec.Command(sidekiq, "-r", "./testdata/sidekiq/work.rb", "-q", "mailers", "-c", "1")
	worker.Env, worker.Stdout, worker.Stderr = environment, os.Stderr, os.Stderr
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		worker.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		worker.Wait()                          //nolint:errcheck // it was ended
	})
	pgtest.Until(t, "all jobs have run", func() bool {
		// An unknown class fails, too, and is tried again.
		return c.LLen(t.Context(), "done").Val() == 4 && c.ZCard(t.Context(), "retry").Val() == 2
	})
	var got []string
	ids := map[string]bool{}
	for _, text := range c.LRange(t.Context(), "done", 0, -1).Val() {
		var one []json.RawMessage
		if err := json.Unmarshal([]byte(text), &one); err != nil || len(one) != 2 || len(one[0]) != 26 {
			t.Fatalf("%s: %v", text, err)
		}
		ids[string(one[0])] = true
		got = append(got, string(one[1]))
	}
	slices.Sort(got)
	if want := []string{`["text"]`, `[1,"two",null]`, `[{"bytes":"/wA="}]`, `[{"user":"<é>","n":12345678901234567890}]`}; !slices.Equal(got, want) || len(ids) != 4 {
		t.Errorf("got %q with %d ids, want %q", got, len(ids), want)
	}
	letters := 0
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.job WHERE kind = 'relay.dead_letter' AND args->>'error' LIKE '%needs the class%'`).Scan(&letters); err != nil || letters != 1 {
		t.Errorf("%d dead letters, %v: want one, of the message without a class", letters, err)
	}
}

// TestARetryOfSidekiqIsANumber: however it is written; what is none refuses the job.
func TestARetryOfSidekiqIsANumber(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "r", Form: redisrelay.Sidekiq})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	for i, one := range []struct {
		header string
		want   any // nil: it is refused
	}{{"7", 7.}, {"007", 7.}, {"0", 0.}, {"true", true}, {"false", false}, {"-1", nil}, {"", nil}, {"yes", nil}} {
		at := weir.Position(fmt.Sprintf("1.1.%d", i+1))
		err := target.Send(t.Context(), []weirrelay.Record{{ID: "r/" + string(at), Position: at, Channel: "c", Subject: "mail", Payload: []byte("1"), Headers: map[string]string{"class": "MailJob", "retry": one.header}}})
		var refused *weirrelay.Refused
		if one.want == nil {
			if !errors.As(err, &refused) {
				t.Errorf("retry = %q: %v, want that it is refused", one.header, err)
			}
			continue
		}
		text := c.LPop(t.Context(), "queue:mail").Val()
		var job struct{ Retry any }
		if decoded := json.Unmarshal([]byte(text), &job); err != nil || decoded != nil || job.Retry != one.want {
			t.Errorf("retry = %q: the job %q, %v, %v", one.header, text, err, decoded)
		}
	}
}
