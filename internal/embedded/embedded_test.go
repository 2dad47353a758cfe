//go:build unix

package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// directory returns a directory that the server's user can reach. If the tests run as root, that user can't reach t.TempDir.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(pgtest.Home(), "weir-embedded-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := embedded.Remove(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, c embedded.Config) *embedded.Server {
	t.Helper()
	c.Fast = true
	c.Fetch = pgtest.Fetch
	s, err := embedded.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// query runs a statement that returns a single text.
func query(t *testing.T, s *embedded.Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var text string
	if err := conn.QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

func execute(t *testing.T, s *embedded.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// TestEachMajorVersionStarts: the oldest and the newest supported versions start with the given parameters.
func TestEachMajorVersionStarts(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			s := start(t, embedded.Config{Dir: directory(t), Major: major, Parameters: map[string]string{"work_mem": "7MB"}})
			if v := query(t, s, "SHOW server_version"); !strings.HasPrefix(v, strconv.Itoa(major)+".") {
				t.Errorf("the version is %s, want %d", v, major)
			}
			if v := query(t, s, "SHOW work_mem"); v != "7MB" {
				t.Errorf("work_mem is %s, want 7MB", v)
			}
			if v := query(t, s, "SELECT pg_catalog.current_setting('server_encoding') || ' ' || datcollate FROM pg_catalog.pg_database WHERE datname = 'postgres'"); v != "UTF8 C" {
				t.Errorf("encoding and locale are %s, want UTF8 C", v)
			}
		})
	}
}

// TestServerListensOnLoopbackAloneAndAsksForItsPassword: the server is reachable only through 127.0.0.1, and only with its password.
func TestServerListensOnLoopbackAloneAndAsksForItsPassword(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	s := start(t, embedded.Config{Dir: dir})
	if v := query(t, s, "SHOW listen_addresses"); v != "127.0.0.1" {
		t.Errorf("the server listens on %s, want 127.0.0.1", v)
	}
	if v := query(t, s, "SHOW unix_socket_directories"); v != "" {
		t.Errorf("the server has Unix sockets in %s, want none", v)
	}
	config, err := pgx.ParseConfig(s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	config.Password = "guess"
	if conn, err := pgx.ConnectConfig(t.Context(), config); err == nil {
		conn.Close(t.Context())
		t.Error("a wrong password was accepted")
	}
	info, err := os.Stat(filepath.Join(dir, "password"))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("the password file has mode %o, want 600", mode)
	}
}

// TestDataOutlivesStop: a server that is started again has the data of the stopped one.
func TestDataOutlivesStop(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	s := start(t, embedded.Config{Dir: dir})
	execute(t, s, "CREATE TABLE kept AS SELECT 1")
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pid := s.PID(); pid != 0 {
		t.Errorf("the PID of a stopped server is %d, want 0", pid)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
	again := start(t, embedded.Config{Dir: dir})
	query(t, again, "SELECT count(*)::text FROM kept")
}

// TestKilledServerRestartsOnItsPortAndData: after Kill, no process of the server is left, and Restart recovers its data on the same port.
func TestKilledServerRestartsOnItsPortAndData(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: directory(t)})
	execute(t, s, "CREATE TABLE kept AS SELECT 1")
	port, pid := s.Port(), s.PID()

	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	cut := make(chan error, 1)
	go func() { // ends when the kill interrupts the statement
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(600)")
		cut <- err
	}()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, cut, "the statement was cut off"); err == nil {
		t.Error("a statement completed after the postmaster was killed")
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the postmaster still exists: %v", err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Port() != port {
		t.Errorf("the port after the restart is %d, want %d", s.Port(), port)
	}
	query(t, s, "SELECT count(*)::text FROM kept")
	if err := s.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("Restart of a running server: %v", err)
	}
}

// TestPortInUseIsNamed: the error for a port in use contains the port.
func TestPortInUseIsNamed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	_, err = embedded.Start(t.Context(), embedded.Config{Dir: directory(t), Port: port, Fast: true})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d on 127.0.0.1 is in use", port)) {
		t.Fatalf("the error is %v, want the port", err)
	}
}

// TestStalePidFileOfAnyKindIsNoObstacle: the server starts whatever a killed server has left in postmaster.pid.
func TestStalePidFileOfAnyKindIsNoObstacle(t *testing.T) {
	t.Parallel()
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Process.Kill(); other.Wait() })
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}

	dir := directory(t)
	s := start(t, embedded.Config{Dir: dir})
	path := filepath.Join(dir, "data", "postmaster.pid")
	for name, text := range map[string]string{
		"another program":     fmt.Sprintf("%d\n%s/data\n1\n5432\n", other.Process.Pid, dir),
		"no process":          fmt.Sprintf("%d\n%s/data\n1\n5432\n", dead.Process.Pid, dir),
		"this process":        fmt.Sprintf("%d\n%s/data\n1\n5432\n", os.Getpid(), dir),
		"an empty file":       "",
		"as the kill left it": "-",
	} {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if text != "-" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestConcurrentStartsShareTheBinaries: processes that start at the same time fetch the binaries once.
func TestConcurrentStartsShareTheBinaries(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 2 {
		dir := directory(t)
		wg.Go(func() {
			s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Fast: true})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestSecondStartOnOneDirectoryIsRefused: the error contains the directory and the process that uses it.
func TestSecondStartOnOneDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	start(t, embedded.Config{Dir: dir})
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Fast: true})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d) runs the server in %s", os.Getpid(), dir)) {
		t.Fatalf("the error is %v, want the directory and its process", err)
	}
	if err := embedded.Remove(context.Background(), dir); err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("Remove of a running server's directory: %v", err)
	}
}

// TestClosedDirectoryIsNoObstacleToRoot: weir dev works below /root too, which the server's user can't enter.
func TestClosedDirectoryIsNoObstacleToRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only a server that root starts runs as another user")
	}
	closed := directory(t)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(closed, "weir")
	s := start(t, embedded.Config{Dir: dir})
	data := query(t, s, "SHOW data_directory")
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := embedded.Remove(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was not removed with the directory: %v", data, err)
	}
}

// TestDataOfAnotherMajorVersionIsNamed: the error for data of another major version contains both versions.
func TestDataOfAnotherMajorVersionIsNamed(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	s := start(t, embedded.Config{Dir: dir, Major: 14})
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Major: 18, Fast: true})
	if err == nil || !strings.Contains(err.Error(), "is of PostgreSQL 14, but this is PostgreSQL 18") {
		t.Fatalf("the error is %v, want both versions", err)
	}
}

// TestBadParameterIsNamed: the error for a parameter that the server refuses contains the server's reason.
func TestBadParameterIsNamed(t *testing.T) {
	t.Parallel()
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: directory(t), Fast: true, Parameters: map[string]string{"max_connections": "many"}})
	if err == nil || !strings.Contains(err.Error(), `"max_connections"`) {
		t.Fatalf("the error is %v, want the server's reason", err)
	}
}

// TestInstalledBinariesAreUsed: installed binaries are used unless another version is required.
func TestInstalledBinariesAreUsed(t *testing.T) {
	homes := embedded.Installed()
	if len(homes) == 0 {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "jit") {
			t.Fatal("WEIR_TEST_REQUIRE requires an installed PostgreSQL, but none was found")
		}
		t.Skip("no PostgreSQL is installed")
	}
	home := homes[0]
	major, err := strconv.Atoi(regexp.MustCompile(`\d+$`).FindString(home))
	if err != nil {
		t.Fatalf("the path %s does not end with a version", home)
	}
	t.Setenv("WEIR_POSTGRES", home)
	for name, c := range map[string]embedded.Config{
		"where no version is asked for": {}, "where theirs is": {Major: major}, "where they are named": {Binaries: home},
	} {
		c.Dir = directory(t)
		s := start(t, c)
		if v := query(t, s, "SHOW server_version"); !strings.HasPrefix(v, strconv.Itoa(major)+".") {
			t.Errorf("%s: the version is %s, want %d", name, v, major)
		}
	}
	_, err = embedded.Start(t.Context(), embedded.Config{Dir: directory(t), Binaries: home, Major: major + 1})
	if err == nil || !strings.Contains(err.Error(), "name a directory with that version, or no version") {
		t.Errorf("the version is not that of the named binaries: the error is %v", err)
	}
}

// TestWrongDirectoryOfBinariesIsNamed: the error for a directory without binaries says what it must contain.
func TestWrongDirectoryOfBinariesIsNamed(t *testing.T) {
	t.Setenv("WEIR_POSTGRES", directory(t))
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: directory(t)})
	if err == nil || !strings.Contains(err.Error(), "must name a directory with bin/postgres and bin/initdb") {
		t.Fatalf("the error is %v, want what the directory must contain", err)
	}
}

// TestServerDiesWithItsProcess: a server does not outlive a killed process. A process of this test binary starts one, and is killed.
func TestServerDiesWithItsProcess(t *testing.T) {
	t.Parallel()
	const role = "WEIR_EMBEDDED_TEST_DIR"
	if dir := os.Getenv(role); dir != "" {
		s, err := embedded.Start(context.Background(), embedded.Config{Dir: dir, Fast: true})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("started %d\n", s.PID())
		select {} // until killed
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("only Linux ends a child with its parent")
	}
	dir := directory(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), role+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var pid int
	if _, err := fmt.Fscanf(out, "started %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // until the kernel has released its lock
	// The next Start waits for the old server to end; if that server is still running, Start fails.
	begin := time.Now()
	start(t, embedded.Config{Dir: dir})
	t.Logf("took over from pid %d in %v", pid, time.Since(begin))
}
