//go:build unix

package weir_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// startProcess starts a worker in its own process, and waits until it runs a job.
func (r *rig) startProcess(lease time.Duration, id int64) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workEnv+"="+r.url, leaseEnv+"="+lease.String())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	r.await(id, weir.StateRunning)
	r.awaitAttendance(1)
	return cmd
}

// awaitAttendance waits until n workers attend.
func (r *rig) awaitAttendance(workers int) {
	r.t.Helper()
	eventually(r.t, func() error {
		var n int
		err := r.pool.QueryRow(r.t.Context(), `SELECT count(*) FROM weir._attending()`).Scan(&n)
		if err == nil && n != workers {
			err = fmt.Errorf("%d workers attend, want %d", n, workers)
		}
		return err
	})
}

// TestJobsOfAKilledProcessRunAgainWithoutWaitingForItsLease: another worker runs them as soon as the server notices the end of the session.
func TestJobsOfAKilledProcessRunAgainWithoutWaitingForItsLease(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Minute
	r := newRig(t)
	id := r.enqueue(1, nil)
	process := r.startProcess(lease, id)
	ran := make(chan int, 1)
	r.work(func(_ context.Context, job *weir.Job[number]) error { ran <- job.Attempt; return nil }, nil)
	r.awaitAttendance(2)
	killed := time.Now()
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if attempt := receive(t, ran, "the job runs again"); attempt != 2 {
		t.Errorf("the job runs again as attempt %d, want 2", attempt)
	}
	took := time.Since(killed)
	t.Logf("the job ran again %s after the process was killed", took.Round(time.Millisecond))
	if took > lease/3 {
		t.Errorf("the job ran again only %s after the process was killed, with a lease of %s", took, lease)
	}
}

// TestAProcessThatStandsStillLosesItsJobsAndGoesOn: a stopped process loses its jobs after its lease, and works under a new id when it continues.
func TestAProcessThatStandsStillLosesItsJobsAndGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.enqueue(1, nil)
	process := r.startProcess(2*time.Second, id)
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{}, 1)
	r.work(func(_ context.Context, job *weir.Job[number]) error { ran <- struct{}{}; return nil }, nil)
	receive(t, ran, "the job runs again")
	r.await(id, weir.StateCompleted)
	if err := process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		workers, err := r.client.Workers(t.Context())
		if err != nil {
			return err
		}
		ended, alive := 0, 0
		for _, w := range workers {
			switch {
			case w.Name != "process":
			case w.State == "ended":
				ended++
			case w.State == "alive":
				alive++
			}
		}
		if ended < 1 || alive != 1 { // on a busy machine it may have lost its lease before, too
			return fmt.Errorf("the workers are %+v, want the process under a new id", workers)
		}
		return nil
	})
}

// steady runs one job on a worker until release is closed, and then reports whether it was disturbed.
func (r *rig) steady(log *pgtest.Log, release chan struct{}) (check func()) {
	r.t.Helper()
	var runs atomic.Int32
	started := make(chan struct{}, 100)
	r.work(func(ctx context.Context, _ *weir.Job[number]) error {
		runs.Add(1)
		started <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, func(c *weir.WorkerConfig) { c.Logger, c.Lease = log.Logger(), 5*time.Minute }) // waiting for the next heartbeat before attending would be too late
	id := r.enqueue(1, nil)
	receive(r.t, started, "the job starts")
	r.awaitAttendance(1)
	return func() {
		r.t.Helper()
		close(release)
		r.await(id, weir.StateCompleted)
		if n := runs.Load(); n != 1 {
			r.t.Errorf("the job ran %d times, want once", n)
		}
		if log.Count("the session is over") > 0 {
			r.t.Errorf("the worker was fenced:\n%s", log.String())
		}
	}
}

// TestAWorkerWhoseSessionsAreEndedIsBackAtOnce: a worker attends again, and keeps its jobs, after an operator has ended all its sessions.
func TestAWorkerWhoseSessionsAreEndedIsBackAtOnce(t *testing.T) {
	pgtest.Alone(t, "a worker that does not reconnect within three seconds is fenced")
	r := newRig(t)
	var log pgtest.Log
	check := r.steady(&log, make(chan struct{}))
	for range 10 {
		if _, err := r.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'weir worker' AND datname = current_database()`); err != nil {
			t.Fatal(err)
		}
		for range 3 { // polls of other workers in addition to its own
			if _, err := r.pool.Exec(t.Context(), `SELECT weir._rescue()`); err != nil {
				t.Fatal(err)
			}
		}
		r.awaitAttendance(1)
	}
	check()
}

// TestARestartOfTheServerInterruptsNobody: a worker keeps its jobs across a restart of the server.
func TestARestartOfTheServerInterruptsNobody(t *testing.T) {
	pgtest.Alone(t, "a worker that does not reconnect within three seconds is fenced")
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	migrate(t, url)
	r := newRigOn(t, url)
	var log pgtest.Log
	check := r.steady(&log, make(chan struct{}))
	for range 2 {
		if err := server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.awaitAttendance(1)
		eventually(t, func() error { // the chores continue
			var did bool
			if err := r.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM weir._rescue())`).Scan(&did); err != nil {
				return err
			}
			if did {
				return errors.New("a worker counts as missed")
			}
			return nil
		})
	}
	check()
}

// TestAWorkerThatReconnectsTooLateIsInterruptedBeforeOthersStartItsJobs: if a worker's sessions have ended and it can't reconnect in time,
// the worker has stopped its jobs before others start them.
func TestAWorkerThatReconnectsTooLateIsInterruptedBeforeOthersStartItsJobs(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	migrate(t, url)
	r := newRigOn(t, url)
	started, second := make(chan struct{}, 1), make(chan bool, 10)
	var interrupted atomic.Bool
	r.work(func(ctx context.Context, _ *weir.Job[number]) error {
		started <- struct{}{}
		<-ctx.Done()
		interrupted.Store(true)
		return context.Cause(ctx)
	}, func(c *weir.WorkerConfig) { c.Name, c.Lease = "late", time.Minute })
	r.enqueue(1, nil)
	receive(t, started, "the job starts")
	r.awaitAttendance(1)
	attending := func() (pids []int32) {
		rows, err := r.pool.Query(t.Context(), `SELECT pid FROM pg_stat_activity WHERE application_name = 'weir worker' AND datname = current_database()`)
		if err == nil {
			pids, err = pgx.CollectRows(rows, pgx.RowTo[int32])
		}
		if err != nil {
			t.Fatal(err)
		}
		return pids
	}
	late := attending()
	r.work(func(context.Context, *weir.Job[number]) error {
		second <- interrupted.Load()
		return nil
	}, func(c *weir.WorkerConfig) { c.Name, c.Lease = "other", time.Minute })
	r.awaitAttendance(2)
	set := func(delay int) {
		for _, statement := range []string{fmt.Sprintf(`ALTER SYSTEM SET pre_auth_delay = %d`, delay), `SELECT pg_reload_conf()`} {
			if _, err := r.pool.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	set(8) // as slow as a remote password check
	eventually(t, func() error {
		var is string
		err := r.pool.QueryRow(t.Context(), `SELECT current_setting('pre_auth_delay')`).Scan(&is)
		if err == nil && is != "8s" && is != "8" {
			err = errors.New("pre_auth_delay is " + is)
		}
		return err
	})
	if _, err := r.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid`, late); err != nil {
		t.Fatal(err)
	}
	if !receive(t, second, "the job runs again") {
		t.Error("the job was started again while it ran")
	}
	set(0)
}

// TestASocketThatIsForwardedIsNotTheServers: a worker does not attend through a forwarder, which may lose the connection while both ends live.
func TestASocketThatIsForwardedIsNotTheServers(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "weir-sockets-") // the server's user must be able to enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	server := pgtest.Server(t, map[string]string{"unix_socket_directories": dir})
	migrate(t, server.URL("postgres"))
	config, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	socket := fmt.Sprintf(".s.PGSQL.%d", config.ConnConfig.Port)
	forwarded := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(forwarded, socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", filepath.Join(dir, socket))
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
		}
	}()
	for host, want := range map[string]bool{dir: runtime.GOOS == "linux", forwarded: false} {
		config := config.Copy()
		config.ConnConfig.Host, config.ConnConfig.Fallbacks = host, nil
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var worker int32
		if err := pool.QueryRow(t.Context(), `SELECT weir._start('w', ARRAY['q'])`).Scan(&worker); err != nil {
			t.Fatal(err)
		}
		own, err := store.OpenOwn(pool)
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		attendance, err := own.Keep.Attend(t.Context(), worker)
		if err != nil {
			t.Fatal(err)
		}
		if attends := attendance != nil; attends != want {
			t.Errorf("through %s: attends is %v", host, attends)
		} else if attends {
			attendance.Close()
		}
	}
}

// TestAWorkerThatCannotAttendBeats: if no session can attend, for whatever reason and for however long, heartbeats keep the lease.
func TestAWorkerThatCannotAttendBeats(t *testing.T) {
	pgtest.Alone(t, "a worker that does not reconnect within three seconds is fenced")
	r := newRig(t)
	var log pgtest.Log
	check := r.steady(&log, make(chan struct{}))
	var worker, pid int32
	if err := r.pool.QueryRow(t.Context(), `SELECT objid::bigint::integer, pid FROM pg_locks WHERE classid = 1464158554 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&worker, &pid); err != nil {
		t.Fatal(err)
	}
	// Another session waits for an exclusive lock on the worker's attendance.
	stranger, err := pgx.Connect(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan error, 1)
	go func() {
		_, err := stranger.Exec(context.Background(), `SELECT pg_advisory_lock(1464158554, $1)`, worker)
		locked <- err
	}()
	eventually(t, func() error {
		var waits bool
		err := r.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`, int32(stranger.PgConn().PID())).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("no session waits for the lock")
		}
		return err
	})
	if _, err := r.pool.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, pid); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, locked, "the lock"); err != nil {
		t.Fatal(err)
	}
	var began int64
	if err := r.pool.QueryRow(t.Context(), `SELECT last_value FROM weir.watched`).Scan(&began); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		var later bool // after the immediate consequences of the end of a session
		err := r.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM weir.last_word WHERE worker = $1 AND says = 'beats' AND watched > $2)`, worker, began+8000).Scan(&later)
		if err == nil && !later {
			err = errors.New("there is no heartbeat")
		}
		return err
	})
	if err := stranger.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.awaitAttendance(1)
	check()
}
