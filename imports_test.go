package weir_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/weir-pg/weir"

// listed is the output of go list for a package. The imports of tests are left out, so tests may import anything.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string // by the package itself
	Deps       []string // including those of its imports
	Dir        string
	GoFiles    []string
	EmbedFiles []string
}

// list returns the packages of all modules of this repository by their path below the root ("" is the root), and all other packages by
// their import path.
func list(t *testing.T) (own, all map[string]listed) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps,Dir,GoFiles,EmbedFiles", "work")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	own, all = map[string]listed{}, map[string]listed{}
	for decoder := json.NewDecoder(out); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
		if path, ok := inModule(p.ImportPath); ok {
			own[path] = p
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	return own, all
}

// inModule returns the path below the root of one of our own packages.
func inModule(importPath string) (string, bool) {
	if importPath == module {
		return "", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

func within(importPath string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool {
		return importPath == tree || strings.HasPrefix(importPath, tree+"/")
	})
}

// qualified prefixes paths with the module.
func qualified(paths []string) []string {
	all := make([]string, len(paths))
	for i, path := range paths {
		all[i] = module + "/" + path
	}
	return all
}

// TestPackagesImportOnlyWhatTheyMay checks the rules of ARCHITECTURE.md, "Packages, and who may import whom".
func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	const pgx = "github.com/jackc/pgx/v5"
	own, all := list(t)
	if len(own) == 0 {
		t.Fatal("go list found no package of the module")
	}
	standard := func(path string) bool { return all[path].Standard }

	// These packages import only the standard library and the trees listed here.
	for path, trees := range map[string][]string{
		"":                        {pgx, module + "/internal"},
		"weircrypt":               {module, module + "/internal/sealed"},
		"weirui":                  {pgx, module},
		"weirtest":                {pgx, module},
		"weirrelay":               {pgx, module},
		"weirrelay/kafkarelay":    {module, "github.com/twmb/franz-go"},
		"weirrelay/natsrelay":     {module, "github.com/nats-io"},
		"weirrelay/redisrelay":    {module, "github.com/redis/go-redis"},
		"schema":                  {pgx},
		"internal/store":          {pgx},
		"internal/testdb":         {pgx, module + "/schema"},
		"internal/model":          nil,
		"cmd/internal/simulation": nil,
	} {
		for _, imported := range own[path].Imports {
			if !standard(imported) && !within(imported, trees...) {
				t.Errorf("%s/%s imports %s: it may import only the standard library and %s", module, path, imported, strings.Join(trees, ", "))
			}
		}
	}

	// Users of the library depend on pgx and its dependencies, and on nothing else.
	if pool, ok := all[pgx+"/pgxpool"]; ok {
		for _, dep := range slices.Concat(own[""].Deps, own["weirtest"].Deps, own["weirui"].Deps, own["weirrelay"].Deps) {
			if !standard(dep) && !within(dep, module, pgx) && !slices.Contains(pool.Deps, dep) {
				t.Errorf("the library depends on %s: find the internal package that imports it with go list -deps", dep)
			}
		}
	}

	for _, imported := range own["weirotel"].Imports {
		if !standard(imported) && imported != module && (!within(imported, "go.opentelemetry.io/otel") || within(imported, "go.opentelemetry.io/otel/sdk")) {
			t.Errorf("weirotel imports %s: it may import only the library and OpenTelemetry's API", imported)
		}
	}

	for path, p := range own {
		if slices.Contains(p.Imports, module+"/internal/model") {
			t.Errorf("%s imports internal/model, which is only for its own tests", path)
		}
		if slices.Contains(p.Imports, module+"/cmd/internal/simulation") {
			t.Errorf("%s imports cmd/internal/simulation, which is only for tests", path)
		}
	}

	// Only commands, and the package that runs tests, parse flags and catch signals.
	process := []string{"flag", "os/signal", "github.com/alecthomas/kong"}
	for path, p := range own {
		for _, imported := range p.Imports {
			if !within(path, "cmd/weir", "cmd/bench", "internal/pgtest") && within(imported, process...) {
				t.Errorf("%s imports %s: only the commands may", path, imported)
			}
		}
		if strings.Contains("/"+path, "/internal/") && !within(path, "cmd/internal/engine", "cmd/bench/internal/jobs", "cmd/internal/ui", "cmd/internal/oidc", "cmd/internal/relay") && slices.Contains(p.Deps, module) {
			t.Errorf("%s imports the root package: of the internal packages, only those that measure it may, and those of the web UI and of relays, which are made of it", path)
		}
	}

	for _, imported := range own["internal/hub"].Imports {
		if within(imported, "net") {
			t.Errorf("internal/hub imports %s: the hub must not use sockets", imported)
		}
	}

	// Transports send commands through the hub and contain no SQL; packages that inspect users' databases do not depend on Weir's.
	for path, never := range map[string][]string{
		"cmd/internal/pgwire": {"internal/store", "cmd/internal/server"},
		"cmd/internal/web":    {"internal/store", "cmd/internal/server"},
		"internal/hub":        {"internal/worker", "cmd/internal/pgwire", "cmd/internal/web", "cmd/internal/server", "cmd/internal/cluster"},
		"cmd/internal/guard":  {"internal/store", "internal/hub"},
		"cmd/internal/doctor": {"internal/store", "internal/hub"},
	} {
		for _, imported := range own[path].Imports {
			if within(imported, qualified(never)...) {
				t.Errorf("%s imports %s", path, imported)
			}
		}
	}

	for _, pair := range [][2]string{{"cmd/internal/pgwire", "cmd/internal/web"}, {"cmd/internal/web", "cmd/internal/pgwire"}} {
		for path, p := range own {
			if within(path, pair[0]) && slices.ContainsFunc(p.Deps, func(dep string) bool { return within(dep, module+"/"+pair[1]) }) {
				t.Errorf("%s imports %s: a transport never imports the other", path, pair[1])
			}
		}
	}
}

// graph returns the modules of a program with these lines in its go.mod, including those that only take part in the selection of versions.
func graph(t *testing.T, lines ...string) (modules []string) {
	t.Helper()
	dir := t.TempDir()
	text := "module example.com/user\n\ngo 1.26.0\n\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-mod=mod", "-f", "{{.Path}}", "all")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -m all: %v: %s", err, stderr.String())
	}
	return strings.Fields(string(out))
}

// required returns the lines by which a module requires others directly, except those that start with one of these paths.
func required(t *testing.T, file string, except ...string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(string(read(t, file))) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) == 2 && strings.HasPrefix(fields[1], "v") && !within(fields[0], except...) {
			lines = append(lines, "require "+fields[0]+" "+fields[1])
		}
	}
	return lines
}

// TestUsersOfTheLibraryGetPgxAlone: the module graph of a program that imports the library has pgx and its dependencies, and nothing else,
// not even for version selection. One that imports weirotel has OpenTelemetry's API too, and not its SDK.
func TestUsersOfTheLibraryGetPgxAlone(t *testing.T) {
	t.Parallel()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file  string   // what the module requires itself
		allow []string // these, with what they bring, and nothing else
		lines []string // of the user's go.mod
	}{
		{"go.mod", []string{"github.com/jackc/pgx/v5"}, []string{"require " + module + " v0.0.0", "replace " + module + " => " + here}},
		{"weirotel/go.mod", []string{"github.com/jackc/pgx/v5", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace"}, []string{
			"require " + module + " v0.0.0", "replace " + module + " => " + here,
			"require " + module + "/weirotel v0.0.0", "replace " + module + "/weirotel => " + here + "/weirotel",
		}},
	} {
		direct := required(t, c.file, module)
		for _, line := range direct {
			if path := strings.Fields(line)[1]; !slices.Contains(c.allow, path) {
				t.Errorf("%s requires %s: it may require only %s", c.file, path, strings.Join(c.allow, ", "))
			}
		}
		want, got := graph(t, direct...), graph(t, c.lines...)
		for _, m := range got {
			if !within(m, module) && !slices.Contains(want, m) {
				t.Errorf("%s: users get %s in their build", c.file, m)
			}
		}
		if len(direct) != len(c.allow) || len(got) < 3 {
			t.Errorf("%s requires %v, and the graph is %v: the test proves nothing", c.file, direct, got)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
