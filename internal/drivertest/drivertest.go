// Package drivertest installs drivers of other languages for tests, unmodified, from their registries.
//
// They are installed in the user's cache. The first time takes a while, so these tests run only on request:
//
//	WEIR_TEST_DRIVERS=1 go test ./cmd/internal/pgwire ./cmd/internal/push ./cmd/internal/relay ./cmd/internal/browser ./examples/python-sql ./examples/typescript-sql ./clients/... ./internal/moving
//
// Tests whose tools are missing are skipped, unless WEIR_TEST_REQUIRE names the tool: psql, python3, python3.10, python3.12, python3.13, node, npm, java, javac, mvn.
package drivertest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// Want skips the test unless tests of drivers were requested.
func Want(t testing.TB) {
	t.Helper()
	if os.Getenv("WEIR_TEST_DRIVERS") == "" {
		t.Skip("drivers are only tested if WEIR_TEST_DRIVERS is set")
	}
}

// Tool returns the path of a program.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), name) {
			t.Fatalf("%s is required by WEIR_TEST_REQUIRE but not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return path
}

// Installed returns a directory of the cache that was filled by install once. A changed recipe makes another directory.
func Installed(t testing.TB, name, recipe string, install func(dir string) *exec.Cmd) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(recipe + runtime.GOOS + runtime.GOARCH)) // some drivers are built for the platform
	dir := filepath.Join(cache, "weir-test-drivers", fmt.Sprintf("%s-%x", name, sum[:8]))
	if _, err := os.Stat(filepath.Join(dir, "complete")); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	making, err := os.MkdirTemp(filepath.Dir(dir), name+"-making-") // tests of another package may install it at the same time
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(making)
	if out, err := install(making).CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v\n%s", name, err, out)
	}
	if err := os.WriteFile(filepath.Join(making, "complete"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(making, dir); err != nil {
		if _, other := os.Stat(filepath.Join(dir, "complete")); other != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Python returns an interpreter with the packages of a requirements file.
func Python(t testing.TB, requirements string) string {
	t.Helper()
	Want(t)
	return pythonWith(t, Tool(t, "python3"), "", requirements)
}

// PythonVersion is Python with an interpreter of a version, such as 3.13, that is on the PATH or was installed by pyenv. Without one the test is skipped.
func PythonVersion(t testing.TB, version, requirements string) string {
	t.Helper()
	Want(t)
	root := os.Getenv("PYENV_ROOT")
	if root == "" {
		root = filepath.Join(os.Getenv("HOME"), ".pyenv")
	}
	found, err := filepath.Glob(filepath.Join(root, "versions", version+".*", "bin", "python3"))
	if err != nil {
		t.Fatal(err)
	}
	name := "python" + version
	for _, python := range append([]string{name}, found...) {
		// A shim of pyenv is on the PATH even for versions that are not in use, and fails.
		if exec.CommandContext(t.Context(), python, "-c", "import ensurepip, venv").Run() == nil {
			return pythonWith(t, python, version, requirements)
		}
	}
	return Tool(t, name)
}

// pythonWith returns an interpreter that has the packages of a requirements file. Each version installs its own.
func pythonWith(t testing.TB, python, version, requirements string) string {
	t.Helper()
	dir := Installed(t, "python"+version, read(t, requirements), func(dir string) *exec.Cmd {
		const script = `"$0" -m venv "$1/venv"; "$1/venv/bin/python" -m pip install --quiet -r "$2"`
		return exec.CommandContext(t.Context(), "sh", "-ec", script, python, dir, requirements)
	})
	return filepath.Join(dir, "venv", "bin", "python")
}

// Node returns a directory with the node_modules of a package.json.
func Node(t testing.TB, manifest string) string {
	t.Helper()
	Want(t)
	_, npm := Tool(t, "node"), Tool(t, "npm")
	manifest, err := filepath.Abs(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return Installed(t, "node", read(t, manifest), func(dir string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", `cp "$1" . && "$0" install --no-audit --no-fund --no-package-lock`, npm, manifest)
		cmd.Dir = dir
		return cmd
	})
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Example returns the only block of code in a language on a page of the documentation.
func Example(t testing.TB, page, language string) string {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(read(t, page), -1)
	if len(blocks) != 1 {
		t.Fatalf("%s has %d blocks of %s, want one", page, len(blocks), language)
	}
	return blocks[0][1]
}
