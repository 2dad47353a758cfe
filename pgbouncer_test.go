package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// bouncer starts a real PgBouncer in transaction mode in front of a database, with fewer server
// connections than a worker has, so that they change hands all the time.
func bouncer(t *testing.T, target string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "pgbouncer") {
			t.Fatal("pgbouncer is required here and not installed")
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

	dir, err := os.MkdirTemp("", "weir-pgbouncer-") // not t.TempDir: another user must get in
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	users := filepath.Join(dir, "users.txt")
	config := fmt.Sprintf(`[databases]
weir = host=%s port=%s dbname=%s user=%s password=%s pool_size=2
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
`, to.Hostname(), to.Port(), strings.TrimPrefix(to.Path, "/"), to.User.Username(), password, port, users)
	write(t, filepath.Join(dir, "pgbouncer.ini"), config)
	write(t, users, `"someone" "secret"`+"\n")
	args := []string{filepath.Join(dir, "pgbouncer.ini")}
	if os.Getuid() == 0 { // it refuses to run as root
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		for _, path := range []string{dir, users, args[0]} {
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
	eventually(t, func() error {
		conn, err := pgx.Connect(t.Context(), through+"&default_query_exec_mode=exec")
		if err != nil {
			return err
		}
		return conn.Close(t.Context())
	})
	return through
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWorksThroughPgBouncerInTransactionMode(t *testing.T) {
	direct := newRig(t)
	through := bouncer(t, direct.url)
	pool := pgtest.Pool(t, through) // as a user would configure it, prepared statements and all
	r := &rig{t: t, url: through, pool: pool, client: weir.NewClient(pool)}
	var failed atomic.Int32
	r.work(func(_ context.Context, job *weir.Job[number]) error {
		if job.Args.N%10 == 0 && job.Attempt == 1 {
			failed.Add(1)
			return errors.New("first attempts of some fail")
		}
		return nil
	}, func(c *weir.WorkerConfig) { c.Queues = map[string]int{"default": 50} })
	const n = 500
	for i := range n {
		direct.enqueue(i, nil)
	}
	eventually(t, func() error {
		queues, err := direct.client.Queues(t.Context())
		if err != nil {
			return err
		}
		if queues[0].Claimed < n+n/10 {
			return fmt.Errorf("%d attempts were claimed, want %d", queues[0].Claimed, n+n/10)
		}
		running, err := direct.client.Jobs(t.Context(), weir.Running, "", 10)
		if err == nil && len(running) > 0 {
			err = fmt.Errorf("%d jobs are still running", len(running))
		}
		return err
	})
	var attended bool
	if err := direct.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM weir.attendance WHERE worker <> 0) OR EXISTS (SELECT FROM weir._attending())`).Scan(&attended); err != nil || attended {
		t.Errorf("through a pooler a worker holds a lock of a session (%v)", err)
	}
	if failed.Load() != n/10 {
		t.Errorf("%d first attempts failed, want %d", failed.Load(), n/10)
	}
	info, err := direct.client.Jobs(t.Context(), weir.Completed, "default", n*2)
	if err != nil || len(info) != n {
		t.Errorf("%d jobs completed, want %d (%v)", len(info), n, err)
	}
	// Enqueuing through it works as well: from many goroutines, so that connections change hands.
	ids := make(chan int64, 100)
	for i := range cap(ids) {
		go func() {
			id, err := r.client.Enqueue(t.Context(), number{1001 + i*10}, nil)
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	for range cap(ids) {
		direct.await(receive(t, ids, "an id"), weir.Completed)
	}
}

func TestMigratesThroughPgBouncerInTransactionMode(t *testing.T) {
	through := bouncer(t, pgtest.Empty(t))
	var conns []*pgx.Conn // which get the same session of the server by turns, with what the other one left there
	for range 2 {
		conn, err := pgx.Connect(t.Context(), through)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.WithoutCancel(t.Context()))
		conns = append(conns, conn)
	}
	for round := range 3 {
		for i, conn := range conns {
			if err := schema.Up(t.Context(), conn); err != nil {
				t.Fatalf("round %d: up by %d: %v", round, i, err)
			}
			all, err := schema.Status(t.Context(), conn)
			if err != nil || all[len(all)-1].AppliedAt.IsZero() {
				t.Fatalf("round %d: status by %d: %v, %v", round, i, all, err)
			}
		}
		if err := schema.Down(t.Context(), conns[0], round%2); err != nil {
			t.Fatalf("round %d: down: %v", round, err)
		}
	}
}
