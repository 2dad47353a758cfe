package doctor_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// pinnedByAStandby is a server whose horizon a long query of its standby holds back, through its slot.
type pinnedByAStandby struct {
	at            string // its URL
	standby       *embedded.Server
	asker, reader *pgx.Conn // sessions of the server, and of the query
}

func pinByAStandby(t *testing.T) (p pinnedByAStandby) {
	t.Helper()
	primary := pgtest.Server(t, nil)
	p.standby = pgtest.Standby(t, primary, map[string]string{
		"hot_standby_feedback": "on", "primary_slot_name": "for_standby", "wal_receiver_status_interval": "1",
	})
	p.at = primary.URL("postgres")
	p.asker = connect(t, p.at)
	execute(t, p.asker, "CREATE TABLE warm ()")
	pgtest.Replayed(t, primary, p.standby)
	p.reader = connect(t, p.standby.URL("postgres"))
	execute(t, p.reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_class")
	churn(t, p.at)
	until(t, p.asker, "SELECT coalesce(max(age(xmin)), 0) > 600 FROM pg_replication_slots WHERE active")
	return p
}

// TestTheQueryOnAStandbyIsNamedAndItsSlotLeftAlone: dropping the slot of a standby that runs a long query would destroy the standby.
func TestTheQueryOnAStandbyIsNamedAndItsSlotLeftAlone(t *testing.T) {
	t.Parallel()
	p := pinByAStandby(t)
	at, standby, asker, reader := p.at, p.standby, p.asker, p.reader

	f := expect(t, examine(t, at, pinnedLong), doctor.HorizonPinned, doctor.Warning)
	for _, text := range []string{"On the standby", "Leave the slot for_standby alone"} {
		if !strings.Contains(f.Now, text) {
			t.Errorf("the fix for now does not say %q: %s", text, f.Now)
		}
	}
	expectFact(t, f, "weir doctor --standby URL names it")

	d, err := doctor.Open(t.Context(), doctor.Config{URL: at, Standbys: []string{standby.URL("postgres")}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Run(t.Context(), 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	named := expect(t, r, doctor.HorizonPinned, doctor.Warning)
	pid := reader.PgConn().PID()
	expectFact(t, named, "on the standby 127.0.0.1:", fmt.Sprintf("pid %d of postgres", pid), "last statement: SELECT count(*) FROM pg_class")
	if !strings.Contains(named.Now, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)) {
		t.Errorf("the fix for now does not end the query: %s", named.Now)
	}

	// On the standby itself, its sessions are the finding.
	there := expect(t, examine(t, standby.URL("postgres"), time.Second), doctor.HorizonPinned, doctor.Info)
	expectFact(t, there, "Through hot_standby_feedback", fmt.Sprintf("pid %d of postgres", pid))

	// A standby that is away for a while needs its slot as well.
	if err := standby.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, asker, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'for_standby'")
	gone := expect(t, examine(t, at, 3*time.Second), doctor.HorizonPinned, doctor.Warning)
	if !strings.HasPrefix(gone.Now, "Start the consumer of the slot for_standby again") || !strings.Contains(gone.Now, "must then be made anew") {
		t.Errorf("the fix for now of an unused slot: %s", gone.Now)
	}
	for _, f := range []doctor.Finding{f, named, there} {
		if strings.Contains(f.Now, "drop") {
			t.Errorf("a slot in use is to be dropped: %s", f.Now)
		}
	}
}

// TestAQueryOnAStandbyIsNamedByItsTime: it holds back the primary for as long as it runs, however few transactions end meanwhile. Without --standby its time is not known.
func TestAQueryOnAStandbyIsNamedByItsTime(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, map[string]string{"hot_standby_feedback": "on", "wal_receiver_status_interval": "1"})
	at := primary.URL("postgres")
	asker := connect(t, at)
	execute(t, asker, "CREATE TABLE queue (id int, state text)", "INSERT INTO queue SELECT generate_series(1, 2000)")
	pgtest.Replayed(t, primary, standby)
	reader := connect(t, standby.URL("postgres"))
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_class")
	until(t, asker, "SELECT count(*) > 0 FROM pg_stat_replication WHERE backend_xmin IS NOT NULL")
	runSessions(t, at, 1, repeat("UPDATE queue SET state = 'x'", "SELECT pg_sleep(0.3)"))
	until(t, asker, "SELECT n_dead_tup > 5000 FROM pg_stat_user_tables WHERE relname = 'queue'")
	d, err := doctor.Open(t.Context(), doctor.Config{URL: at, Standbys: []string{standby.URL("postgres")}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Run(t.Context(), pinnedLong)
	if err != nil {
		t.Fatal(err)
	}
	f := expect(t, r, doctor.HorizonPinned, doctor.Warning)
	expectFact(t, f, "on the standby 127.0.0.1:", fmt.Sprintf("pid %d of postgres", reader.PgConn().PID()))
	if !regexp.MustCompile(`^Dead rows have been kept from removal for \d+(\.\d)? s, by the standby `).MatchString(f.Summary) {
		t.Errorf("the time is not said: %s", f.Summary)
	}
	var age int
	if err := asker.QueryRow(t.Context(), "SELECT max(age(backend_xmin)) FROM pg_stat_replication").Scan(&age); err != nil || age >= 500 {
		t.Errorf("%d transactions have ended, so that this proves nothing: %v", age, err)
	}
}

// TestAServerThatIsNoStandbyIsRefused: neither the primary itself, nor one of another cluster.
func TestAServerThatIsNoStandbyIsRefused(t *testing.T) {
	t.Parallel()
	at, other := alone(t), pgtest.Server(t, nil)
	standby := pgtest.Standby(t, other, nil)
	for url, want := range map[string]string{at: "is not a standby: it was promoted, or is the primary itself", standby.URL("postgres"): "is a standby of another cluster"} {
		d, err := doctor.Open(t.Context(), doctor.Config{URL: at, Standbys: []string{url}})
		if err == nil {
			d.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--standby %s: %v, want %q", url, err, want)
		}
	}
}

// TestAStandbyThatCannotBeReadIsNotPassedOver: the report says which and why, and is incomplete, live and replayed.
func TestAStandbyThatCannotBeReadIsNotPassedOver(t *testing.T) {
	t.Parallel()
	at := alone(t)
	d, err := doctor.Open(t.Context(), doctor.Config{URL: at, Standbys: []string{"postgres://postgres@127.0.0.1:1/postgres"}, Record: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := d.Run(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.Recording().Replay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = "what the sessions of the standby 127.0.0.1:1 hold back here: can't connect: connection refused: check that it runs, and its URL in --standby"
	for _, r := range []doctor.Report{r, again} {
		if unseen := strings.Join(r.Unseen, "\n"); !r.Incomplete || !strings.Contains(unseen, want) {
			t.Errorf("incomplete: %t; what could not be seen:\n%s", r.Incomplete, unseen)
		}
	}
}

// TestReplayThatStandsStillIsNamed: the primary does not see it, and on the standby no session waits.
func TestReplayThatStandsStillIsNamed(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, map[string]string{"max_standby_streaming_delay": "-1"})
	conn := connect(t, primary.URL("postgres"))
	execute(t, conn, "CREATE TABLE stock (n int)", "INSERT INTO stock SELECT generate_series(1, 1000)")
	pgtest.Replayed(t, primary, standby)
	url := standby.URL("postgres")
	if f, found := examine(t, url, time.Second).Find(doctor.ReplayStalled); found {
		t.Errorf("replay goes on: %s", f.Summary)
	}
	reader, asker := connect(t, url), connect(t, url)
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM stock")
	execute(t, conn, "DELETE FROM stock", "VACUUM stock")
	until(t, asker, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event = 'RecoveryConflictSnapshot')")
	f := expect(t, examine(t, url, time.Second), doctor.ReplayStalled, doctor.Warning)
	expectFact(t, f, "it waits without end")
	expectNow(t, f, fmt.Sprintf("SELECT pg_terminate_backend(%d);", reader.PgConn().PID()))

	execute(t, reader, "COMMIT")
	pgtest.Replayed(t, primary, standby)
	execute(t, asker, "SELECT pg_wal_replay_pause()")
	until(t, asker, "SELECT pg_get_wal_replay_pause_state() = 'paused'")
	expectNow(t, expect(t, examine(t, url, time.Second), doctor.ReplayStalled, doctor.Warning), "SELECT pg_wal_replay_resume();")
	execute(t, asker, "SELECT pg_wal_replay_resume()")
}

// TestAStandbyThatIsPromotedMeanwhileIsAPrimary: a doctor that goes on watching judges it as one.
func TestAStandbyThatIsPromotedMeanwhileIsAPrimary(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, nil)
	pgtest.Replayed(t, primary, standby)
	promoted := false
	watched(t, doctor.Config{URL: standby.URL("postgres"), Every: time.Second, Window: 2 * time.Second}, func(s doctor.Snapshot, _ string) bool {
		if s.Report == nil {
			return false
		}
		if !promoted {
			if !s.Report.Server.Standby {
				t.Error("the standby is not seen to be one")
			}
			pgtest.Promote(t, standby)
			promoted = true
			return false
		}
		judged := slices.ContainsFunc(s.Report.Well, func(w doctor.Well) bool { return w.Check == "synchronous replication" })
		return judged && !s.Report.Server.Standby && !s.Report.Incomplete && !strings.Contains(strings.Join(s.Report.Unseen, "\n"), "this is a standby")
	})
}
