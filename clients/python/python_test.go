// Package python tests the client for Python against real servers.
package python

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestAWorkerInPythonDoesWhatWorkersDo: a worker of the client with async functions passes the checks for workers in any language.
func TestAWorkerInPythonDoesWhatWorkersDo(t *testing.T) {
	t.Parallel()
	works(t, "tests/hello.py")
}

// TestAWorkerInPythonDoesWhatWorkersDoWithThreads: so does one with functions in threads.
func TestAWorkerInPythonDoesWhatWorkersDoWithThreads(t *testing.T) {
	t.Parallel()
	works(t, "tests/hello_threads.py")
}

func works(t *testing.T, program string) {
	python := installed(t)
	workertest.Run(t, func(url string) *exec.Cmd { return exec.Command(python, program, url) })
}

// TestTheClientInPythonKeepsItsPromises runs its tests, which are in Python, against a server.
func TestTheClientInPythonKeepsItsPromises(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pytest(t, url, url)
}

// TestTheClientInPythonKeepsItsPromisesThroughPgBouncer runs them through PgBouncer in transaction mode.
func TestTheClientInPythonKeepsItsPromisesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pytest(t, url, pgtest.Bouncer(t, url))
}

func pytest(t *testing.T, database, through string) {
	python := installed(t)
	var complaints bytes.Buffer
	hub := hubtest.Run(t, database, &complaints, "--jobs").Address
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // shows what it has said before go test ends without a word
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests")
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "DATABASE_URL="+through, "WEIR_HUB_URL=http://"+hub, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\nthe hub: %s", err, out, complaints.String())
	}
}

// TestTheClientInPythonPassesTheSuite: all scripts of clients/conformance, over SQL and over HTTP.
func TestTheClientInPythonPassesTheSuite(t *testing.T) {
	t.Parallel()
	python := installed(t)
	dir, err := filepath.Abs("conformance")
	if err != nil {
		t.Fatal(err)
	}
	for _, via := range []string{"sql", "http"} {
		t.Run("over "+via, func(t *testing.T) { // one after the other: each starts a server, and uses the machine whole
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=20m", "-run", "^TestTheSuite$", "../conformance", "-driver", python+" driver.py", "-dir", dir, "-via", via)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestTheSourceInPythonIsTypedAndTidy runs mypy, also as if in the versions of Python in which no test runs, and ruff.
func TestTheSourceInPythonIsTypedAndTidy(t *testing.T) {
	t.Parallel()
	python := installed(t)
	for _, args := range [][]string{
		{"mypy", "--no-incremental"}, {"mypy", "--no-incremental", "--python-version", "3.10"}, {"mypy", "--no-incremental", "--python-version", "3.13"},
		{"ruff", "check", "--no-cache"}, {"ruff", "format", "--no-cache", "--check"},
	} {
		if out, err := exec.CommandContext(t.Context(), python, append([]string{"-m"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// installed returns an interpreter that imports the source here, and what its tests need.
func installed(t *testing.T) string {
	t.Helper()
	python := drivertest.Python(t, "tests/requirements.txt")
	source, err := filepath.Abs("src")
	if err != nil {
		t.Fatal(err)
	}
	// A virtual environment of the test's own, on top of the shared one, with this package as pip would install it for editing.
	dir := t.TempDir()
	const script = `"$0" -m venv --without-pip "$1" && shared=$("$0" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
		own=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && printf '%s\n%s\n' "$2" "import site; site.addsitedir('$shared')" > "$own/weir.pth" &&
		mkdir "$own/weir_pg-0.dist-info" && printf 'Metadata-Version: 2.1\nName: weir-pg\nVersion: 0\n' > "$own/weir_pg-0.dist-info/METADATA" &&
		printf '[pytest11]\nweir = weir.pytest_plugin\n' > "$own/weir_pg-0.dist-info/entry_points.txt"`
	if out, err := exec.CommandContext(t.Context(), "sh", "-ec", script, python, dir, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "bin", "python")
}
