package typescript

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/drivertest"
	"github.com/weir-pg/weir/internal/hubtest"
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
	example, err := os.ReadFile(filepath.Join("examples", "welcome.ts"))
	if err != nil {
		t.Fatal(err)
	}
	if blocks(t)[0] != string(example) {
		t.Error("the first example of README.md is not examples/welcome.ts")
	}
	output, end := program(t, dir, []string{"DATABASE_URL=" + pgtest.Database(t)}, "node", "out/examples/welcome.js")
	pgtest.Until(t, "the job runs", func() bool { return strings.Contains(output.String(), "job 1 welcomes account 7") })
	end()
}

// program starts a program in a directory. The function that it returns tells it to stop, and waits until it has ended.
func program(t *testing.T, dir string, env []string, name string, args ...string) (*pgtest.Log, func()) {
	t.Helper()
	output := &pgtest.Log{}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the program, which is told to stop, or killed
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if t.Failed() {
			t.Logf("%s:\n%s", cmd, output.String())
		}
	})
	return output, func() {
		t.Helper()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := pgtest.Receive(t, ended, "the program ends"); err != nil {
			t.Error(err)
		}
	}
}

// TestTheOrdersOfTheClientInTypeScriptArePacked: an order of the example is packed by a job, what tells its page of it is published with that, and the page and its modules are served.
func TestTheOrdersOfTheClientInTypeScriptArePacked(t *testing.T) {
	t.Parallel()
	dir, url := built(t), pgtest.Database(t)
	hub := hubtest.Run(t, url, &pgtest.Log{}, "--origin", "*").Address
	output, end := program(t, dir, []string{"DATABASE_URL=" + url, "HUB_URL=http://" + hub, "PORT=0"}, "node", "out/examples/orders.js")
	pgtest.Until(t, "the server listens", func() bool { return strings.HasPrefix(output.String(), "http://") })
	address := strings.TrimSpace(output.String())
	answer, err := http.Post(address+"/orders", "text/plain", strings.NewReader("a book"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	pool := pgtest.Pool(t, url)
	pgtest.Until(t, "the order is packed", func() (packed bool) {
		if err := pool.QueryRow(t.Context(), `SELECT packed FROM shop_order`).Scan(&packed); err != nil {
			t.Fatal(err)
		}
		return packed
	})
	for path, want := range map[string]string{
		address + "/":                    `from "/client/subscribe.js"`,
		address + "/client/subscribe.js": "export function subscribe(",
		"http://" + hub + "/v1/events?channel=shop.orders&position=0.0.0": "order 1 is packed: a book",
	} {
		answer, err := http.Get(path)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for lines := bufio.NewScanner(answer.Body); !found && lines.Scan(); {
			found = strings.Contains(lines.Text(), want)
		}
		if answer.Body.Close(); !found {
			t.Errorf("%s does not contain %s", path, want)
		}
	}
	end()
}

// TestTheClientInTypeScriptRunsInBunAndDeno: transactions, workers over SQL and at a hub, and subscriptions.
func TestTheClientInTypeScriptRunsInBunAndDeno(t *testing.T) {
	t.Parallel()
	dir, runtimes := built(t), drivertest.Node(t, filepath.Join("test", "runtimes", "package.json"))
	for _, command := range [][]string{{"bun", "run"}, {"deno", "run", "--allow-all", "--no-check"}} {
		t.Run(command[0], func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			cmd := exec.CommandContext(t.Context(), filepath.Join(runtimes, "node_modules", ".bin", command[0]), append(command[1:], "out/test/programs/runtime.js")...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "HUB_URL=http://"+hubtest.Run(t, url, &pgtest.Log{}, "--jobs").Address)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "works") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestTheExamplesOfTheClientInTypeScriptRun: all of README.md, checked by the compiler as they are, and run against a database, a hub and a page's server.
func TestTheExamplesOfTheClientInTypeScriptRun(t *testing.T) {
	t.Parallel()
	dir, url := built(t), pgtest.Database(t)
	hub := hubtest.Run(t, url, &pgtest.Log{}, "--jobs").Address
	others := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { // what the examples call besides
		fmt.Fprint(rw, strings.TrimPrefix(r.URL.Path, "/welcome/"))
	}))
	t.Cleanup(others.Close)
	here := strings.NewReplacer("https://hub.example.com", "http://"+hub, "https://mail.example.com", others.URL, "/my/hub-token", others.URL+"/my/hub-token")
	for i, block := range blocks(t) {
		if err := os.WriteFile(filepath.Join(dir, "test", "readme", fmt.Sprintf("example-%d.ts", i+1)), []byte(here.Replace(block)+"\nexport {};\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Into a directory of its own: other tests run what is in out.
	compile := exec.CommandContext(t.Context(), "node", "node_modules/typescript/bin/tsc", "--outDir", "out-readme", "--noUnusedLocals", "false")
	compile.Dir = dir
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// One example subscribes for ever, so the program is ended after its last test.
	run := exec.CommandContext(t.Context(), "node", "--test-reporter=spec", "--test-force-exit", "--test", "--test-timeout=300000", "out-readme/test/readme.test.js")
	run.Dir = dir
	ofTokens := hubtest.WithTokens(t, url, &pgtest.Log{}).Address
	run.Env = append(os.Environ(), "DATABASE_URL="+url, "HUB_URL=http://"+hub, "TOKEN_HUB_URL=http://"+ofTokens, "TOKEN_SECRET="+hubtest.Secret)
	out, err := run.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}

// TestSubscribeOfTheClientInTypeScriptIsSmall: with all that it imports, bundled for a browser and compressed, as README.md says.
func TestSubscribeOfTheClientInTypeScriptIsSmall(t *testing.T) {
	t.Parallel()
	dir, runtimes := built(t), drivertest.Node(t, filepath.Join("test", "runtimes", "package.json"))
	cmd := exec.CommandContext(t.Context(), filepath.Join(runtimes, "node_modules", ".bin", "bun"), "build", "--minify", "--target=browser", "dist/subscribe.js")
	cmd.Dir = dir
	bundle, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, err = w.Write(bundle)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`(\d+) kB bundled and compressed`).FindSubmatch(page)
	if said == nil {
		t.Fatal("README.md does not say how large subscribe is")
	}
	if most, _ := strconv.Atoi(string(said[1])); compressed.Len() > most*1000 || compressed.Len() < 1000 {
		t.Errorf("subscribe has %d bytes, README.md says %s kB", compressed.Len(), said[1])
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

// TestWhatBuildingTheClientInTypeScriptMakesIsIgnored: the commands with which README.md has it built in a clone leave nothing there that could be committed.
func TestWhatBuildingTheClientInTypeScriptMakesIsIgnored(t *testing.T) {
	t.Parallel()
	if err := exec.CommandContext(t.Context(), "git", "ls-files", "--error-unmatch", "README.md").Run(); err != nil {
		t.Skip("this is no clone of the repository, or there is no git")
	}
	for _, made := range []string{"node_modules", "package-lock.json", "dist", "weir-pg-client-0.0.0.tgz"} {
		if out, err := exec.CommandContext(t.Context(), "git", "check-ignore", made).CombinedOutput(); err != nil {
			t.Errorf("%s is not ignored: %v %s", made, err, out)
		}
	}
}
