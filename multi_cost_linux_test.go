package weir_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/hubtest"
	"github.com/weir-pg/weir/internal/pgtest"
)

const hundred = 100

// TestAHundredIdleDatabasesCostLittle: one connection each, and in all a small part of a core, of the server and of this process.
func TestAHundredIdleDatabasesCostLittle(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process takes of a core")
	const measured = 24 * time.Second
	server := pgtest.Server(t, map[string]string{"max_connections": "500"})
	list := databasesAt(t, server, hundred)
	settle := cpu(t, server.PID())
	time.Sleep(measured / 6)
	alone := cpu(t, server.PID()) - settle // what the server takes for so many databases without a worker, such as for autovacuum
	admin := idle(t, server, list, nil)
	done := transactions(t, admin)
	before, ours := cpu(t, server.PID()), own(t)
	time.Sleep(measured) // that nothing happens is what is measured
	took := cpu(t, server.PID()) - before
	ours = own(t) - ours
	done = transactions(t, admin) - done
	t.Logf("%d connections, %.0f transactions a second, %s of a core: %s by this process, and %s by the server, of which %s is what it takes without a worker",
		len(sessions(t, admin)), done/measured.Seconds(), percent(took, measured), percent(ours, measured), percent(took-ours, measured), percent(alone, measured/6))
	bounded(t, admin, took, measured)
}

// TestAHundredIdleDatabasesAtHubsCostLittle: the same while they wait there. What the hubs cost is not counted.
func TestAHundredIdleDatabasesAtHubsCostLittle(t *testing.T) {
	pgtest.Alone(t, "it counts what the whole process takes of a core")
	const measured = 20 * time.Second
	server := pgtest.Server(t, map[string]string{"max_connections": "1500"})
	list := databasesAt(t, server, hundred)
	hub := hubtest.OfMany(t, list, &pgtest.Log{})
	admin := idle(t, server, list, func(database string) ([]string, func(context.Context) (string, error)) {
		cfg, err := pgx.ParseConfig(database)
		if err != nil {
			t.Error(err)
		}
		return []string{"http://" + hub.Address + "/databases/" + cfg.Database}, func(context.Context) (string, error) { return hubtest.TokenOf(cfg.Database), nil }
	})
	pgtest.Until(t, "each database has a hub", func() (all bool) {
		if err := admin.QueryRow(t.Context(), `SELECT count(DISTINCT datname) = $1 FROM pg_stat_activity WHERE application_name LIKE 'weir hub%'`, hundred).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	})
	time.Sleep(measured / 2) // each, which was polled until then, waits at its hub
	pids := sessions(t, admin)
	before, ours := spent(t, pids...), own(t)
	hubs := spent(t, hub.PID())
	time.Sleep(measured) // that nothing happens is what is measured
	took := spent(t, pids...) - before
	ours = own(t) - ours
	t.Logf("%d connections, %s of a core: %s by this process, and %s by its sessions; the process with the hubs takes %s",
		len(pids), percent(took+ours, measured), percent(ours, measured), percent(took, measured), percent(spent(t, hub.PID())-hubs, measured))
	bounded(t, admin, took+ours, measured)
}

// idle runs a worker of all databases until they are idle.
func idle(t *testing.T, server *embedded.Server, databases []string, hubs func(string) ([]string, func(context.Context) (string, error))) (admin *pgxpool.Pool) {
	t.Helper()
	e := newEstate(t, 0, func(context.Context, *weir.Job[number]) error { return nil }, func(cfg *weir.MultiWorkerConfig) { cfg.RefreshEvery, cfg.HubsOf = 0, hubs })
	e.urls = databases
	e.list(databases...)
	e.run()
	for n := range databases {
		e.until(n, weir.DatabaseIdle)
	}
	return pgtest.Pool(t, server.URL("postgres"))
}

// transactions returns how many there were in all databases but one.
func transactions(t *testing.T, admin *pgxpool.Pool) (n float64) {
	t.Helper()
	if err := admin.QueryRow(t.Context(), `SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname <> 'postgres'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// sessions returns the processes of the worker's connections.
func sessions(t *testing.T, admin *pgxpool.Pool) []int {
	t.Helper()
	rows, err := admin.Query(t.Context(), `SELECT pid FROM pg_stat_activity WHERE application_name = 'weir worker'`)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func percent(took, of time.Duration) string {
	return fmt.Sprintf("%.1f%%", 100*took.Seconds()/of.Seconds())
}

func bounded(t *testing.T, admin *pgxpool.Pool, took, measured time.Duration) {
	t.Helper()
	if n := len(sessions(t, admin)); n > hundred {
		t.Errorf("%d connections, want at most one for each of %d databases", n, hundred)
	}
	if part := took.Seconds() / measured.Seconds(); part > 0.3 {
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
		switch p := filepath.Base(filepath.Dir(file)); {
		case p == strconv.Itoa(postmaster):
			sum += times(file, 14, 15, 16, 17) // with children that have ended
		case parent(file) == strconv.Itoa(postmaster):
			sum += times(file, 14, 15)
		}
	}
	return sum
}

// spent returns the time that processes have taken.
func spent(t *testing.T, pids ...int) (sum time.Duration) {
	t.Helper()
	for _, pid := range pids {
		sum += times(fmt.Sprintf("/proc/%d/stat", pid), 14, 15)
	}
	return sum
}

// stat returns the fields of proc(5) of a process, from the third on: state, parent, …; none if it has ended.
func stat(file string) [][]byte {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
}

func parent(file string) string {
	if fields := stat(file); fields != nil {
		return string(fields[4-3])
	}
	return ""
}

// times adds fields of a process that count its time.
func times(file string, fields ...int) (sum time.Duration) {
	if all := stat(file); all != nil {
		for _, i := range fields {
			n, _ := strconv.Atoi(string(all[i-3]))
			sum += time.Duration(n) * time.Second / 100
		}
	}
	return sum
}
