// Package python tests the example: a worker in Python over plain SQL.
package python

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// worker starts worker.py, which works the queue q.
func worker(t *testing.T, url string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "python3", "-c", "import psycopg").Run(); err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "python3") {
			t.Fatal("python3 with psycopg is required here and not installed")
		}
		t.Skip("python3 with psycopg is not installed")
	}
	cmd, said := exec.Command("python3", "worker.py", url, "q"), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said)
		}
	})
	return cmd, said
}

// await returns the job once it is in one of the states, by another worker than not.
func await(t *testing.T, client *weir.Client, id int64, not int32, states ...weir.State) *weir.JobInfo {
	t.Helper()
	var seen string
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(20 * time.Millisecond) { // nobody tells
		job, err := client.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, state := range states {
			if job.State == state && (job.Worker == nil || *job.Worker != not) {
				return job
			}
		}
		seen = fmt.Sprintf("%+v", job)
	}
	t.Fatalf("job %d is not %v: %s", id, states, seen)
	return nil
}

func TestTheWorkerInPythonDoesWhatWorkersDo(t *testing.T) {
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	client := weir.NewClient(pool)
	enqueue := func(kind, args string, attempts int) (id int64) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT weir.enqueue('q', $1, $2::jsonb, max_attempts => $3)`, kind, args, attempts).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first, _ := worker(t, url)
	greeted, bad, again := enqueue("hello", `{"name": "Ada"}`, 1), enqueue("hello", `{}`, 1), enqueue("hello", `{}`, 3)
	unknown := enqueue("hallo", `{}`, 1)
	if job := await(t, client, greeted, -1, weir.Completed); job.Output == nil || *job.Output != "hello, Ada" {
		t.Errorf("output: %+v", job)
	}
	if job := await(t, client, bad, -1, weir.Failed); job.Error == nil || !strings.Contains(*job.Error, "KeyError('name')") {
		t.Errorf("failed: %+v", job)
	}
	if job := await(t, client, again, -1, weir.Failed); job.Attempt != 3 || len(job.Errors) != 3 {
		t.Errorf("retried: %+v", job)
	}
	if job := await(t, client, unknown, -1, weir.Later); job.Attempt != 1 {
		t.Errorf("handed back: %+v", job)
	}

	// What a killed worker was running, another runs.
	slow := enqueue("rest", `{"seconds": 1}`, 2)
	job := await(t, client, slow, -1, weir.Running, weir.Completed)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second, said := worker(t, url)
	if job.State == weir.Running {
		await(t, client, slow, *job.Worker, weir.Completed)
	}

	// Told to stop, it leaves nothing behind.
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("it ends with %v:\n%s", err, said)
	}
	workers, err := client.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		if w.State != "ended" || w.Running != 0 {
			t.Errorf("it left %+v", w)
		}
	}
}
