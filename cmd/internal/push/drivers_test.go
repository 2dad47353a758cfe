package push_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
)

const guide = "../../../docs/push.md"

// TestTheGuidesEndpointInGoWorks: it verifies, answers and reports.
func TestTheGuidesEndpointInGoWorks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	write(t, file, drivertest.Example(t, guide, "go"))
	program := filepath.Join(dir, "endpoint")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tryExample(t, exec.Command(program))
}

// TestTheGuidesEndpointInNodeWorks: the same, with the library from npm.
func TestTheGuidesEndpointInNodeWorks(t *testing.T) {
	t.Parallel()
	drivertest.Want(t)
	dir := drivertest.Node(t, "testdata/package.json")
	here := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(here, "node_modules")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(here, "endpoint.mjs")
	write(t, file, drivertest.Example(t, guide, "js"))
	tryExample(t, exec.Command(drivertest.Tool(t, "node"), file))
}

// TestTheGuidesEndpointInPythonWorks: the same, with the library from PyPI.
func TestTheGuidesEndpointInPythonWorks(t *testing.T) {
	t.Parallel()
	drivertest.Want(t)
	python := drivertest.Python(t, "testdata/requirements.txt")
	file := filepath.Join(t.TempDir(), "endpoint.py")
	write(t, file, drivertest.Example(t, guide, "python"))
	tryExample(t, exec.Command(python, file))
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tryExample runs an endpoint of the guide, and pushes jobs to it.
func tryExample(t *testing.T, endpoint *exec.Cmd) {
	t.Helper()
	address := pgtest.Address(t)
	_, port, _ := net.SplitHostPort(address)
	secret := newSecret()
	var output pgtest.Log
	endpoint.Env = append(os.Environ(), "PORT="+port, "MAILER_SECRET="+secret)
	endpoint.Stdout, endpoint.Stderr = &output, &output
	if err := endpoint.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = endpoint.Process.Kill()
		_ = endpoint.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	pgtest.Until(t, "the endpoint listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	r := newRig(t, fmt.Sprintf("callback_url = \"http://HUB\"\n[endpoint.mailer]\nurl = \"http://%s/\"\nqueues = {mail = 4}\nsecrets = [%q]\n", address, secret))
	args := func(kind string) int64 {
		var id int64
		if err := r.pool.QueryRow(t.Context(), `SELECT weir.enqueue('mail', $1, '{"account": 7}')`, kind).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	if got := r.until(args("welcome"), "completed"); got.Output != "sent to 7" {
		t.Errorf("%+v", got)
	}
	if got := r.until(args("import"), "completed"); got.Output != "imported 7" {
		t.Errorf("%+v", got)
	}
	if got := r.until(args("other"), "failed"); got.Error != "HTTP 410: no handler for other" {
		t.Errorf("%+v", got)
	}
}
