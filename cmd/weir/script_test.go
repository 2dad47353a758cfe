package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// suite runs the package's tests. Scripts start the same binary as weir.
type suite struct{ m *testing.M }

func (s suite) Run() int { return pgtest.Run(s.m) }

func TestMain(m *testing.M) {
	testscript.Main(suite{m}, map[string]func(){"weir": main})
}

// Each script in testdata/script has its own database in DATABASE_URL; that of migrate*.txtar is empty. In addition to testscript's own
// commands there are
//
//	code N command …         the command exits with code N
//	until regexp command …   the command is repeated until its output matches
//	json                     the last command printed one JSON value and nothing else
//	get file path            the HTTP server at the address in the file answers 200; stdout is the body
//	status N file path       the HTTP server at the address in the file, after a user and a password, answers N; stdout is the body
//	hashes folder            all jobs of the queue files have output the true hash of a file, and every file has one
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, func(name string) bool { return !wholeServer[name] })
}

// wholeServer lists the scripts whose commands inspect all sessions of the server.
var wholeServer = map[string]bool{"doctor": true, "guard": true}

func TestScriptsOfTheWholeServer(t *testing.T) {
	pgtest.Alone(t, "what they see depends on what others do on the server")
	runScripts(t, func(name string) bool { return wholeServer[name] })
}

// runScripts runs the scripts chosen by name: in parallel, except for those that inspect the whole server.
func runScripts(t *testing.T, chosen func(name string) bool) {
	t.Helper()
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	example, err := filepath.Abs("../../examples/sha256.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if !chosen(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if !wholeServer[name] {
				t.Parallel()
			}
			url := ""
			if strings.HasPrefix(name, "migrate") {
				url = pgtest.Empty(t)
			} else {
				url = pgtest.Database(t)
			}
			testscript.Run(t, testscript.Params{
				Files: []string{file},
				Setup: func(env *testscript.Env) error {
					env.Setenv("DATABASE_URL", url)
					env.Setenv("SHA256", example)
					// Where PostgreSQL's binaries are.
					env.Setenv("HOME", os.Getenv("HOME"))
					env.Setenv("XDG_CACHE_HOME", os.Getenv("XDG_CACHE_HOME"))
					env.Setenv("WEIR_POSTGRES", os.Getenv("WEIR_POSTGRES"))
					env.Defer(func() {
						// The server's user may not have access to the work directory, so its data is elsewhere.
						for _, home := range []string{".", "other", "other/set-up"} {
							dir := filepath.Join(env.WorkDir, home, devDir)
							if !exists(dir) {
								continue
							}
							ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
							defer cancel()
							if err := embedded.Remove(ctx, dir); err != nil {
								t.Error(err)
							}
						}
					})
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"code": code, "until": until, "json": onlyJSON, "hashes": hashes, "get": get, "status": status,
				},
			})
		})
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func code(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// until repeats a command, because nothing notifies it: it tests what the command prints, too.
func until(ts *testscript.TestScript, _ bool, args []string) {
	const bound = time.Minute
	wanted, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for begin := time.Now(); ; {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && wanted.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Since(begin) > bound {
			ts.Fatalf("not seen in %s: %s", bound, args[0])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func get(ts *testscript.TestScript, _ bool, args []string) {
	status(ts, false, append([]string{"200"}, args...))
}

func status(ts *testscript.TestScript, _ bool, args []string) {
	user, at, ok := strings.Cut(strings.TrimSpace(ts.ReadFile(args[1])), "@")
	if !ok {
		user, at = "", user
	}
	request, err := http.NewRequest(http.MethodGet, "http://"+at+args[2], nil)
	ts.Check(err)
	if name, password, ok := strings.Cut(user, ":"); ok {
		request.SetBasicAuth(name, password)
	}
	client := http.Client{Timeout: time.Minute}
	response, err := client.Do(request)
	ts.Check(err)
	defer response.Body.Close()
	if strconv.Itoa(response.StatusCode) != args[0] {
		ts.Fatalf("%s answers %s, want %s", args[2], response.Status, args[0])
	}
	_, err = io.Copy(ts.Stdout(), response.Body)
	ts.Check(err)
}

func onlyJSON(ts *testscript.TestScript, _ bool, _ []string) {
	decoder := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var value any
	ts.Check(decoder.Decode(&value))
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		ts.Fatalf("something follows the JSON value")
	}
}

func hashes(ts *testscript.TestScript, _ bool, args []string) {
	want := map[string]bool{}
	root := ts.MkAbs(".")
	ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		want[fmt.Sprintf("%x  %s", sha256.Sum256(text), name)] = true
		return err
	}))
	ts.Check(ts.Exec("weir", "jobs", "list", "--queue", "files", "--state", "completed", "--limit", "10000", "--json"))
	var jobs []weir.JobInfo
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &jobs))
	for _, j := range jobs {
		if j.Output == nil || !want[*j.Output] {
			ts.Fatalf("job %d with args %s has output %v, which is no file's", j.ID, j.Args, j.Output)
		}
		delete(want, *j.Output)
	}
	if len(want) > 0 {
		ts.Fatalf("no job for %v", want)
	}
}

func TestHelpFitsAScreenAndEachCommandHasAnExample(t *testing.T) {
	t.Parallel()
	const lines = 24
	help := func(args ...string) string {
		var out, errs bytes.Buffer
		if code := run(append(args, "--help"), strings.NewReader(""), &out, &errs); code != exitOK || errs.Len() > 0 {
			t.Fatalf("weir %v --help exits with %d: %s", args, code, errs.String())
		}
		return out.String()
	}
	top := help()
	if n := strings.Count(top, "\n"); n > lines {
		t.Errorf("weir --help has %d lines, more than %d:\n%s", n, lines, top)
	}
	for _, command := range []string{
		"dev", "migrate", "migrate up", "migrate down", "migrate status", "enqueue", "work", "jobs", "jobs list", "jobs show", "jobs cancel",
		"jobs retry", "jobs delete", "jobs move", "operations", "operations list", "operations stop", "schedules", "schedules list", "schedules show", "schedules set", "schedules drop", "schedules pause", "schedules resume", "schedules run", "schedules next", "limits", "limits list", "limits set", "limits clear", "flows", "flows list", "flows show", "flows create", "flows seal", "flows cancel", "flows retry", "queues", "queues list", "queues pause", "queues resume", "workers", "bench", "completion", "version",
		"serve", "publish", "listen", "relay", "relay run", "relay list", "relay replay", "relay forget", "hubs", "clients", "clients disconnect", "clients revoke", "storage", "doctor", "guard", "lab",
	} {
		words := strings.Fields(command)
		if _, also, _ := strings.Cut(top, "\nAlso: "); !strings.Contains(top, "\n  "+words[0]+" ") && !strings.Contains(also, words[0]) {
			t.Errorf("weir --help does not name %s", words[0])
		}
		if text := help(words...); !strings.Contains(text, "Example") && words[0] != "bench" || !strings.Contains(text, "weir "+words[0]) {
			t.Errorf("weir %s --help has no example:\n%s", command, text)
		}
	}
}
