package typescript

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// blocks are the examples of the package's page.
func blocks(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, block := range regexp.MustCompile("(?ms)^```ts\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		all = append(all, block[1])
	}
	if len(all) < 10 {
		t.Fatalf("README.md has %d examples", len(all))
	}
	return all
}

// TestTheFirstExampleOfTheClientInTypeScriptRuns: it is the program in examples, and does what the page says.
func TestTheFirstExampleOfTheClientInTypeScriptRuns(t *testing.T) {
	t.Parallel()
	dir := built(t)
	program, err := os.ReadFile(filepath.Join("examples", "welcome.ts"))
	if err != nil {
		t.Fatal(err)
	}
	if blocks(t)[0] != string(program) {
		t.Error("the first example of README.md is not examples/welcome.ts")
	}
	var output pgtest.Log
	cmd := exec.Command("node", filepath.Join(dir, "out", "examples", "welcome.js"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pgtest.Database(t))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the program, which is told to stop, or killed
	defer func() { _ = cmd.Process.Kill() }()
	pgtest.Until(t, "the job runs", func() bool { return strings.Contains(output.String(), "job 1 welcomes account 7") })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, ended, "the program ends"); err != nil {
		t.Errorf("%v\n%s", err, output.String())
	}
}

// TestTheExamplesOfTheClientInTypeScriptCompile: all of README.md.
func TestTheExamplesOfTheClientInTypeScriptCompile(t *testing.T) {
	t.Parallel()
	dir := built(t)
	for i, block := range blocks(t) {
		if err := os.WriteFile(filepath.Join(dir, "test", "readme", fmt.Sprintf("example-%d.ts", i+1)), []byte(block+"\nexport {};\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("node", "node_modules/typescript/bin/tsc", "--noEmit", "--noUnusedLocals", "false")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTheClientInTypeScriptIsSmall: what is published is less than 50 kB, needs nothing, and contains no test.
func TestTheClientInTypeScriptIsSmall(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("npm", "pack", "--ignore-scripts")
	cmd.Dir = built(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	packed, err := filepath.Glob(filepath.Join(cmd.Dir, "weir-pg-client-*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatal(packed, err)
	}
	size, err := os.Stat(packed[0])
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%d bytes", size.Size()); size.Size() >= 50_000 {
		t.Errorf("the package has %d bytes, want less than 50000", size.Size())
	}
	manifest, err := os.ReadFile("package.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(manifest), `"dependencies"`) || strings.Contains(string(manifest), `"peerDependencies"`) {
		t.Error("package.json has dependencies")
	}
	list, err := exec.Command("tar", "tzf", packed[0]).Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(string(list)) {
		if !regexp.MustCompile(`^package/(dist/[a-z-]+\.(js|d\.ts)|README\.md|package\.json)\n$`).MatchString(name) {
			t.Errorf("the package contains %s", name)
		}
	}
}
