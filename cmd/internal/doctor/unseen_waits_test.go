package doctor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestSessionsThatTellNoStateAreSeenWaiting: with track_activities = off the server tells what they wait for, and nothing else.
func TestSessionsThatTellNoStateAreSeenWaiting(t *testing.T) {
	t.Parallel()
	url := alone(t)
	holder := connect(t, url)
	execute(t, holder, "CREATE TABLE stock (id int)", "BEGIN", "LOCK TABLE stock")
	for range 5 {
		stand(t, url+"&options=-c%20track_activities%3Doff", "SELECT FROM stock", "state = 'disabled' AND wait_event = 'relation'")
	}
	expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)

	// What no check knows they wait for is no finding less.
	execute(t, holder, "ROLLBACK", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM stock")
	pid := stand(t, url+"&options=-c%20track_activities%3Doff", "CREATE INDEX CONCURRENTLY stock_id ON stock (id)", "wait_event = 'virtualxid'")
	f := expect(t, examine(t, url, 2*examineFor), doctor.WaitsUnexplained, doctor.Warning)
	expectFact(t, f, fmt.Sprintf("pid %d has stood still for", pid), "a statement that is not told (track_activities is off)")
	execute(t, holder, "ROLLBACK")
}

// TestLoginsThatHangAreSeen: until 17 a session is in no view of sessions until it has logged in, and in 18 it has another state than all others.
func TestLoginsThatHangAreSeen(t *testing.T) {
	t.Parallel()
	url := alone(t)
	there := another(t, url)
	admin, holder := connect(t, url), connect(t, there)
	execute(t, holder, "BEGIN", "LOCK pg_attribute, pg_class IN ACCESS EXCLUSIVE MODE")
	ctx, cancel := context.WithCancel(context.Background())
	const logins = 5
	ended := make(chan struct{}, logins)
	for range logins {
		go func() {
			if conn, err := pgx.Connect(ctx, there); err == nil {
				conn.Close(context.Background())
			}
			ended <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		cancel()
		for range logins {
			<-ended
		}
	})
	until(t, admin, fmt.Sprintf("SELECT count(*) = %d FROM pg_locks WHERE NOT granted", logins))
	f := expect(t, examine(t, url, 2*examineFor), doctor.WaitsUnexplained, doctor.Critical)
	expectFact(t, f, "has stood still for", "in Lock:relation: a login")
	expectFact(t, f, fmt.Sprintf("pid %d ", holder.PgConn().PID()), fmt.Sprintf("blocks %d sessions", logins))
	if want := fmt.Sprintf("SELECT pg_terminate_backend(%d)", holder.PgConn().PID()); !strings.Contains(f.Now, want) {
		t.Errorf("the fix for now is %q, want %s", f.Now, want)
	}
	execute(t, admin, "CREATE ROLE nobody_in_particular LOGIN PASSWORD 'w'")
	f = expect(t, examine(t, as(t, url, "nobody_in_particular", "w"), 2*examineFor), doctor.WaitsUnexplained, doctor.Critical)
	if f.Lost > logins {
		t.Errorf("%d logins hang, and are counted as %.1f", logins, f.Lost)
	}
	execute(t, holder, "ROLLBACK")
}

// TestSessionsThatStandInAnExtensionAreTold: whether a peer will answer nobody can tell, but that sessions stand still is not nothing.
func TestSessionsThatStandInAnExtensionAreTold(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	url := server.URL("postgres")
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION postgres_fdw"); err != nil {
		t.Skipf("this PostgreSQL comes without postgres_fdw: %v", err)
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, conn, "CREATE VIEW slow AS SELECT 1 AS n FROM pg_sleep(600)",
		fmt.Sprintf("CREATE SERVER peer FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%d', dbname 'postgres')", config.Host, config.Port),
		fmt.Sprintf("CREATE USER MAPPING FOR PUBLIC SERVER peer OPTIONS (user '%s', password '%s')", config.User, config.Password),
		"CREATE FOREIGN TABLE far (n int) SERVER peer OPTIONS (table_name 'slow')")
	var pid uint32
	for range 3 {
		pid = stand(t, url, "SELECT n FROM far", "wait_event_type = 'Extension'")
	}
	r := examine(t, url, 2*examineFor)
	expectCalm(t, r) // it may be work
	f := expect(t, r, doctor.WaitsUnexplained, doctor.Info)
	expectFact(t, f, "3 sessions stand still in a wait of an extension")
	expectFact(t, f, fmt.Sprintf("pid %d has stood still for", pid), "SELECT n FROM far")
}

// TestAnotherDatabasesQueueIsNotExplainedAway by a finding that counts only those of its own.
func TestAnotherDatabasesQueueIsNotExplainedAway(t *testing.T) {
	t.Parallel()
	url := alone(t)
	there := another(t, url)
	far, near := connect(t, there), connect(t, url)
	execute(t, far, "CREATE TABLE a (id int)", "BEGIN", "LOCK TABLE a")
	execute(t, near, "CREATE TABLE b (id int)", "BEGIN", "LOCK TABLE b")
	for range 8 {
		stand(t, there, "SELECT FROM a", "wait_event_type = 'Lock'")
	}
	for range 2 {
		stand(t, url, "SELECT FROM b", "wait_event_type = 'Lock'")
	}
	r := examine(t, url, 2*examineFor)
	f := expect(t, r, doctor.WaitsUnexplained, doctor.Critical)
	expectFact(t, f, fmt.Sprintf("pid %d ", far.PgConn().PID()), "blocks 8 sessions")
	if _, found := r.Find(doctor.TableLock); !found {
		t.Errorf("the queue for b is not found, so that this proves little:\n%s", describe(r))
	}
	execute(t, far, "ROLLBACK")
	execute(t, near, "ROLLBACK")
}

// TestAQueueForACatalogOfAllDatabasesIsNamed: it is in no database, and so in each.
func TestAQueueForACatalogOfAllDatabasesIsNamed(t *testing.T) {
	t.Parallel()
	url := alone(t)
	shared, own := connect(t, url), connect(t, url)
	execute(t, own, "CREATE TABLE b (id int)", "BEGIN", "LOCK TABLE b")
	execute(t, shared, "BEGIN", "LOCK TABLE pg_shdescription IN ACCESS EXCLUSIVE MODE")
	stand(t, url, "SELECT FROM b", "wait_event_type = 'Lock'")
	for range 5 {
		stand(t, url, "SELECT FROM pg_shdescription", "wait_event_type = 'Lock'")
	}
	f := expect(t, examine(t, url, examineFor), doctor.TableLock, doctor.Critical)
	expectFact(t, f, "for the table pg_catalog.pg_shdescription")
	execute(t, shared, "ROLLBACK")
	execute(t, own, "ROLLBACK")
}
