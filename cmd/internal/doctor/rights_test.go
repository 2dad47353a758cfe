package doctor_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// as returns the URL for another user of the same database.
func as(t *testing.T, at, user, password string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// updateSlowly updates one row, and keeps it for so long that on a busy machine, too, all others wait for it.
var updateSlowly = repeat("BEGIN", "UPDATE counter SET n = n + 1 WHERE id = 1", "SELECT pg_sleep(0.05)", "COMMIT")

func TestPgMonitorIsEnough(t *testing.T) {
	t.Parallel()
	at := alone(t)
	admin := connect(t, at)
	if err := schema.Up(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor")
	execute(t, admin, "CREATE TABLE counter (id int PRIMARY KEY, n int)", "INSERT INTO counter VALUES (1, 0)")
	runSessions(t, at, 12, updateSlowly)
	r := examine(t, as(t, at, "watcher", "w"), examineFor)
	f := expect(t, r, doctor.HotRow, doctor.Critical)
	expectFact(t, f, "counter: ", "watcher may not read its key")
	unseen := strings.Join(r.Unseen, "\n")
	for _, want := range []string{"Weir's queues: it needs the role weir_operate", "Weir's segments: it needs the schema's owner"} {
		if !strings.Contains(unseen, want) {
			t.Errorf("%q is not reported as unseen:\n%s", want, unseen)
		}
	}
	if strings.Contains(unseen, "failed") {
		t.Errorf("a check failed:\n%s", unseen)
	}

	// A hub's role sees the queues, and not their limits.
	execute(t, admin, "GRANT weir_hub TO watcher")
	unseen = strings.Join(examine(t, as(t, at, "watcher", "w"), time.Second).Unseen, "\n")
	if !strings.Contains(unseen, "the limits of Weir's queues, and so their backlogs: it needs the role weir_operate") || strings.Contains(unseen, "failed") {
		t.Errorf("unseen by a hub's role:\n%s", unseen)
	}
}

// TestARowOfAnotherDatabaseIsSaidToBeThere: the doctor sees who waits there, but no names, and says which command names them.
func TestARowOfAnotherDatabaseIsSaidToBeThere(t *testing.T) {
	t.Parallel()
	at := alone(t)
	there := another(t, at)
	execute(t, connect(t, there), "CREATE TABLE counter (id int PRIMARY KEY, n int)", "INSERT INTO counter VALUES (1, 0)")
	runSessions(t, there, 12, updateSlowly)
	live, file := recorded(t, doctor.Config{URL: at}, examineFor)
	f := expect(t, live, doctor.HotRow, doctor.Warning)
	expectFact(t, f, "for rows of database elsewhere")
	u, err := url.Parse(there)
	if err != nil {
		t.Fatal(err)
	}
	expectFact(t, f, "in database elsewhere, whose tables and keys show only there, with weir doctor --database 'postgres://postgres@"+u.Host+"/elsewhere'")
	expectSame(t, live, file)
}

func TestWithLessItSaysWhatItCouldNotSee(t *testing.T) {
	t.Parallel()
	at := alone(t)
	execute(t, connect(t, at), "CREATE ROLE nobody_in_particular LOGIN PASSWORD 'w'")
	r := examine(t, as(t, at, "nobody_in_particular", "w"), time.Second)
	unseen := strings.Join(r.Unseen, "\n")
	if !strings.Contains(unseen, `GRANT pg_monitor TO "nobody_in_particular"`) || strings.Contains(unseen, "failed") {
		t.Errorf("unseen:\n%s", unseen)
	}
	if !strings.Contains(unseen, "Weir: its schema is not in database postgres") {
		t.Errorf("the missing schema of Weir is not reported:\n%s", unseen)
	}
}

// TestARoleWithoutRightsSaysSoAndUsesWhatEverybodySees: locks are visible to everybody, and show who waits; what isn't visible is not called healthy.
func TestARoleWithoutRightsSaysSoAndUsesWhatEverybodySees(t *testing.T) {
	t.Parallel()
	at := alone(t)
	admin := connect(t, at)
	execute(t, admin, "CREATE ROLE nobody_in_particular LOGIN PASSWORD 'w'", "CREATE TABLE counter (id int PRIMARY KEY, n int)", "INSERT INTO counter VALUES (1, 0)")
	nobody := as(t, at, "nobody_in_particular", "w")
	stop := runSessions(t, at, 12, updateSlowly)
	r := examine(t, nobody, 2*examineFor)
	stop()
	f := expect(t, r, doctor.HotRow, doctor.Warning)
	expectFact(t, f, "counter: ", "nobody_in_particular may not read its key")
	expectFact(t, f, "more may be lost: of", "only waits for locks are seen")
	if f.Lost < 7 { // all but one wait at any moment, but for those that have just committed
		t.Errorf("%.1f sessions wait for locks, which everybody sees, want about 11", f.Lost)
	}
	unseen := strings.Join(r.Unseen, "\n")
	if !r.Incomplete || !strings.Contains(unseen, "and so not judged: listeners, multixact,") {
		t.Errorf("the report does not say what it could not judge (incomplete: %t):\n%s", r.Incomplete, unseen)
	}
	for _, w := range r.Well {
		if w.Check == "listeners" || w.Check == "other waits" || w.Check == "horizon" {
			t.Errorf("it can't see sessions, and says of them: %s", w.Fact)
		}
	}

	// Without sessions of others there is nothing that it can't see.
	until(t, admin, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'")
	asker := connect(t, nobody)
	admin.Close(t.Context())
	until(t, asker, fmt.Sprintf("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d)", admin.PgConn().PID())) // which ends a moment later
	if r := examine(t, nobody, time.Second); r.Incomplete {
		t.Errorf("it sees all there is, and does not say so:\n%s", describe(r))
	}
}

func TestItsOwnSessionsNeverCount(t *testing.T) {
	t.Parallel()
	at := alone(t)
	other, err := doctor.NewSampler(t.Context(), doctor.SamplerConfig{URL: at})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	d, err := doctor.Open(t.Context(), doctor.Config{URL: at})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// The session that found the server ready may still be ending.
	var seen doctor.Sample
	defer func() { t.Logf("on a server without other sessions: %+v", seen) }()
	pgtest.Until(t, "no session counts on a server without others", func() bool {
		if _, err := d.Run(t.Context(), 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		s, ok := d.Sampler().Last()
		seen = s
		return ok && s.Clients == 0 && len(s.Sessions) == 0
	})
}

// TestRightsThatAreRevokedMeanwhileAreMissed: who can't see the sessions any more does not say that none of them waits.
func TestRightsThatAreRevokedMeanwhileAreMissed(t *testing.T) {
	t.Parallel()
	at := alone(t)
	admin := connect(t, at)
	execute(t, admin, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor", "CREATE TABLE account (id int PRIMARY KEY, n int)", "INSERT INTO account VALUES (3, 0)")
	revoked := false
	watched(t, doctor.Config{URL: as(t, at, "watcher", "w"), Every: time.Second, Window: 2 * time.Second}, func(s doctor.Snapshot, _ string) bool {
		switch {
		case s.Report == nil:
			return false
		case !revoked:
			if s.Report.Incomplete {
				t.Errorf("before, it sees not all:\n%s", describe(*s.Report))
			}
			execute(t, admin, "REVOKE pg_monitor FROM watcher", "BEGIN", "UPDATE account SET n = 1 WHERE id = 3")
			stand(t, at, "UPDATE account SET n = 2 WHERE id = 3", "wait_event_type = 'Lock'")
			revoked = true
			return false
		}
		_, found := s.Report.Find(doctor.HotRow)
		unseen := strings.Join(s.Report.Unseen, "\n")
		return found && s.Report.Incomplete && strings.Contains(unseen, `GRANT pg_monitor TO "watcher"`) && strings.Contains(unseen, "and so not judged: listeners, multixact,")
	})
	execute(t, admin, "ROLLBACK")
}
