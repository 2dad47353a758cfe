package deploy

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"maps"
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

// The command, and the program that downloads PostgreSQL, are built in the workspace, which this module is not part of.
func TestMain(m *testing.M) {
	if err := os.Unsetenv("GOWORK"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

const patience = 3 * time.Minute

// built builds the command in the same way as the Dockerfile.
func built(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir")
	line := strings.Join(instruction[*instructions.RunCommand](t, dockerfile(t)[0]).CmdLine, " ")
	if !strings.Contains(line, "-o /out/weir ") {
		t.Fatalf("the Dockerfile's build command is %q, want one that writes /out/weir", line)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.Replace(line, "/out/weir", path, 1))
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// TestWhatIsDeployedStartsAndAnswersWhereItIsAsked: every command in the deployment files starts with its flags and answers its probes.
func TestWhatIsDeployedStartsAndAnswersWhereItIsAsked(t *testing.T) {
	t.Parallel()
	weir := built(t)
	if runtime.GOOS == "linux" {
		binary, err := elf.Open(weir)
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		for _, p := range binary.Progs {
			if p.Type == elf.PT_INTERP {
				t.Error("the command is linked dynamically: the image contains no libraries")
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
	// Hubs and guards log the address at which they serve HTTP.
	serves = regexp.MustCompile(`(?:\bhttp=|"url":"http://)(127\.0\.0\.1:\d+)`)
)

// start runs a deployed command unchanged, except that it uses its own database, free loopback ports and the test's secrets.
func start(t *testing.T, weir string, what started) {
	dir := t.TempDir()
	for name, text := range map[string]string{"jwt-secret": strings.Repeat("secret", 8), "users.txt": `"app" "password"` + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var args []string
	for _, arg := range what.args {
		arg = listens.ReplaceAllString(arg, "$1=127.0.0.1:0")
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
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(log)
	asked := len(what.paths) == 0
	for lines.Scan() { // until the process ends, at the latest when ctx does
		fmt.Fprintln(&said, lines.Text())
		at := serves.FindStringSubmatch(lines.Text())
		if at == nil || asked {
			continue
		}
		asked = true
		for _, path := range what.paths {
			if err := answers(ctx, "http://"+at[1]+path); err != nil {
				t.Error(err)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	if err := cmd.Wait(); err != nil || !asked || t.Failed() {
		t.Errorf("weir %s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
}

// answers waits until a URL answers with status 200.
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
		<-time.After(20 * time.Millisecond) // readiness is not announced
	}
}

// mostExposed is the highest exposure level accepted from `systemd-analyze security`, in tenths: "20" is 2.0 of 10.
const mostExposed = "20"

// TestUnitsAreSystemdsAndHardened: systemd accepts the units, and rates how exposed they are within the limit.
func TestUnitsAreSystemdsAndHardened(t *testing.T) {
	t.Parallel()
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
		// The command is not installed here, and systemd requires an installed one.
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
