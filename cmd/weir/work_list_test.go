package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/connstring"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWorkGoesThroughTheDatabasesOfAList: the command runs the jobs of each, and is told whose; one that can't be reached keeps no other waiting, and no password is printed.
func TestWorkGoesThroughTheDatabasesOfAList(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "list")
	urls := []string{pgtest.Database(t), pgtest.Database(t)}
	if err := os.WriteFile(path, []byte(strings.Join(urls, "\n")+"\npostgres://ada:secret@127.0.0.1:1/nowhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range urls {
		if _, err := pgtest.Pool(t, url).Exec(t.Context(), `SELECT weir.enqueue('tell', 'k')`); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log pgtest.Log
	c := workCmd{Queue: []string{"tell"}, Concurrency: 1, Lease: 30 * time.Second, StopTimeout: 5 * time.Second, List: path, Verbose: true, Command: []string{"sh", "-c", `printf %s "$WEIR_JOB_DATABASE"`}}
	go func() { ended <- c.Run(ctx, &streams{in: strings.NewReader(""), out: &log, err: &log}, nil, &trap{}) }()
	for _, url := range urls {
		names, err := connstring.Named(url)
		if err != nil {
			t.Fatal(err)
		}
		pool := pgtest.Pool(t, url)
		pgtest.Until(t, "the job of "+names.Full+" has told where it is", func() (told bool) {
			if err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM weir.jobs('completed', 'tell') j WHERE j.output = $1)`, names.Full).Scan(&told); err != nil {
				t.Fatal(err)
			}
			return told
		})
		if !strings.Contains(log.String(), "database="+names.Full) {
			t.Errorf("the log does not say of which database a job was:\n%s", log.String())
		}
	}
	cancel()
	if err := pgtest.Receive(t, ended, "the command has ended"); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "secret") || !strings.Contains(text, "2 completed") {
		t.Errorf("it said:\n%s", text)
	}
}

// TestAListToWorkThatIsWrongIsRefused, before anything is worked.
func TestAListToWorkThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{"-": "write it to a file", os.DevNull: "the list of databases is empty", filepath.Join(t.TempDir(), "missing"): "no such file"} {
		var out bytes.Buffer
		c := workCmd{Queue: []string{"q"}, Concurrency: 1, Lease: 30 * time.Second, List: list, Command: []string{"true"}}
		if err := c.Run(t.Context(), &streams{in: strings.NewReader(""), out: &out, err: &out}, nil, &trap{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--list %s: %v, want %q", list, err, want)
		}
	}
	c := workCmd{Queue: []string{"q"}, Concurrency: 1, Lease: 30 * time.Second, List: os.DevNull, ExitWhenIdle: true, Command: []string{"true"}}
	var usage *failure
	if err := c.Run(t.Context(), &streams{}, nil, &trap{}); !errors.As(err, &usage) || usage.code != exitUsage || !strings.Contains(err.Error(), "--exit-when-idle is about the queues of one database") {
		t.Errorf("with --exit-when-idle: %v", err)
	}
}
