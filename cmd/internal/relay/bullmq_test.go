package relay_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirrelay"
	"github.com/weir-pg/weir/weirrelay/redisrelay"
)

// bullMQ is testdata/bullmq/work.mjs, with one version of the library.
type bullMQ struct {
	t     *testing.T
	in    io.Writer
	lines chan bullMQLine
}

type bullMQLine struct {
	ID, Name       string
	Data           json.RawMessage
	Attempts, Made int
	Timestamp      int64
	Done           string
	Ready          bool
	Counts         map[string]int
}

func startBullMQ(t *testing.T, module, port, queue string) *bullMQ {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(drivertest.Node(t, "testdata/bullmq/package.json"), "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("testdata/bullmq/work.mjs")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "work.mjs"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(drivertest.Tool(t, "node"), filepath.Join(dir, "work.mjs"), module, port, queue)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &bullMQ{t: t, in: in, lines: make(chan bullMQLine, 1000)}
	go func() { // ends with the program
		defer close(b.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var line bullMQLine
			if err := json.Unmarshal(s.Bytes(), &line); err != nil {
				fmt.Fprintln(os.Stderr, s.Text(), err)
			}
			b.lines <- line
		}
	}()
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	if !b.next().Ready {
		t.Fatal("the program is not ready")
	}
	return b
}

func (b *bullMQ) next() bullMQLine {
	b.t.Helper()
	return pgtest.Receive(b.t, b.lines, "BullMQ says something")
}

// do gives a command, and returns the last line before its end.
func (b *bullMQ) do(command string) (answer bullMQLine) {
	b.t.Helper()
	fmt.Fprintln(b.in, command)
	for {
		line := b.next()
		if line.Done == command {
			return answer
		}
		answer = line
	}
}

// TestBullMQInNodeRunsWhatIsRelayed: the real one, of each version that is supported. It runs each job once, in order, is woken by the first, tries again what fails, and
// gets what was relayed while the queue was paused.
func TestBullMQInNodeRunsWhatIsRelayed(t *testing.T) {
	t.Parallel()
	drivertest.Want(t)
	for module, version := range map[string]string{"bullmq": "bullmq:6.", "bullmq5": "bullmq:5."} {
		t.Run(module, func(t *testing.T) {
			t.Parallel()
			server := startRedis(t)
			pool := pgtest.Pool(t, pgtest.Database(t))
			c := server.client()
			target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "uploads", Form: redisrelay.BullMQ})
			if err != nil {
				t.Fatal(err)
			}
			b := startBullMQ(t, module, server.port, "images")
			pgtest.Until(t, "the queue has version "+version, func() bool {
				return strings.HasPrefix(c.HGet(t.Context(), "bull:images:meta", "version").Val(), version)
			})
			b.do("work")
			stop := run(t, weirrelay.Config{Name: "uploads", Pool: pool, Target: target, Since: time.Now().Add(-time.Hour), Routes: []weirrelay.Route{
				{Channels: "uploads.failing", Subject: "images", Headers: map[string]string{"name": "failing", "attempts": "3"}},
				{Channels: "uploads.*", Subject: "images", Headers: map[string]string{"name": "{payload.name}"}},
			}})
			publish := func(channel, payload string) {
				t.Helper()
				if _, err := pool.Exec(t.Context(), `SELECT weir.publish($1, $2)`, channel, payload); err != nil {
					t.Fatal(err)
				}
			}
			expect := func(name, data string, attempts, made int) {
				t.Helper()
				got := b.next()
				if got.Name != name || string(got.Data) != data || got.Attempts != attempts || got.Made != made || !strings.HasPrefix(got.ID, "uploads-") || got.Timestamp < time.Now().Add(-time.Hour).UnixMilli() {
					t.Fatalf("got %+v, data %s; want %s, %s, %d attempts, %d made", got, got.Data, name, data, attempts, made)
				}
			}
			publish("uploads.made", `{"name": "resize", "n": 1}`)
			expect("resize", `{"name":"resize","n":1}`, 0, 0)
			publish("uploads.made", `text`)
			expect("uploads.made", `"text"`, 0, 0)
			publish("uploads.failing", `[1]`)
			expect("failing", `[1]`, 3, 1)

			b.do("pause")
			for n := range 20 {
				publish("uploads.made", fmt.Sprint(n))
				if n%5 == 0 {
					stop()
					stop = run(t, weirrelay.Config{Name: "uploads", Pool: pool, Target: target, Routes: []weirrelay.Route{{Channels: "uploads.*", Subject: "images"}}})
				}
			}
			pgtest.Until(t, "20 jobs wait in the paused queue", func() bool {
				counts := b.do("counts").Counts
				return counts["wait"]+counts["paused"] == 20 && counts["completed"] == 3 && counts["failed"] == 0
			})
			fmt.Fprintln(b.in, "resume")
			for n := 0; n < 20; {
				if line := b.next(); line.Done == "" {
					if string(line.Data) != fmt.Sprint(n) {
						t.Fatalf("got %s, want %d", line.Data, n)
					}
					n++
				}
			}
			fmt.Fprintln(b.in, "counts")
			for {
				if counts := b.next().Counts; counts != nil {
					if counts["wait"] != 0 || counts["failed"] != 0 {
						t.Errorf("counts %v", counts)
					}
					break
				}
			}
		})
	}
}

// TestAQueueOfAnotherBullMQIsLeftAlone: of a version that is not known, or a paused one that does not say which it has.
func TestAQueueOfAnotherBullMQIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client()
	target, err := redisrelay.New(redisrelay.Config{Client: c, Name: "r", Form: redisrelay.BullMQ})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Begin(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	record := func(queue string) []weirrelay.Record {
		return []weirrelay.Record{{ID: "r/1.1.1", Position: "1.1.1", Channel: "c", Payload: []byte("1"), Subject: queue}}
	}
	for queue, meta := range map[string][]any{"old": {"version", "bullmq:4.1.0"}, "new": {"version", "bullmq:7.0.0"}, "pro": {"version", "bullmq-pro:7.1.0"}, "paused": {"paused", "1"}} {
		if err := c.HSet(t.Context(), "bull:"+queue+":meta", meta...).Err(); err != nil {
			t.Fatal(err)
		}
		if err := target.Send(t.Context(), record(queue)); err == nil || !strings.Contains(err.Error(), "bull:"+queue+":wait is of BullMQ's version") {
			t.Errorf("%s: %v", queue, err)
		}
	}
	if err := target.Send(t.Context(), record("a:b")); err == nil || !strings.Contains(err.Error(), `"a:b" is no name of a queue of BullMQ`) {
		t.Errorf("a colon: %v", err)
	}
	if keys := c.Keys(t.Context(), "*").Val(); len(keys) != 4 {
		t.Errorf("there are keys besides the four that were there: %v", keys)
	}
}
