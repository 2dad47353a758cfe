package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/cmd/internal/guard"
	"github.com/weir-pg/weir/cmd/internal/horizon"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestDoctorAndGuardNameTheSameHolders: the guard ends or reports exactly the holders of the horizon that the doctor names.
func TestDoctorAndGuardNameTheSameHolders(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, map[string]string{"wal_level": "logical"})
	standby := pgtest.Standby(t, primary, map[string]string{
		"hot_standby_feedback": "on", "primary_slot_name": "for_standby", "wal_receiver_status_interval": "1",
	})
	pgtest.Replayed(t, primary, standby)
	at := primary.URL("postgres")
	elsewhere := another(t, at)
	asker := connect(t, at)
	execute(t, asker, "CREATE TABLE big WITH (autovacuum_enabled = false) AS SELECT n FROM generate_series(1, 200000) n", "DELETE FROM big WHERE n % 2 = 0")

	execute(t, asker, "SELECT pg_create_logical_replication_slot('changes', 'test_decoding')") // it waits for running transactions

	// These hold the tables of this database.
	reader, writer, prepared, away, there := connect(t, at), connect(t, at), connect(t, at), connect(t, elsewhere), connect(t, standby.URL("postgres"))
	execute(t, reader, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	execute(t, writer, "BEGIN", "SELECT pg_current_xact_id()")
	execute(t, away, "BEGIN", "SELECT pg_current_xact_id()")
	execute(t, prepared, "BEGIN", "SELECT pg_current_xact_id()", "PREPARE TRANSACTION 'in doubt'")
	execute(t, there, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	// These don't: a snapshot in another database, the logical slot, a lazy vacuum, and a transaction that has only read.
	execute(t, connect(t, elsewhere), "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	execute(t, connect(t, at), "BEGIN", "SELECT 1")
	vacuum := connect(t, at)
	execute(t, vacuum, "SET vacuum_cost_delay = 100", "SET vacuum_cost_limit = 1")
	vacuumed := make(chan error, 1)
	go func() { // ends with its session, below
		_, err := vacuum.Exec(t.Context(), "VACUUM big")
		vacuumed <- err
	}()
	until(t, asker, "SELECT EXISTS (SELECT FROM pg_stat_progress_vacuum WHERE relid = 'big'::regclass)")
	churn(t, at)

	want := []string{fmt.Sprint("pid ", reader.PgConn().PID()), fmt.Sprint("pid ", writer.PgConn().PID()), fmt.Sprint("pid ", away.PgConn().PID()), "in doubt"}
	until(t, asker, "SELECT coalesce(max(age(xmin)), 0) > 600 FROM pg_replication_slots WHERE slot_name = 'for_standby' AND active")
	agree(t, at, append(slices.Clone(want), "walreceiver at 127.0.0.1"), "the standby walreceiver at", "(slot for_standby), through hot_standby_feedback")

	// A standby that has stopped leaves its slot with its last xmin.
	if err := standby.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, asker, "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'for_standby'")
	agree(t, at, append(slices.Clone(want), "for_standby"), "the replication slot for_standby (not active)")

	execute(t, asker, "SELECT pg_terminate_backend("+fmt.Sprint(vacuum.PgConn().PID())+")")
	if err := pgtest.Receive(t, vacuumed, "the vacuum was ended"); err == nil {
		t.Error("the vacuum ended too early to prove anything")
	}
	execute(t, prepared, "ROLLBACK PREPARED 'in doubt'")
}

// agree checks that doctor and guard name exactly these holders.
func agree(t *testing.T, at string, names []string, last ...string) {
	t.Helper()
	slices.Sort(names)
	pool, err := pgxpool.New(t.Context(), at+"&application_name=weir+guard")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	g, err := guard.New(guard.Config{Primary: guard.Server{Name: "primary", DB: pool}})
	if err != nil {
		t.Fatal(err)
	}
	f := expect(t, examine(t, at, pinnedLong), doctor.HorizonPinned, doctor.Info)
	found, err := g.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var guarded []string
	for _, h := range found.Holders {
		// The churn's sessions come and go.
		if (h.Scope == horizon.Here || h.Scope == horizon.Through) && !strings.Contains(h.Query, "queue") && !strings.Contains(h.Query, "pg_sleep") {
			guarded = append(guarded, h.Name)
		}
	}
	slices.Sort(guarded)
	if !slices.Equal(guarded, names) {
		t.Errorf("the guard finds %q, want %q", guarded, names)
	}
	var held []string
	for _, e := range f.Evidence {
		if strings.Contains(e.Fact, " transactions") && strings.Contains(e.Fact, ": for ") {
			held = append(held, e.Fact)
		}
	}
	for _, name := range names {
		if strings.Contains(name, "walreceiver") || name == "for_standby" {
			continue
		}
		if !slices.ContainsFunc(held, func(fact string) bool {
			return strings.Contains(fact, name+" ") || strings.Contains(fact, `"`+name+`"`)
		}) {
			t.Errorf("the doctor does not name %s in\n%s", name, strings.Join(held, "\n"))
		}
	}
	expectFact(t, f, last...)
	if len(held) != len(names) {
		t.Errorf("the doctor names %d holders, want %d:\n%s", len(held), len(names), strings.Join(held, "\n"))
	}
}
