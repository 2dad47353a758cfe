// Package typescriptsql tests the example: a worker in TypeScript over plain SQL.
package typescriptsql

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestTheWorkerInTypeScriptDoesWhatWorkersDo: it passes the checks for workers in any language.
func TestTheWorkerInTypeScriptDoesWhatWorkersDo(t *testing.T) {
	t.Parallel()
	dir := compiled(t, nil)
	workertest.Run(t, func(url string) *exec.Cmd { return exec.Command("node", filepath.Join(dir, "worker.js"), url, "q") })
}
