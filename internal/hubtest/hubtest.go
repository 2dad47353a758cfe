// Package hubtest runs a hub for tests of the library. The library can't import the hub, so it runs the command, as users do.
package hubtest

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
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
	return Run(t, database, complaints).Address
}

// Hub is a hub that can be killed and started again.
type Hub struct {
	Address string // where it serves HTTP, also after Restart

	t          testing.TB
	database   string
	complaints io.Writer
	flags      []string
	process    *exec.Cmd
	ended      chan error
	killed     bool
}

// Below serves the hub at an address below a path as well, and nothing beside it, and returns its URL there.
func Below(t testing.TB, address, path string) string {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	proxy.ErrorLog = log.New(io.Discard, "", 0) // clients leave
	server := httptest.NewServer(http.StripPrefix(path, proxy))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL + path
}

// Secret signs the tokens of clients of WithTokens.
const Secret = "a secret of thirty-two bytes or more"

// WithTokens is Run, but clients need tokens that are signed with Secret, and may see who is on the channels room.*.
func WithTokens(t testing.TB, database string, complaints io.Writer, flags ...string) *Hub {
	t.Helper()
	channels := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(channels, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, database, complaints, append([]string{"--jwt-secret-file", secretFile(t), "--channels-file", channels}, flags...))
}

// OfMany is a hub for each of several databases, in one process: weir serve --list. Clients need tokens, and each database its own: TokenOf.
func OfMany(t testing.TB, databases []string, complaints io.Writer) *Hub {
	t.Helper()
	list := filepath.Join(t.TempDir(), "databases.txt")
	if err := os.WriteFile(list, []byte(strings.Join(databases, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, "", complaints, []string{"--list", list, "--jwt-secret-file", secretFile(t)})
}

// TokenOf returns a token, for an hour, of who may wait for jobs of any queue in a database.
func TokenOf(database string) string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg": "HS256", "typ": "JWT"}`)) + "." + encode(fmt.Appendf(nil, `{"exp": %d, "weir": {"databases": [%q], "jobs": [">"]}}`, time.Now().Add(time.Hour).Unix(), database))
	mac := hmac.New(sha256.New, []byte(Secret))
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
}

func secretFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(Secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Run runs weir serve --anonymous, with further flags, until the end of the test. Its warnings and errors are written to complaints.
func Run(t testing.TB, database string, complaints io.Writer, flags ...string) *Hub {
	t.Helper()
	return run(t, database, complaints, append([]string{"--anonymous"}, flags...))
}

func run(t testing.TB, database string, complaints io.Writer, flags []string) *Hub {
	t.Helper()
	h := &Hub{Address: "127.0.0.1:0", t: t, database: database, complaints: complaints, flags: flags}
	h.start()
	t.Cleanup(h.Stop)
	return h
}

func (h *Hub) start() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), bound)
	defer cancel()
	command, err := command()
	if err != nil {
		h.t.Fatal(err)
	}
	h.process = exec.Command(command, append([]string{"serve", "--listen-pg", "", "--listen-http", h.Address, "--name", h.t.Name()}, h.flags...)...)
	h.process.Env = append(os.Environ(), "DATABASE_URL="+h.database)
	output, err := h.process.StderrPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.process.Start(); err != nil {
		h.t.Fatal(err)
	}
	at, ended, process := make(chan string, 1), make(chan error, 1), h.process
	h.ended = ended
	go func() { // ends with the process, which Stop and Kill wait for
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if m := serves.FindStringSubmatch(lines.Text()); m != nil {
				at <- m[1]
			} else if !strings.Contains(lines.Text(), "level=INFO") {
				fmt.Fprintln(h.complaints, lines.Text())
			}
		}
		ended <- errors.Join(lines.Err(), process.Wait())
	}()
	select {
	case h.Address = <-at:
	case err := <-ended:
		h.killed = true
		h.t.Fatalf("the hub ended before it was ready: %v", err)
	case <-ctx.Done():
		_ = h.process.Process.Kill()
		h.t.Fatal("the hub did not report its address in time")
	}
}

// PID returns the process's id.
func (h *Hub) PID() int { return h.process.Process.Pid }

// Kill ends the hub with SIGKILL.
func (h *Hub) Kill() {
	h.t.Helper()
	_ = h.process.Process.Kill()
	<-h.ended
	h.killed = true
}

// Restart starts a hub that was killed or stopped, at the same address.
func (h *Hub) Restart() {
	h.t.Helper()
	h.killed = false
	h.start()
}

// Stop ends the hub with SIGTERM, unless it has ended.
func (h *Hub) Stop() {
	h.t.Helper()
	if h.killed {
		return
	}
	h.killed = true
	if err := h.process.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Errorf("stop the hub: %v", err)
	}
	select {
	case err := <-h.ended:
		if err != nil {
			h.t.Errorf("the hub stopped with an error: %v", err)
		}
	case <-time.After(bound):
		_ = h.process.Process.Kill()
		h.t.Errorf("the hub has not stopped within %v of SIGTERM", bound)
	}
}
