package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
)

func TestItsSessionsCanNeitherWriteNorWait(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	config, err := sessionConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{config: config, meter: new(meter)}
	defer s.close()
	refused := func(sql, code string) {
		t.Helper()
		_, err := scalars[int32](t.Context(), s, sql)
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || answer.Code != code {
			t.Errorf("%s: %v, want SQLSTATE %s", sql, err, code)
		}
	}
	refused("CREATE TABLE t ()", "25006") // read_only_sql_transaction
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	if _, err := other.Exec(t.Context(), "BEGIN; CREATE TABLE held (n int); COMMIT; BEGIN; LOCK TABLE held"); err != nil {
		t.Fatal(err)
	}
	refused("SELECT n FROM public.held", "55P03") // lock_not_available
	if bound, err := scalars[string](t.Context(), s, "SHOW statement_timeout"); err != nil || bound[0] != "5s" {
		t.Errorf("statement_timeout is %v: %v", bound, err)
	}
}

func TestALostSessionIsMadeAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	d, err := Open(t.Context(), Config{URL: url, Every: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	shown := 0
	err = d.Watch(ctx, func(s Snapshot) {
		shown++
		switch {
		case shown == 2:
			if _, err := other.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()", ApplicationName); err != nil {
				t.Error(err)
			}
		case shown > 2 && s.Report != nil && s.Report.At.After(s.At.Add(-time.Second)) && len(s.Report.Well) > 8 && s.Waits.Samples > 0:
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("no complete report in %d snapshots after its sessions were lost: %v", shown, err)
	}
}

// TestItTakesLittle measures the cost of sampling 500 sessions, as shares of a core, in the server and in this process.
func TestItTakesLittle(t *testing.T) {
	pgtest.Alone(t, "it measures the time of the whole process")
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the time that processes take is read in /proc")
	}
	const sessions = 500
	server := pgtest.Server(t, map[string]string{"max_connections": "520"})
	for range sessions {
		conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), "SELECT 'one of many'"); err != nil {
			t.Fatal(err)
		}
	}
	s, err := NewSampler(t.Context(), SamplerConfig{URL: server.URL("postgres")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	measure := func(pid int) time.Duration {
		stat, ok := processStat(pid)
		if !ok {
			t.Fatalf("process %d does not exist", pid)
		}
		return stat.cpu
	}
	const samples = 100 // enough for the kernel's unit of time, 10 ms, not to matter
	var sample Sample
	backend, self, begin := measure(int(s.session.pid())), measure(os.Getpid()), time.Now()
	for range samples {
		if sample, err = takeSample(t.Context(), s.session, nil); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(begin)
	backend, self = measure(int(s.session.pid()))-backend, measure(os.Getpid())-self
	if sample.Clients != sessions {
		t.Errorf("%d clients, want %d", sample.Clients, sessions)
	}
	part := func(d time.Duration) string { return fmt.Sprintf("%.2f%%", 100*d.Seconds()/samples) }
	t.Logf("at %d sessions and 1 Hz: %s of a core in the server, %s here; a sample takes %s", sessions, part(backend), part(self), span(took/samples))
	if whole := (backend + self).Seconds() / samples; whole > 0.01 {
		t.Errorf("sampling takes %.2f%% of a core, more than 1%%", 100*whole)
	}
}

// TestAWholeExaminationTakesLittle measures the cost of the whole doctor on a server with 500 sessions, 20 of them active, as shares of a core: of its sessions, of
// the postmaster, which answers its probes, and of this process.
func TestAWholeExaminationTakesLittle(t *testing.T) {
	pgtest.Alone(t, "it measures the time of the whole process")
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("the time that processes take is read in /proc")
	}
	const sessions, active, looking = 500, 20, 20 * time.Second
	const mostLooks = 5
	url := pgtest.Server(t, map[string]string{"max_connections": "520"}).URL("postgres")
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for i := range sessions {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if i < active {
			all.Go(func() { _, _ = conn.Exec(ctx, "SELECT pg_sleep(3600)") }) // cancelled at the end
		} else if _, err := conn.Exec(t.Context(), "SELECT 'one of many'"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.local.postmaster == 0 {
		t.Skip("the server's processes can't be seen")
	}
	pids := map[string][]int{"its sessions": {int(d.session.pid()), int(d.sampler.session.pid())}, "the postmaster": {d.local.postmaster}, "its process": {os.Getpid()}}
	measure := func(pids []int) (sum time.Duration) {
		for _, pid := range pids {
			stat, ok := processStat(pid)
			if !ok {
				t.Fatalf("process %d does not exist", pid)
			}
			sum += stat.cpu
		}
		return sum
	}
	// Processors differ, and neighbours slow them down, so what the doctor takes is compared with what the server takes to answer a look at its sessions,
	// which is measured just before and just after.
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	const looks = 50
	var look time.Duration
	measureLooks := func() {
		begin := measure([]int{int(other.PgConn().PID())})
		for range looks {
			if _, err := other.Exec(t.Context(), "SELECT * FROM pg_stat_activity"); err != nil {
				t.Fatal(err)
			}
		}
		look += (measure([]int{int(other.PgConn().PID())}) - begin) / (2 * looks)
	}
	measureLooks()
	before := map[string]time.Duration{}
	for what, list := range pids {
		before[what] = measure(list)
	}
	r, err := d.Run(t.Context(), looking)
	if err != nil {
		t.Fatal(err)
	}
	whole := 0.0
	for what, list := range pids {
		share := (measure(list) - before[what]).Seconds() / looking.Seconds()
		whole += share
		t.Logf("%s: %.2f%% of a core", what, 100*share)
	}
	measureLooks()
	perSecond := whole / look.Seconds()
	t.Logf("in all %.2f%% of a core at %d sessions, %d of them active, over %s, with %d samples: each second as much as %.1f times SELECT * FROM pg_stat_activity, which takes %s",
		100*whole, sessions, active, looking, r.Samples, perSecond, look)
	if perSecond > mostLooks {
		t.Errorf("each second it takes as much as %.1f times SELECT * FROM pg_stat_activity, more than %d", perSecond, mostLooks)
	}
}
