// Package hubtest runs a hub for tests of the library. The library can't import the hub, so it runs the command, as users do.
package hubtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// bound is longer than it takes to build, start or stop the command on a busy machine.
const bound = 5 * time.Minute

var serves = regexp.MustCompile(`the hub serves.* http=(\S+)`)

// command builds the command once for all tests of a package, and returns its path.
var command = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "weir-hubtest-*")
	if err != nil {
		return "", err
	}
	pgtest.AtEnd(func() error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "weir")
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", path, "github.com/weir-pg/weir/cmd/weir").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the command: %w: %s", err, out)
	}
	return path, nil
})

// Start runs weir serve --anonymous until the end of the test, and returns its HTTP address. Its warnings and errors are written to complaints.
func Start(t testing.TB, database string, complaints io.Writer) (address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	command, err := command()
	if err != nil {
		t.Fatal(err)
	}
	hub := exec.Command(command, "serve", "--listen-pg", "", "--listen-http", "127.0.0.1:0", "--anonymous", "--name", t.Name())
	hub.Env = append(os.Environ(), "DATABASE_URL="+database)
	output, err := hub.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if m := serves.FindStringSubmatch(lines.Text()); m != nil {
				at <- m[1]
			} else if !strings.Contains(lines.Text(), "level=INFO") {
				fmt.Fprintln(complaints, lines.Text())
			}
		}
		ended <- errors.Join(lines.Err(), hub.Wait())
	}()
	select {
	case address = <-at:
	case err := <-ended:
		t.Fatalf("the hub ended before it was ready: %v", err)
	case <-ctx.Done():
		_ = hub.Process.Kill()
		t.Fatal("the hub did not report its address in time")
	}
	t.Cleanup(func() {
		if err := hub.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("stop the hub: %v", err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the hub stopped with an error: %v", err)
			}
		case <-time.After(bound):
			_ = hub.Process.Kill()
			t.Errorf("the hub has not stopped within %v of SIGTERM", bound)
		}
	})
	return address
}
