package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// watched watches until seen returns true, and returns what has come and gone.
func watched(t *testing.T, c doctor.Config, seen func(s doctor.Snapshot, changes string) bool) (changes string) {
	t.Helper()
	d, err := doctor.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var last doctor.Snapshot
	err = d.Watch(ctx, func(s doctor.Snapshot) {
		last = s
		for _, change := range s.Changes {
			changes += change.Text + "\n"
		}
		if seen(s, changes) {
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) || ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Fatalf("not seen: %v; the tree:\n%s\nwhat has come and gone:\n%s", err, strings.Join(last.Blocking.Lines(), "\n"), changes)
	}
	return changes
}

// TestAWatchShowsWhoBlocksWhom: as a tree, with what each session does, and keeps what has come and gone.
func TestAWatchShowsWhoBlocksWhom(t *testing.T) {
	t.Parallel()
	url := alone(t)
	idle, prepared := connect(t, url), connect(t, url)
	execute(t, idle, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account SELECT i, 0 FROM generate_series(1, 10) i")
	execute(t, prepared, "BEGIN", "UPDATE account SET n = 1 WHERE id = 4", "PREPARE TRANSACTION 'in doubt'")
	execute(t, idle, "SET application_name = 'shop'", "BEGIN", "UPDATE account SET n = 1 WHERE id = 3")
	first := stand(t, url, "UPDATE account SET n = 2 WHERE id = 3", "wait_event = 'transactionid'")
	second := stand(t, url, "UPDATE account SET n = 3 WHERE id = 3", "wait_event = 'tuple'")
	other := stand(t, url, "UPDATE account SET n = 2 WHERE id = 4", "wait_event = 'transactionid'")
	head := idle.PgConn().PID()
	tree := regexp.MustCompile(fmt.Sprintf(`^pid %d \(postgres, shop\) idle in transaction, in a transaction for .*: UPDATE account SET n = \? WHERE id = \?
  pid %d \(postgres, no application name\) active, in a transaction for .*, waits .* for Lock:transactionid: UPDATE account SET n = \? WHERE id = \?
    pid %d \(postgres, no application name\) active, in a transaction for .*, waits .* for Lock:tuple: UPDATE account SET n = \? WHERE id = \?
the prepared transaction "in doubt"
  pid %d .*waits .* for Lock:transactionid: .*$`, head, first, second, other))
	ended := false
	changes := watched(t, doctor.Config{URL: url, Every: time.Second, Window: 2 * time.Second}, func(s doctor.Snapshot, changes string) bool {
		if !ended {
			if text := strings.Join(s.Blocking.Lines(), "\n"); !tree.MatchString(text) || s.Blocking.Waiting != 3 || !strings.Contains(changes, "idle-blocker") ||
				!strings.Contains(changes, "blocks 2 sessions: pid") {
				return false
			}
			execute(t, idle, "COMMIT")
			execute(t, prepared, "ROLLBACK PREPARED 'in doubt'")
			ended = true
		}
		return strings.Contains(changes, "over idle-blocker, after ") && len(s.Blocking.Heads) == 0
	})
	for _, want := range []string{
		fmt.Sprintf("blocks 2 sessions: pid %d (postgres, shop) idle in transaction", head),
		fmt.Sprintf("pid %d (postgres, shop) blocks nobody any more, after", head), "with 2 sessions behind it at most",
		`the prepared transaction "in doubt" blocks nobody any more`,
	} {
		if !strings.Contains(changes, want) {
			t.Errorf("%q is not among what has come and gone:\n%s", want, changes)
		}
	}
}

// TestMetricsTellFindingsAndTheAnswerOfThePostmaster: for alerts; and nothing once the database can't be examined.
func TestMetricsTellFindingsAndTheAnswerOfThePostmaster(t *testing.T) {
	t.Parallel()
	url := alone(t)
	idle := connect(t, url)
	execute(t, idle, "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account VALUES (3, 0)", "BEGIN", "UPDATE account SET n = 1 WHERE id = 3")
	stand(t, url, "UPDATE account SET n = 2 WHERE id = 3", "wait_event_type = 'Lock'")
	var metrics doctor.Metrics
	registry := prometheus.NewRegistry()
	registry.MustRegister(&metrics)
	exported := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				values[name] = m.GetGauge().GetValue()
			}
		}
		return values
	}
	if got := exported(); len(got) != 1 || got["weir_doctor_up"] != 0 || metrics.Ready() == nil || metrics.Stuck() != nil {
		t.Errorf("before the first report: %v", got)
	}
	watched(t, doctor.Config{URL: url, Every: time.Second, Window: 2 * time.Second}, func(s doctor.Snapshot, _ string) bool {
		metrics.Show(s)
		got := exported()
		return got["weir_doctor_up"] == 1 && got["weir_doctor_finding idle-blocker  warning"] == 1 && got["weir_doctor_lost_sessions idle-blocker"] > 0 &&
			got["weir_doctor_waiting_sessions row-lock"] > 0 && got["weir_doctor_postmaster_answer_seconds"] > 0 && metrics.Ready() == nil
	})
	metrics.Lost()
	if got := exported(); len(got) != 1 || got["weir_doctor_up"] != 0 || metrics.Ready() == nil {
		t.Errorf("once the database can't be examined: %v", got)
	}
	execute(t, idle, "COMMIT")
}

// TestADeadServerIsNotUp: a doctor that watches a server that has stopped does not say that it examines it.
func TestADeadServerIsNotUp(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	var metrics doctor.Metrics
	stopped := false
	watched(t, doctor.Config{URL: server.URL("postgres"), Every: time.Second, Window: 2 * time.Second}, func(s doctor.Snapshot, _ string) bool {
		metrics.Show(s)
		if !stopped && metrics.Ready() == nil {
			if err := server.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			stopped = true
		}
		return stopped && metrics.Ready() != nil
	})
}
