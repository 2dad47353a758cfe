package guard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// patient is a policy by which tables never suffer, but sessions that wait for locks do.
func patient(sessions int) Policy {
	p := hasty()
	p.Protect = Protect{Tables: []string{"public.none"}, BlockedSessions: sessions, BlockedFor: Duration{300 * time.Millisecond}}
	return p
}

// wait starts statements that wait for a lock, and returns once all of them do.
func (s *servers) wait(t *testing.T, sql string, n int) (ends []<-chan error) {
	t.Helper()
	for range n {
		c := connect(t, as(t, s.primary, "app", "postgres"))
		ends = append(ends, c.runs(sql))
		s.waitFor(t, s.primary, fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE pid = %d AND NOT granted AND waitstart IS NOT NULL)", c.pid()))
	}
	return ends
}

func expectEnds(t *testing.T, ends []<-chan error) {
	t.Helper()
	for _, end := range ends {
		if err := pgtest.Receive(t, end, "the session that waited goes on"); err != nil {
			t.Error(err)
		}
	}
}

// Sessions that wait for a row stand in a line: the second waits behind the first.
func blocksByARow(t *testing.T, s *servers) {
	connect(t, as(t, s.primary, "app", "postgres")).exec("INSERT INTO other VALUES (4711)")
	idle := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "UPDATE other SET n = n WHERE n = 4711")
	alone := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)") // as old, and blocks nobody
	ends := s.wait(t, "UPDATE other SET n = n WHERE n = 4711", 2)
	name := fmt.Sprintf("pid %d", idle.pid())
	s.watch(t, s.guard(t, patient(2), true), func(r *Findings) bool {
		if h := r.holder("primary", name); h != nil && h.Blocks != 0 && h.Blocks != 2 {
			t.Errorf("it blocks %d sessions, want 2", h.Blocks)
		}
		for _, action := range []Action{Cancel, Terminate} {
			if r.outcome("primary", fmt.Sprintf("pid %d", alone.pid()), action, outcomeSignalled) {
				t.Fatal("a session that blocks nobody was ended")
			}
		}
		return r.outcome("primary", name, Terminate, outcomeFreed)
	})
	if idle.lives() || !alone.lives() {
		t.Errorf("the session that blocks lives: %t; the one that does not: %t", idle.lives(), alone.lives())
	}
	expectEnds(t, ends)
}

// A session that has only read holds the locks of its tables, and no horizon.
func blocksByATable(t *testing.T, s *servers) {
	idle := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "SELECT count(*) FROM other")
	ends := s.wait(t, "BEGIN; LOCK TABLE other; COMMIT", 1)
	name := fmt.Sprintf("pid %d", idle.pid())
	s.watch(t, s.guard(t, patient(1), true), func(r *Findings) bool {
		if h := r.holder("primary", name); h != nil && (h.Kind != Blocker || h.By != "lock") {
			t.Errorf("it is a %s by %s", h.Kind, h.By)
		}
		return r.outcome("primary", name, Terminate, outcomeFreed)
	})
	expectEnds(t, ends)
}

func blocksTooFew(t *testing.T, s *servers) {
	idle := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "SELECT count(*) FROM other")
	ends := s.wait(t, "BEGIN; LOCK TABLE other; COMMIT", 1)
	polls := 0
	s.watch(t, s.guard(t, patient(2), true), func(r *Findings) bool {
		if h := r.holder("primary", fmt.Sprintf("pid %d", idle.pid())); h != nil && h.Step != "" {
			t.Fatalf("it is to be ended: %s", h.Why)
		}
		if r.Blocked == 1 {
			polls++
		}
		return polls == 5
	})
	if !idle.lives() {
		t.Error("the session was ended")
	}
	idle.exec("COMMIT")
	expectEnds(t, ends)
}

// A transaction that has written holds a lock and, until another has ended, no horizon: what is said of it is that others wait for it.
func blocksForTooShort(t *testing.T, s *servers) {
	connect(t, as(t, s.primary, "app", "postgres")).exec("INSERT INTO other VALUES (4712)")
	idle := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "UPDATE other SET n = n WHERE n = 4712")
	ends := s.wait(t, "UPDATE other SET n = n WHERE n = 4712", 1)
	p := patient(1)
	p.Default.After = Duration{time.Hour}
	s.watch(t, s.guard(t, p, true), func(r *Findings) bool {
		h := r.holder("primary", fmt.Sprintf("pid %d", idle.pid()))
		if h == nil || h.Blocks == 0 {
			return false
		}
		if !strings.Contains(h.Why, "a session waits for its locks, for up to") || h.Step != "" {
			t.Errorf("due: %q; what is said of it: %s", h.Step, h.Why)
		}
		return true
	})
	idle.exec("COMMIT")
	expectEnds(t, ends)
}

func blocksByRule(t *testing.T, s *servers) {
	idle := connect(t, as(t, s.primary, "app", "postgres")+"&application_name=importer").exec("BEGIN", "SELECT count(*) FROM other")
	ends := s.wait(t, "BEGIN; LOCK TABLE other; COMMIT", 1)
	p := patient(1)
	p.Rules = []Rule{{Name: "import", Applications: []string{"importer"}, Action: Report}}
	name := fmt.Sprintf("pid %d", idle.pid())
	reported, polls := false, 0
	s.watch(t, s.guard(t, p, true), func(r *Findings) bool {
		reported = reported || r.outcome("primary", name, Report, outcomeReported)
		if reported {
			polls++
		}
		return polls == 5
	})
	if !idle.lives() {
		t.Error("the session was ended, which its rule forbids")
	}
	idle.exec("COMMIT")
	expectEnds(t, ends)
}

// TestTheHeadsOfALineAreThoseWhoWaitForNobody: whoever waits behind others waits for the first of them; those who wait for each other have none.
func TestTheHeadsOfALineAreThoseWhoWaitForNobody(t *testing.T) {
	t.Parallel()
	whom := map[int32][]int32{2: {1}, 3: {2, 1}, 4: {3, 9}, 5: {6}, 6: {5}, 7: {0}}
	for pid, want := range map[int32]string{2: "[1]", 3: "[1]", 4: "[9 1]", 5: "[]", 7: "[]"} {
		if got := fmt.Sprint(headsOf(pid, whom)); got != want {
			t.Errorf("those for whom %d waits: %s, want %s", pid, got, want)
		}
	}
}

// A commit that waits for a standby keeps its locks. To end the wait would acknowledge what no standby has.
func waitsForAStandby(t *testing.T, s *servers) {
	connect(t, as(t, s.primary, "app", "postgres")).exec("INSERT INTO other VALUES (4713)")
	boss := connect(t, as(t, s.primary, "boss", "postgres"))
	release := func() { boss.exec("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()") }
	defer release()
	boss.exec("ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()")
	commits := connect(t, as(t, s.primary, "app", "postgres"))
	pid := commits.pid()
	ended := commits.runs("DO $$BEGIN LOOP UPDATE other SET n = n WHERE n = 4713; COMMIT; END LOOP; END$$") // until the server has read its settings
	waits := fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = %d AND wait_event = 'SyncRep')", pid)
	s.waitFor(t, s.primary, waits)
	ends := s.wait(t, "UPDATE other SET n = n WHERE n = 4713", 1)
	g := s.guard(t, patient(1), true)
	for deadline := time.Now().Add(time.Minute); ; {
		r, err := g.Poll(t.Context())
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the commit was not seen to wait: %v", err)
		}
		h := r.holder("primary", fmt.Sprintf("pid %d", pid))
		if h != nil && (h.Step == Cancel || h.Step == Terminate) {
			t.Fatalf("a commit that waits for a standby is to be ended: %s", h.Why)
		}
		if h != nil && h.Step == Report && strings.Contains(h.Why, "what no standby has") {
			break
		}
	}
	// The wait may begin after the session was judged.
	held := "SELECT pid, backend_start, xact_start, backend_xid::text::int8 FROM pg_catalog.pg_stat_activity WHERE pid = $1"
	var connected, started time.Time
	var xid int64
	if err := boss.conn.QueryRow(t.Context(), held, pid).Scan(&pid, &connected, &started, &xid); err != nil {
		t.Fatal(err)
	}
	var blocked []int32
	if err := boss.conn.QueryRow(t.Context(), "SELECT array_agg(pid) FROM pg_catalog.pg_locks WHERE NOT granted").Scan(&blocked); err != nil {
		t.Fatal(err)
	}
	for sql, args := range map[string][]any{
		cancelSQL: {xid, nil}, terminateSQL: {xid, nil}, cancelBlockerSQL: {blocked}, terminateBlockerSQL: {blocked},
	} {
		rows, _ := boss.conn.Query(t.Context(), sql, append([]any{pid, connected, started}, args...)...)
		rows.Close()
		if err := rows.Err(); err != nil || rows.CommandTag().RowsAffected() != 0 {
			t.Errorf("it was signalled, or: %v\n%s", err, sql)
		}
	}
	boss.exec(fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	if err := pgtest.Receive(t, ended, "the session that commits has ended"); err == nil {
		t.Error("it ended by itself")
	}
	release()
	expectEnds(t, ends)
}
