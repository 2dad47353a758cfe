// Package python tests the example: a worker in Python over plain SQL.
package python

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// installing is how long getting psycopg may take.
const installing = 3 * time.Minute

// interpreter returns a Python with psycopg: the machine's own, or one that pip puts into a directory of the test's. Where neither is to be had,
// the test is skipped, or fails if WEIR_TEST_REQUIRE names python3.
func interpreter(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), installing)
	defer cancel()
	if exec.CommandContext(ctx, "python3", "-c", "import psycopg").Run() == nil {
		return "python3"
	}
	const install = `python3 -m venv "$0" && "$0/bin/python" -m pip install --quiet --retries 1 'psycopg[binary]'`
	dir := filepath.Join(t.TempDir(), "venv")
	said, err := exec.CommandContext(ctx, "sh", "-c", install, dir).CombinedOutput()
	if err != nil {
		why := fmt.Sprintf("python3 has no psycopg, and it can't be installed (%v): %s", err, bytes.TrimSpace(said))
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "python3") {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return filepath.Join(dir, "bin", "python")
}

// worker starts worker.py, which works the queue q.
func worker(t *testing.T, python, url string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd, said := exec.Command(python, "worker.py", url, "q"), &bytes.Buffer{}
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
	var found *weir.JobInfo
	pgtest.Until(t, fmt.Sprintf("job %d is %v", id, states), func() bool {
		job, err := client.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		found = job
		return slices.Contains(states, job.State) && (job.Worker == nil || *job.Worker != not)
	})
	return found
}

func TestTheWorkerInPythonDoesWhatWorkersDo(t *testing.T) {
	python := interpreter(t)
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
	first, _ := worker(t, python, url)
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
	second, said := worker(t, python, url)
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
