// Package pythonsql tests the examples: workers in Python over plain SQL.
package pythonsql

import (
	"os/exec"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestTheWorkerInPythonDoesWhatWorkersDo: the worker on psycopg passes the checks for workers in any language.
func TestTheWorkerInPythonDoesWhatWorkersDo(t *testing.T) {
	t.Parallel()
	run(t, "worker.py")
}

// TestTheAsyncWorkerInPythonDoesWhatWorkersDo: so does the worker on asyncpg.
func TestTheAsyncWorkerInPythonDoesWhatWorkersDo(t *testing.T) {
	t.Parallel()
	run(t, "worker_asyncpg.py")
}

func run(t *testing.T, script string) {
	python := drivertest.Python(t, "requirements.txt")
	workertest.Run(t, func(url string) *exec.Cmd { return exec.Command(python, script, url, "q") })
}
