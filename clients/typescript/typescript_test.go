// Package typescript tests Weir's client for TypeScript: its own tests, which run in Node.js, and those that workers in all languages pass.
package typescript

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/workertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestTheClientInTypeScriptKeepsItsPromises: each file of test/, with a database of its own. The hub without tokens is below a path.
func TestTheClientInTypeScriptKeepsItsPromises(t *testing.T) {
	t.Parallel()
	dir := built(t)
	for file, needs := range map[string]struct{ hub, bouncer bool }{
		"enqueue": {},
		"worker":  {bouncer: true},
		"kill":    {bouncer: true},
		"hub":     {hub: true},
		"lease":   {},
		"webhook": {},
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			cmd := exec.CommandContext(t.Context(), "node", "--test", "--test-reporter=spec", "--test-timeout=600000", filepath.Join(dir, "out", "test", file+".test.js"))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
			if needs.hub {
				hub, ofTokens := hubtest.Run(t, url, &pgtest.Log{}, "--jobs").Address, hubtest.WithTokens(t, url, &pgtest.Log{}).Address
				cmd.Env = append(cmd.Env, "HUB_URL="+hubtest.Below(t, hub, "/databases/app"), "TOKEN_HUB_URL=http://"+ofTokens, "TOKEN_SECRET="+hubtest.Secret)
			}
			if needs.bouncer {
				cmd.Env = append(cmd.Env, "BOUNCER_URL="+pgtest.Bouncer(t, url))
			}
			out, err := cmd.CombinedOutput()
			if t.Logf("%s", out); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheClientInTypeScriptDoesWhatWorkersDo: on pg and on postgres.js, it passes the checks for workers in any language.
func TestTheClientInTypeScriptDoesWhatWorkersDo(t *testing.T) {
	t.Parallel()
	dir := built(t)
	for _, driver := range []string{"pg", "postgres"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			workertest.Run(t, func(url string) *exec.Cmd {
				return exec.Command("node", filepath.Join(dir, "out", "test", "programs", "worker.js"), url, "q", driver)
			})
		})
	}
}

// TestTheClientInTypeScriptPassesTheSuite: all scripts of clients/conformance, over SQL and over a WebSocket; by long polling, those in which something is killed, cancelled or lost.
func TestTheClientInTypeScriptPassesTheSuite(t *testing.T) {
	t.Parallel()
	dir := built(t)
	for name, way := range map[string]struct{ via, env, scripts string }{
		"SQL": {"sql", "", "^TestTheSuite$"}, "a WebSocket": {"http", "", "^TestTheSuite$"}, "long polling": {"http", "WEIR_POLLS=1 ", "^TestTheSuite$/.*/(killed|cancel|lost)"},
	} {
		t.Run("over "+name, func(t *testing.T) { // one after the other: each starts a server, and uses the machine whole
			driver := way.env + "node out/conformance/driver.js"
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=20m", "-run", way.scripts, "../conformance", "-driver", driver, "-dir", dir, "-via", way.via)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

var building struct {
	sync.Mutex
	dir string
}

// built compiles the package, and what tests it, once for all tests, and returns the directory.
func built(t *testing.T) string {
	t.Helper()
	modules := filepath.Join(drivertest.Node(t, "package.json"), "node_modules")
	building.Lock()
	defer building.Unlock()
	if building.dir != "" {
		return building.dir
	}
	dir, err := os.MkdirTemp("", "weir-typescript-")
	if err != nil {
		t.Fatal(err)
	}
	pgtest.AtEnd(func() error { return os.RemoveAll(dir) })
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"src", "test", "examples", "conformance"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"package.json", "README.md", "tsconfig.json", "tsconfig.build.json"} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tsc := filepath.Join(modules, "typescript", "bin", "tsc")
	for _, step := range [][]string{
		{filepath.Join(modules, "prisma", "build", "index.js"), "generate", "--schema", "test/prisma/schema.prisma"},
		{tsc, "--project", "tsconfig.build.json"},
		{tsc},
	} {
		cmd := exec.CommandContext(t.Context(), "node", step...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PRISMA_SCHEMA_ENGINE_BINARY=/bin/true") // which generating does not use, but would download
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", step, err, out)
		}
	}
	building.dir = dir
	return dir
}
