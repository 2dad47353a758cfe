package guard

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/horizon"
	"github.com/weir-pg/weir/internal/embedded"
	"github.com/weir-pg/weir/internal/pgtest"
)

// The horizon is shared by the whole cluster, so the tests run one after another on one cluster.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	for name, test := range map[string]func(*testing.T, *servers){
		"IdleSnapshotIsTerminatedAtOnce":               idleSnapshot,
		"RunningSnapshotIsCancelledAndItsSessionLives": runningSnapshot,
		"IdleTransactionIsTerminatedAtOnce":            idleTransaction,
		"CancelThatDoesNotHelpIsFollowedByTerminate":   cancelThenTerminate,
		"PreparedTransactionIsReportedWithItsCommand":  preparedTransaction,
		"SlotIsReportedWithItsCommand":                 abandonedSlot,
		"StandbySessionIsEndedOnTheStandby":            standbySession,
		"CascadedStandbySessionIsEndedThere":           cascadedSession,
		"UnknownStandbyIsReported":                     unknownStandby,
		"TransactionThatPinsNothingIsLeftAlone":        innocent,
		"SnapshotInAnotherDatabaseIsLeftAlone":         elsewhere,
		"ReusedPidIsSpared":                            reusedPid,
		"DryRunEndsNobody":                             dryRun,
		"ProtectedSessionsAreLeftAlone":                protectedSessions,
		"NamedSuperuserIsEnded":                        namedSuperuser,
		"NobodyIsEndedBehindAHoldThatStays":            behindAHold,
		"SnapshotAsOldAsARunningTransactionWaits":      derivedSnapshot,
		"NobodyIsEndedForABackupThatIsOlder":           olderBackup,
		"NobodyIsEndedForABackupThatStays":             youngerBackup,
		"NothingIsEndedWithoutHarm":                    withoutHarm,
		"PastItsLimitItIsEndedWithoutHarm":             pastItsLimit,
		"EndsAreBounded":                               bounded,
		"SlowProbeIsHarm":                              slowProbe,
		"EveryCallHasATimeLimit":                       timeLimited,
		"OnceActsAndSaysWhatCameOfIt":                  once,
		"MissingRightsAreNamed":                        rights,
		"WhoKeepsOthersFromARowIsEndedByPolicy":        blocksByARow,
		"WhoKeepsOthersFromATableIsEndedByPolicy":      blocksByATable,
		"WhoBlocksFewerThanThePolicySaysIsLeftAlone":   blocksTooFew,
		"WhoBlocksSomeoneIsSaidToEvenIfItHoldsNoRows":  blocksForTooShort,
		"WhoBlocksIsOnlyReportedIfItsRuleSaysSo":       blocksByRule,
		"CommitThatWaitsForAStandbyIsLeftAlone":        waitsForAStandby,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

const readOnly = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

func idleSnapshot(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec(readOnly, "SELECT count(*) FROM harmed")
	ended(t, s, "primary", c)
}

func idleTransaction(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	ended(t, s, "primary", c)
}

// ended checks that a session is terminated without a cancel, and that the guard sees the horizon move.
func ended(t *testing.T, s *servers, server string, c *client) {
	t.Helper()
	name := fmt.Sprintf("pid %d", c.pid())
	g := s.guard(t, hasty(), true)
	s.watch(t, g, func(r *Findings) bool {
		if r.outcome(server, name, Cancel, outcomeSignalled) {
			t.Error("an idle session was cancelled, which has no effect")
		}
		return r.outcome(server, name, Terminate, outcomeMoved)
	})
	if c.lives() {
		t.Error("the session lives")
	}
}

func runningSnapshot(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres"))
	end := c.runs("SELECT pg_sleep(600)")
	name := fmt.Sprintf("pid %d", c.pid())
	p := hasty()
	p.Default.Patience = Duration{time.Minute} // or it is terminated if the cancel takes long to show
	s.watch(t, s.guard(t, p, true), func(r *Findings) bool { return r.outcome("primary", name, Cancel, outcomeMoved) })
	var refused *pgconn.PgError
	if err := pgtest.Receive(t, end, "the statement has ended"); !errors.As(err, &refused) || refused.Code != "57014" { // query_canceled
		t.Errorf("the statement ended with %v", err)
	}
	if !c.lives() {
		t.Error("the session was ended")
	}
}

// A cancel only rolls back to the savepoint: the transaction keeps its xid.
func cancelThenTerminate(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)", "SAVEPOINT s")
	end := c.runs("SELECT pg_sleep(600)")
	name := fmt.Sprintf("pid %d", c.pid())
	cancelled := false
	s.watch(t, s.guard(t, hasty(), true), func(r *Findings) bool {
		cancelled = cancelled || r.outcome("primary", name, Cancel, outcomeSignalled)
		return r.outcome("primary", name, Terminate, outcomeMoved)
	})
	if err := pgtest.Receive(t, end, "the statement has ended"); err == nil || !cancelled {
		t.Errorf("the statement ended with %v, cancelled: %v", err, cancelled)
	}
	if c.lives() {
		t.Error("the session lives")
	}
}

func preparedTransaction(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)", "PREPARE TRANSACTION 'it''s prepared'")
	defer c.exec("ROLLBACK PREPARED 'it''s prepared'")
	s.watch(t, s.guard(t, hasty(), true), func(r *Findings) bool {
		h := r.holder("primary", "it's prepared")
		return h != nil && h.Kind == horizon.Prepared && h.Step == Report &&
			h.Command == "COMMIT PREPARED 'it''s prepared' or ROLLBACK PREPARED 'it''s prepared', in its database, as its coordinator would" &&
			r.outcome("primary", "it's prepared", Report, outcomeReported)
	})
}

// The slot of a stopped standby keeps its last xmin.
func abandonedSlot(t *testing.T, s *servers) {
	c := connect(t, as(t, s.standby, "app", "postgres")).exec(readOnly, "SELECT count(*) FROM harmed")
	s.waitFor(t, s.primary, "SELECT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL)")
	if err := s.standby.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.conn.Close(t.Context())
	g, err := New(Config{Primary: server(t, "primary", s.primary), Policy: hasty(), Act: true})
	if err != nil {
		t.Fatal(err)
	}
	s.watch(t, g, func(r *Findings) bool {
		h := r.holder("primary", "for_standby")
		return h != nil && h.Kind == horizon.Slot && h.Step == Report &&
			h.Command == "start its consumer again; only if that never comes back: SELECT pg_drop_replication_slot('for_standby'); "+
				"a standby or subscriber that used it must then be made anew"
	})
	if err := s.standby.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.waitFor(t, s.standby, "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_replication WHERE state = 'streaming')")
	s.waitFor(t, s.primary, "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_replication WHERE state = 'streaming')")
}

func (s *servers) waitFor(t *testing.T, at *embedded.Server, sql string) {
	t.Helper()
	pool := pgtest.Pool(t, at.URL("postgres"))
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		var yes bool
		if err := pool.QueryRow(t.Context(), sql).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		if yes {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not true in time: %s", sql)
		}
	}
}

const walsenders = "SELECT COALESCE(pg_catalog.string_agg(pid::text, ',' ORDER BY pid), '') FROM pg_catalog.pg_stat_replication"

func standbySession(t *testing.T, s *servers) { s.endedOn(t, "standby", s.standby) }

func cascadedSession(t *testing.T, s *servers) { s.endedOn(t, "cascaded", s.cascaded) }

func (s *servers) endedOn(t *testing.T, name string, standby *embedded.Server) {
	before := scalar(t, s.primary, walsenders) + ";" + scalar(t, s.standby, walsenders)
	ended(t, s, name, connect(t, as(t, standby, "app", "postgres")).exec(readOnly, "SELECT count(*) FROM harmed"))
	if after := scalar(t, s.primary, walsenders) + ";" + scalar(t, s.standby, walsenders); after != before {
		t.Errorf("walsenders are %s, and were %s", after, before)
	}
}

func scalar(t *testing.T, s *embedded.Server, sql string) (text string) {
	t.Helper()
	if err := pgtest.Pool(t, s.URL("postgres")).QueryRow(t.Context(), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func unknownStandby(t *testing.T, s *servers) {
	c := connect(t, as(t, s.cascaded, "app", "postgres")).exec(readOnly, "SELECT count(*) FROM harmed")
	g, err := New(Config{
		Primary: server(t, "primary", s.primary), Standbys: []Server{server(t, "standby", s.standby)}, Policy: hasty(), Act: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.watch(t, g, func(r *Findings) bool {
		h := r.holder("standby", "walreceiver at 127.0.0.1")
		return h != nil && h.Kind == horizon.Standby && h.Step == Report && strings.Contains(h.Why, "name it with --standby")
	})
	if !c.lives() {
		t.Error("the session was ended")
	}
}

// harmless runs a guard that may act until it has ended a session of another role, and checks that it did not touch clients.
func (s *servers) harmless(t *testing.T, p Policy, clients ...*client) {
	t.Helper()
	g := s.guard(t, p, true)
	begin := time.Now()
	s.watch(t, g, func(r *Findings) bool {
		for _, c := range clients {
			for _, action := range []Action{Cancel, Terminate} {
				if r.outcome("primary", fmt.Sprintf("pid %d", c.pid()), action, outcomeSignalled) {
					t.Fatalf("ended: %s", describe(r))
				}
			}
		}
		suffers := false
		for _, table := range r.Tables {
			suffers = suffers || table.Suffers
		}
		return suffers && time.Since(begin) > 1200*time.Millisecond
	})
	for _, c := range clients {
		if !c.lives() {
			t.Error("a session was ended")
		}
	}
}

func innocent(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "SELECT count(*) FROM harmed") // READ COMMITTED: the snapshot has been released
	s.harmless(t, hasty(), c)
}

func elsewhere(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "elsewhere")).exec(readOnly, "SELECT 1")
	p := hasty()
	p.Default.Limit = p.Default.After
	s.harmless(t, p, c)
}

func reusedPid(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec(readOnly, "SELECT 1")
	v, err := inspect(t.Context(), server(t, "primary", s.primary), pollTimeout)
	if err != nil {
		t.Fatal(err)
	}
	var found *horizon.Session
	for _, x := range v.Sessions {
		if x.PID == c.pid() {
			found = x
		}
	}
	if found == nil {
		t.Fatal("the session was not seen")
	}
	try := func(what string, change func(*horizon.Session)) {
		t.Helper()
		other := *found
		change(&other)
		for _, sql := range []string{cancelSQL, terminateSQL} {
			if _, err := send(t.Context(), sql, held(v, &other)); !errors.Is(err, pgx.ErrNoRows) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	earlier := func(at time.Time) time.Time { return at.Add(-time.Microsecond) }
	try("another session with its pid", func(x *horizon.Session) { x.Connected = earlier(x.Connected) })
	try("another transaction of the session", func(x *horizon.Session) { at := earlier(*x.Started); x.Started = &at })
	try("another snapshot in the transaction", func(x *horizon.Session) { other := *x.Xmin - 1; x.Xmin = &other })
	if !c.lives() {
		t.Fatal("the session was ended")
	}
	if sent, err := send(t.Context(), cancelSQL, held(v, found)); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("an idle session was cancelled: %v, %v", sent, err)
	}
	if sent, err := send(t.Context(), terminateSQL, held(v, found)); err != nil || !sent {
		t.Errorf("the same session: %v, %v", sent, err)
	}
}

// held returns the holder of a session.
func held(v *view, s *horizon.Session) *Holder {
	alone := &horizon.View{At: v.At, Database: v.Database, Next: v.Next, Sessions: []*horizon.Session{s}}
	h := alone.Holders()[0]
	return of(v, &horizon.Traced{Holder: h, At: v.View, Own: h.Hold})
}

func dryRun(t *testing.T, s *servers) {
	idle := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	name := fmt.Sprintf("pid %d", idle.pid())
	g := s.guard(t, hasty(), false)
	polls := 0
	s.watch(t, g, func(r *Findings) bool {
		if r.outcome("primary", name, Terminate, outcomeWould) {
			polls = 1
		}
		if polls > 0 {
			polls++
		}
		return polls > 6
	})
	if !idle.lives() {
		t.Error("the session was ended")
	}
}

func protectedSessions(t *testing.T, s *servers) {
	backup := as(t, s.primary, "app", "postgres") + "&application_name=pg_dump"
	p := hasty()
	p.Default.Limit = p.Default.After
	s.harmless(t, p,
		connect(t, backup).exec(readOnly, "SELECT 1"),
		connect(t, as(t, s.primary, "boss", "postgres")).exec(readOnly, "SELECT 1"),
	)
}

func namedSuperuser(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "boss", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	p := hasty()
	p.Rules = []Rule{{Roles: []string{"boss"}}}
	// Only a superuser may terminate a superuser's session.
	pool := pgtest.Pool(t, s.primary.URL("postgres")+"&application_name=weir+guard")
	g, err := New(Config{Primary: Server{Name: "primary", DB: pool}, Policy: p, Act: true})
	if err != nil {
		t.Fatal(err)
	}
	s.watch(t, g, func(r *Findings) bool {
		return r.outcome("primary", fmt.Sprintf("pid %d", c.pid()), Terminate, outcomeMoved)
	})
	if c.lives() {
		t.Error("the session lives")
	}
}

func behindAHold(t *testing.T, s *servers) {
	front := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)", "PREPARE TRANSACTION 'front'")
	defer front.exec("ROLLBACK PREPARED 'front'")
	s.harm(t)
	s.harmless(t, hasty(), connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)"))
}

func derivedSnapshot(t *testing.T, s *servers) {
	p := hasty()
	p.Default.Limit = p.Default.After
	p.Rules = []Rule{{Applications: []string{"importer"}, Action: Ignore}}
	front := connect(t, as(t, s.primary, "app", "postgres")+"&application_name=importer").exec("BEGIN", "INSERT INTO other VALUES (1)")
	s.harm(t)
	s.harmless(t, p, front, connect(t, as(t, s.primary, "app", "postgres")).exec(readOnly, "SELECT 1"))
}

// The first writer has the xid that the snapshot of the backup shows.
func olderBackup(t *testing.T, s *servers) {
	at := as(t, s.primary, "app", "postgres")
	backup := connect(t, at+"&application_name=pg_dump").exec(readOnly, "SELECT count(*) FROM harmed")
	s.harmless(t, hasty(), backup,
		connect(t, at).exec("BEGIN", "INSERT INTO other VALUES (1)"), connect(t, at).exec("BEGIN", "INSERT INTO other VALUES (2)"))
}

// The backup has begun after the writer, which its snapshot shows. It is at work, so that nothing tells since when it has the snapshot, but that stays after the writer's end.
func youngerBackup(t *testing.T, s *servers) {
	at := as(t, s.primary, "app", "postgres")
	writer := connect(t, at).exec("BEGIN", "INSERT INTO other VALUES (1)")
	backup := connect(t, at+"&application_name=pg_dump").exec(readOnly, "SELECT count(*) FROM harmed")
	end := backup.runs("SELECT pg_sleep(600)")
	s.harmless(t, hasty(), writer)
	connect(t, s.primary.URL("postgres")).exec(fmt.Sprintf("SELECT pg_terminate_backend(%d)", backup.pid()))
	if err := pgtest.Receive(t, end, "the backup has ended"); err == nil {
		t.Error("the backup ended by itself")
	}
}

func withoutHarm(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	p := hasty()
	p.Protect.Tables = []string{"public.other"}
	polls := 0
	s.watch(t, s.guard(t, p, true), func(r *Findings) bool {
		h := r.holder("primary", fmt.Sprintf("pid %d", c.pid()))
		if h != nil && h.Why == "nothing suffers yet" {
			polls++
		}
		return polls == 10
	})
	if !c.lives() {
		t.Error("the session was ended")
	}
}

func pastItsLimit(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	p := hasty()
	p.Protect.Tables = []string{"public.other"}
	p.Default.Limit = Duration{time.Second}
	s.watch(t, s.guard(t, p, true), func(r *Findings) bool {
		return r.outcome("primary", fmt.Sprintf("pid %d", c.pid()), Terminate, outcomeMoved)
	})
}

func bounded(t *testing.T, s *servers) {
	p := hasty()
	p.EndsPerMinute = 2
	g := s.guard(t, p, true)
	for range 5 {
		connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	}
	sent, waits := 0, 0
	s.watch(t, g, func(r *Findings) bool {
		for _, a := range r.Actions {
			if a.Outcome == outcomeSignalled {
				sent++
			}
		}
		for _, h := range r.Holders {
			if strings.Contains(h.Why, "the limit on signals delays the next one") {
				waits++
				break
			}
		}
		return waits == 15
	})
	if sent != 2 {
		t.Errorf("%d were ended within seconds, want 2", sent)
	}
}

func slowProbe(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (1)")
	p := hasty()
	p.Protect.Tables = []string{"public.other"}
	p.Protect.Probes = []Probe{{Name: "next job", SQL: "SELECT pg_sleep(0.06)", SlowerThan: Duration{50 * time.Millisecond}}}
	s.watch(t, s.guard(t, p, true), func(r *Findings) bool {
		return r.outcome("primary", fmt.Sprintf("pid %d", c.pid()), Terminate, outcomeMoved)
	})
}

func once(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec("BEGIN", "INSERT INTO other VALUES (47)")
	s.harm(t)
	p := hasty()
	p.Default.After, p.Default.Limit = Duration{time.Millisecond}, Duration{time.Millisecond}
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	g, err := New(Config{
		Primary: server(t, "primary", s.primary), Standbys: []Server{server(t, "standby", s.standby), server(t, "cascaded", s.cascaded)},
		Policy: p, Act: true, Logger: slog.New(slog.NewJSONHandler(&log, nil)), Registerer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.Once(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("pid %d", c.pid())
	for _, outcome := range []string{outcomeSignalled, outcomeMoved} {
		if !r.outcome("primary", name, Terminate, outcome) {
			t.Errorf("no outcome %s in %+v", outcome, r.Actions)
		}
	}
	for _, evidence := range []string{
		`"msg":"terminated a session"`, `"name":"` + name + `"`, `"role":"app"`, `"rule":"default"`, `"by":"xid"`, `"query":"INSERT INTO other VALUES (47)"`,
		`"effect":"moved"`,
	} {
		if !strings.Contains(log.String(), evidence) {
			t.Errorf("the log has no %s:\n%s", evidence, &log)
		}
	}
	for _, key := range []string{"held_seconds", "after_seconds"} {
		value := regexp.MustCompile(`"` + key + `":([0-9.]+)`).FindStringSubmatch(log.String())
		if value == nil || len(value[1]) > len("1234.567") { // no nanoseconds
			t.Errorf("%s is %q in the log:\n%s", key, value, &log)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := family.GetName()
			for _, label := range m.GetLabel() {
				key += " " + label.GetValue()
			}
			counted[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if counted["weir_guard_actions_total terminate signalled"] != 1 || counted["weir_guard_actions_total terminate moved"] != 1 ||
		counted["weir_guard_looks_total done"] < 2 {
		t.Errorf("counted %v", counted)
	}
}

func rights(t *testing.T, s *servers) {
	check := func(role, want string, act bool, standbys ...Server) {
		t.Helper()
		g, err := New(Config{Primary: Server{Name: "primary", DB: pgtest.Pool(t, as(t, s.primary, role, "postgres"))}, Standbys: standbys, Act: act})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("as %s: %v, want %q", role, err, want)
		}
	}
	check("blind", `GRANT pg_monitor TO "blind"`, false)
	connect(t, s.primary.URL("postgres")).exec("GRANT pg_monitor TO blind")
	check("blind", `GRANT pg_signal_backend TO "blind"`, true)
	g, err := New(Config{Primary: Server{Name: "primary", DB: pgtest.Pool(t, as(t, s.primary, "blind", "postgres"))}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Poll(t.Context()); err != nil {
		t.Error(err)
	}
	connect(t, s.primary.URL("postgres")).exec("REVOKE pg_monitor FROM blind")
	if r, err := g.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), `GRANT pg_monitor TO "blind"`) {
		t.Errorf("a guard that can't see the sessions any more found %+v (%v)", r, err)
	}
	check("guard", "primary is not a standby", true, server(t, "primary", s.primary))
}
