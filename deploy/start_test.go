package deploy

import (
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"github.com/weir-pg/weir/internal/pgtest"
)

// The command is built in the workspace, which this module is not part of, and so is what fetches PostgreSQL.
func TestMain(m *testing.M) {
	if err := os.Unsetenv("GOWORK"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

const patience = 3 * time.Minute

// built builds the command as the Dockerfile does.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir")
	line := strings.Join(instruction[*instructions.RunCommand](t, dockerfile(t)[0]).CmdLine, " ")
	if !strings.Contains(line, "-o /out/weir ") {
		t.Fatalf("the Dockerfile builds by %q", line)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.Replace(line, "/out/weir", path, 1))
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestWhatIsDeployedStartsAndAnswersWhereItIsAsked(t *testing.T) {
	weir := built(t)
	if runtime.GOOS == "linux" {
		binary, err := elf.Open(weir)
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		for _, p := range binary.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("the command is linked dynamically: there is nothing to link with in the image")
			}
		}
	}
	all := compose(t)
	maps.Copy(all, kubernetes(t))
	maps.Copy(all, units(t))
	for name, what := range all {
		t.Run(name, func(t *testing.T) { start(t, weir, what) })
	}
}

var (
	listens = regexp.MustCompile(`^(--listen-[a-z]+)=.*:\d+$`)
	secrets = regexp.MustCompile(`=(/run/secrets/weir|\$\{CREDENTIALS_DIRECTORY\})/(.+)$`)
)

// start runs what is deployed on a database of its own, at free ports of loopback and with secrets of the test's, and in no other way different.
func start(t *testing.T, weir string, what started) {
	dir, port := t.TempDir(), ""
	for name, text := range map[string]string{"jwt-secret": strings.Repeat("secret", 8), "users.txt": `"app" "password"` + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var args []string
	for _, arg := range what.args {
		if m := listens.FindStringSubmatch(arg); m != nil {
			free := freePort(t)
			if m[1] == "--listen-http" || m[1] == "--listen-metrics" {
				port = free
			}
			arg = m[1] + "=127.0.0.1:" + free
		}
		args = append(args, secrets.ReplaceAllString(arg, "="+dir+"/$2"))
	}
	database := pgtest.Empty
	if what.args[0] != "migrate" {
		database = pgtest.Database
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, weir, args...)
	cmd.Env = []string{"DATABASE_URL=" + database(t), "PATH=/nowhere"}
	cmd.Dir = dir
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process, which ctx ends at last; received below
	failed := false
	for _, path := range what.paths {
		if err := answers(ctx, "http://127.0.0.1:"+port+path); err != nil {
			t.Error(err)
			failed = true
		}
	}
	if len(what.paths) > 0 {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; failed || err != nil {
		t.Errorf("weir %s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
}

// answers waits until a URL is answered by 200.
func answers(ctx context.Context, url string) error {
	for end := time.Now().Add(time.Minute); ; {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s: %s", url, response.Status)
		}
		if time.Now().After(end) {
			return err
		}
		<-time.After(20 * time.Millisecond) // nobody tells when it listens
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// mostExposed is what systemd may say at most of how much a unit leaves open to whoever takes it over: tenths, of 100.
const mostExposed = "20"

func TestUnitsAreSystemdsAndHardened(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	files, err := filepath.Glob("systemd/*.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// The command is not installed here, and systemd wants one that is.
		copied := filepath.Join(t.TempDir(), filepath.Base(file))
		if err := os.WriteFile(copied, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/weir", "/bin/true")), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"verify", copied}, {"security", "--offline=true", "--threshold=" + mostExposed, copied}} {
			if out, err := exec.CommandContext(t.Context(), analyze, args...).CombinedOutput(); err != nil || args[0] == "verify" && len(out) > 0 {
				t.Errorf("%s: systemd-analyze %s: %v\n%s", file, args[0], err, out)
			}
		}
	}
}
