package weir_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAHundredIdleDatabasesCostLittle: one connection each, and in all a small part of a core, of the server and of this process.
func TestAHundredIdleDatabasesCostLittle(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process takes of a core")
	const databases, measured = 100, 24 * time.Second
	server := pgtest.Server(t, map[string]string{"max_connections": "500"})
	admin := pgtest.Pool(t, server.URL("postgres"))
	list := databasesAt(t, server, databases)
	settle := cpu(t, server.PID())
	time.Sleep(measured / 6)
	alone := cpu(t, server.PID()) - settle // what the server takes for so many databases without a worker, such as for autovacuum
	e := newEstate(t, 0, func(context.Context, *weir.Job[number]) error { return nil }, func(cfg *weir.MultiWorkerConfig) { cfg.RefreshEvery = 0 })
	e.urls = list
	e.list(list...)
	e.run()
	for n := range list {
		e.until(n, weir.DatabaseIdle)
	}
	transactions := func() (n float64) {
		if err := admin.QueryRow(t.Context(), `SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname <> 'postgres'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	done := transactions()
	before, ours := cpu(t, server.PID()), own(t)
	time.Sleep(measured) // that nothing happens is what is measured
	took := cpu(t, server.PID()) - before
	ours = own(t) - ours
	done = transactions() - done
	var connections int
	if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'weir worker'`).Scan(&connections); err != nil {
		t.Fatal(err)
	}
	part := took.Seconds() / measured.Seconds()
	t.Logf("%d connections, %.0f transactions a second, %.1f%% of a core: %.1f%% by this process, and %.1f%% by the server, of which %.1f%% is what it takes without a worker",
		connections, done/measured.Seconds(), 100*part, 100*ours.Seconds()/measured.Seconds(), 100*(took-ours).Seconds()/measured.Seconds(), 100*alone.Seconds()/(measured/6).Seconds())
	if connections > databases {
		t.Errorf("%d connections, want at most one for each of %d databases", connections, databases)
	}
	if part > 0.3 {
		t.Errorf("%.0f%% of a core, want 10%% on a machine like ours, and no more than three times as much on any", 100*part)
	}
}

// own returns the time that this process has taken.
func own(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// cpu returns the time that this process and a server's have taken.
func cpu(t *testing.T, postmaster int) time.Duration {
	t.Helper()
	sum := own(t)
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from the third of proc(5) on: state, parent, …
		ticks := func(i int) time.Duration {
			n, _ := strconv.Atoi(string(fields[i-3]))
			return time.Duration(n) * time.Second / 100
		}
		switch strconv.Itoa(postmaster) {
		case filepath.Base(filepath.Dir(file)):
			sum += ticks(14) + ticks(15) + ticks(16) + ticks(17) // with children that have ended
		case string(fields[4-3]):
			sum += ticks(14) + ticks(15)
		}
	}
	return sum
}
