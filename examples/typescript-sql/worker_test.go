// Package typescriptsql tests the example: a worker in TypeScript over plain SQL.
package typescriptsql

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestTheWorkerInTypeScriptDoesWhatWorkersDo: it passes the checks for workers in any language.
func TestTheWorkerInTypeScriptDoesWhatWorkersDo(t *testing.T) {
	t.Parallel()
	modules, dir := filepath.Join(drivertest.Node(t, "package.json"), "node_modules"), t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"package.json", "tsconfig.json", "worker.ts"} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "node", filepath.Join(modules, "typescript", "bin", "tsc"), "--project", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	workertest.Run(t, func(url string) *exec.Cmd { return exec.Command("node", filepath.Join(dir, "worker.js"), url, "q") })
}
