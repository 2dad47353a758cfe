package pgtest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// BouncerSessions is the number of sessions that a Bouncer has at the server.
const BouncerSessions = 2

// Bouncer starts a real PgBouncer in transaction mode in front of a database, and returns the URL through it. PgBouncer has fewer server
// connections than a worker has connections, so clients change servers all the time. If PgBouncer is not installed, the test is skipped,
// unless WEIR_TEST_REQUIRE names it.
func Bouncer(t testing.TB, target string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "pgbouncer") {
			t.Fatal("pgbouncer is required by WEIR_TEST_REQUIRE but not installed")
		}
		t.Skip("pgbouncer is not installed")
	}
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := to.User.Password()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()

	dir, err := os.MkdirTemp("", "weir-pgbouncer-") // not t.TempDir, which another user can't enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users.txt")
	for path, text := range map[string]string{users: `"someone" "secret"` + "\n", config: fmt.Sprintf(`[databases]
weir = host=%s port=%s dbname=%s user=%s password=%s pool_size=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
`, to.Hostname(), to.Port(), strings.TrimPrefix(to.Path, "/"), to.User.Username(), password, BouncerSessions, port, users)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{config}
	if os.Getuid() == 0 { // it refuses to run as root
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		for _, path := range []string{dir, users, config} {
			if err := os.Chown(path, uid, -1); err != nil {
				t.Fatal(err)
			}
		}
		args = append([]string{"-u", "nobody"}, args...)
	}
	cmd := exec.Command(program, args...)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	through := fmt.Sprintf("postgres://someone:secret@127.0.0.1:%d/weir?sslmode=disable", port)
	Eventually(t, func() error { // it does not report when it listens
		conn, err := pgx.Connect(t.Context(), through+"&default_query_exec_mode=exec")
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	})
	return through
}
