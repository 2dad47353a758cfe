// Package python tests the client for Python against real servers.
package python

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	pytest(t, installed(t), url, url, "tests")
}

// TestTheClientInPythonKeepsItsPromisesInEachVersion runs those about enqueueing, working and subscribing in the versions of Python that README.md names
// besides the machine's own. From 3.12 on with Django 6, which has tasks of its own.
func TestTheClientInPythonKeepsItsPromisesInEachVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"3.10", "3.12", "3.13"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			python := importing(t, drivertest.PythonVersion(t, version, "tests/requirements.txt"))
			url := pgtest.Database(t)
			pytest(t, python, url, url, "tests/test_enqueue.py", "tests/test_worker.py", "tests/test_lease.py", "tests/test_subscribe.py", "tests/test_presence.py", "tests/test_tokens.py", "tests/test_timeout.py",
				"tests/test_django.py", "tests/test_fastapi.py", "tests/test_readme.py")
		})
	}
}

// TestTheClientInPythonKeepsItsPromisesAlone: where nothing but psycopg is installed, dataclasses and dicts do, and what needs more says what to install.
func TestTheClientInPythonKeepsItsPromisesAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pytest(t, importing(t, drivertest.Python(t, "tests/alone.txt")), url, url, "tests/without_pydantic.py")
}

// TestTheClientInPythonKeepsItsPromisesThroughPgBouncer runs them through PgBouncer in transaction mode.
func TestTheClientInPythonKeepsItsPromisesThroughPgBouncer(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pytest(t, installed(t), url, pgtest.Bouncer(t, url), "tests")
}

// pytest runs tests, beside a hub that anybody may use, and one that wants tokens.
func pytest(t *testing.T, python, database, through string, tests ...string) {
	t.Helper()
	var complaints pgtest.Log
	hub := hubtest.Run(t, database, &complaints, "--jobs").Address
	ofTokens := hubtest.WithTokens(t, database, &complaints, "--jobs").Address
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // shows what it has said before go test ends without a word
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{"-m", "pytest", "-v", "-p", "no:cacheprovider"}, tests...)...)
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "DATABASE_URL="+through, "WEIR_HUB_URL=http://"+hub, "WEIR_TOKEN_HUB_URL=http://"+ofTokens, "WEIR_TOKEN_SECRET="+hubtest.Secret,
		"PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\nthe hubs: %s", err, out, complaints.String())
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

// TestTheSourceInPythonIsTypedAndTidy runs mypy, also as if in the oldest version of Python, and ruff.
func TestTheSourceInPythonIsTypedAndTidy(t *testing.T) {
	t.Parallel()
	checked(t, "mypy --no-incremental", "mypy --no-incremental --python-version 3.10", "ruff check --no-cache", "ruff format --no-cache --check")
}

// TestTheSourceInPythonIsTypedInEachVersion runs mypy as if in the other versions of Python.
func TestTheSourceInPythonIsTypedInEachVersion(t *testing.T) {
	t.Parallel()
	checked(t, "mypy --no-incremental --python-version 3.12", "mypy --no-incremental --python-version 3.13")
}

// checked runs modules of Python that check the source.
func checked(t *testing.T, modules ...string) {
	t.Helper()
	python := installed(t)
	for _, args := range modules {
		if out, err := exec.CommandContext(t.Context(), python, append([]string{"-m"}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// installed returns the machine's interpreter, which imports the source here, and what its tests need.
func installed(t *testing.T) string {
	t.Helper()
	return importing(t, drivertest.Python(t, "tests/requirements.txt"))
}

// importing returns an interpreter that imports the source here as well.
func importing(t *testing.T, python string) string {
	t.Helper()
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
