package doctor_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// examineFor is long enough for each of these conditions to show.
const examineFor = 2500 * time.Millisecond

func TestNotifyCommitLockIsNamedWithTheTriggerBehindIt(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	// A flush takes 2 ms, as on network storage. The tests' default server flushes nothing, and holds the lock too briefly for every sample to see it.
	url := pgtest.Server(t, map[string]string{"fsync": "on", "commit_delay": "2000", "commit_siblings": "0"}).URL("postgres")
	execute(t, connect(t, url),
		"CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY, n int)",
		"CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('entry', NEW.id::text); RETURN NEW; END $$",
		"CREATE TRIGGER entry_tell AFTER INSERT ON entry FOR EACH ROW EXECUTE FUNCTION tell()",
		"CREATE FUNCTION notify_nobody() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE DEBUG 'notify_us'; END $$")
	runSessions(t, url, 24, repeat("INSERT INTO entry (n) VALUES ($1)"))
	r := examine(t, url, examineFor)
	f := expect(t, r, doctor.NotifyCommitLock, doctor.Warning)
	expectFact(t, f, "trigger entry_tell on", "entry calls", "tell()")
	expectFact(t, f, "object 0 of class 1262")
	expectNow(t, f, "SET lock_timeout = '1s'; ALTER TABLE public.entry DISABLE TRIGGER entry_tell; Until ALTER TABLE public.entry ENABLE TRIGGER entry_tell; they are told nothing")
	if strings.Contains(describe(r), "notify_nobody") {
		t.Error("the doctor named a function that does not notify")
	}
}

func TestListenersWokenForOthersAreCounted(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	const listeners = 80
	for i := range listeners {
		execute(t, connect(t, url), fmt.Sprintf("LISTEN own_%d", i))
	}
	runSessions(t, url, 2, repeat("SELECT pg_notify('nobody', 'something that is long enough to tell: ' || $1::int)"))
	f := expect(t, examine(t, url, examineFor), doctor.ListenersWoken, doctor.Warning)
	expectFact(t, f, "80 sessions idle with LISTEN")
	expectFact(t, f, "of CPU time a second, at 15 µs each")
}

// TestListenersThatHaveRunAnotherStatementCount: most listeners have run something since LISTEN.
func TestListenersThatHaveRunAnotherStatementCount(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	for i := range 60 {
		execute(t, connect(t, url), fmt.Sprintf("LISTEN own_%d", i), "SELECT 'something else'")
	}
	runSessions(t, url, 2, repeat("SELECT pg_notify('nobody', 'something that is long enough to tell: ' || $1::int)"))
	f := expect(t, examine(t, url, 2*examineFor), doctor.ListenersWoken, doctor.Warning)
	expectFact(t, f, "0 sessions idle with LISTEN")
	expectFact(t, f, "60 sessions more seen awake that have run another statement since LISTEN")
}

// TestAQueueThatIsSoonFullIsNotInformation: what counts is the time until the notification queue is full.
func TestAQueueThatIsSoonFullIsNotInformation(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	conn := connect(t, pgtest.Empty(t))
	parameters, least := map[string]string{}, doctor.Warning
	var version int
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 170000 {
		parameters["max_notify_queue_pages"], least = "20000", doctor.Critical
	}
	url := pgtest.Server(t, parameters).URL("postgres")
	listener := connect(t, url)
	execute(t, listener, "LISTEN entry", "BEGIN", "SELECT 1")
	teller := connect(t, url)
	execute(t, teller, "SELECT pg_notify('entry', repeat('x', 7900) || i) FROM generate_series(1, 600) i")
	runSessions(t, url, 1, repeat("SELECT pg_notify('entry', repeat('x', 7900) || i) FROM generate_series(1, 20) i WHERE $1::int = 0", "SELECT pg_sleep(0.05)"))
	r := examine(t, url, 2*examineFor)
	f := expect(t, r, doctor.NotifyQueueFilling, least)
	expectFact(t, f, "at this rate it is full in")
	expectFact(t, f, fmt.Sprintf("pid %d", listener.PgConn().PID()))
}

func TestWhoFillsTheNotifyQueueIsNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	parameters := map[string]string{}
	probe := connect(t, pgtest.Empty(t))
	notifications := 12_000 // one page each: more than a hundredth of the queue before 17
	var version int
	if err := probe.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 170000 {
		parameters["max_notify_queue_pages"] = "400"
		notifications = 250
	}
	url := pgtest.Server(t, parameters).URL("postgres")
	listener := connect(t, url)
	execute(t, listener, "SET application_name = 'slow reader'", "BEGIN", "LISTEN entry", "COMMIT", "BEGIN", "SELECT 1")
	teller := connect(t, url)
	execute(t, teller, fmt.Sprintf("SELECT pg_notify('entry', repeat('x', 7900) || i) FROM generate_series(1, %d) i", notifications))
	until(t, teller, "SELECT count(*) = 1 FROM pg_stat_activity WHERE xact_start < clock_timestamp() - interval '1 second' AND state = 'idle in transaction'")
	least := doctor.Info
	if version >= 170000 {
		least = doctor.Critical
	}
	f := expect(t, examine(t, url, time.Second), doctor.NotifyQueueFilling, least)
	expectFact(t, f, fmt.Sprintf("pid %d (slow reader", listener.PgConn().PID()))
}

func TestConnectionStormIsThePostmasters(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	// Most clients only send an SSLRequest, which costs them next to nothing and the postmaster a fork, so it falls behind even on a busy machine.
	const knock, logIn = 120, 10
	server := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	for range knock {
		all.Go(func() {
			for ctx.Err() == nil {
				if conn, err := new(net.Dialer).DialContext(ctx, "tcp", server); err == nil {
					_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
					_, _ = conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}) // SSLRequest
					_, _ = conn.Read(make([]byte, 1))
					_ = conn.(*net.TCPConn).SetLinger(0) // close thousands of ports without TIME_WAIT
					conn.Close()
				}
			}
		})
	}
	for range logIn {
		all.Go(func() {
			for ctx.Err() == nil {
				// Some are refused because the server is full, but each has cost a fork.
				if conn, err := pgx.ConnectConfig(ctx, config); err == nil {
					conn.Close(context.Background())
				}
			}
		})
	}
	f := expect(t, examine(t, url, 4*time.Second), doctor.PostmasterSaturated, doctor.Warning)
	expectFact(t, f, "answer to an SSLRequest")
}

func TestHotRowIsNamedByItsKey(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	f := expect(t, examine(t, hotRowLoad(t), examineFor), doctor.HotRow, doctor.Critical)
	expectFact(t, f, "the row of counter with tenant = 7, name = visits")
	expectFact(t, f, "ctid (")
	expectFact(t, f, "lines: ", " waiting sessions each")
	for _, e := range f.Evidence {
		if strings.HasPrefix(e.Fact, "lines: 0 ") {
			t.Errorf("there is a line in some samples, and none on average: %s", e.Fact)
		}
	}
}

func TestMultiXactsAreTracedToTheirForeignKey(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	execute(t, connect(t, url),
		"CREATE TABLE parent (id int PRIMARY KEY, n int)", "INSERT INTO parent SELECT i, 0 FROM generate_series(1, 3) i",
		"CREATE TABLE other (id int PRIMARY KEY)", "CREATE TABLE bystander (id int REFERENCES other)",
		"CREATE TABLE child (id bigint GENERATED ALWAYS AS IDENTITY, parent int CONSTRAINT child_of_parent REFERENCES parent)")
	runSessions(t, url, 16, repeat("BEGIN", "INSERT INTO child (parent) SELECT 1 FROM generate_series(1, 3) WHERE $1::int >= 0", "SELECT 1", "COMMIT"))
	f := expect(t, examine(t, url, examineFor), doctor.MultiXactContention, doctor.Info)
	expectFact(t, f, "child_of_parent on public.child: FOREIGN KEY (parent) REFERENCES public.parent(id)")
	if strings.Contains(fmt.Sprint(f.Evidence), "bystander") {
		t.Error("the doctor named an unused foreign key")
	}
}

func TestStatementsThatDoNothingAreNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	f := expect(t, examine(t, conflictsLoad(t), examineFor), doctor.ChattyStatements, doctor.Info)
	expectFact(t, f, "seen: ", "index probes/s for 0 rows inserted/s")
}

func TestCommitsOfSingleRowsAreSeenInTheWaitsForTheLog(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	f := expect(t, examine(t, rowCommitsLoad(t), examineFor), doctor.RowCommits, doctor.Warning)
	expectFact(t, f, "INSERT INTO entry VALUES")
	expectFact(t, f, "commit_delay is 2000 µs")
}

func TestStatementsAreCountedWherePgStatStatementsIs(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Server(t, map[string]string{"shared_preload_libraries": "pg_stat_statements"}).URL("postgres")
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Skipf("this PostgreSQL comes without pg_stat_statements: %v", err)
	}
	execute(t, conn, "CREATE TABLE job (id int PRIMARY KEY, state text)")
	runSessions(t, url, 4, repeat("BEGIN", "SELECT id FROM job WHERE state = 'ready' AND id > $1 LIMIT 1 FOR UPDATE SKIP LOCKED", "COMMIT"))
	r := examine(t, url, examineFor)
	f := expect(t, r, doctor.ChattyStatements, doctor.Info)
	expectFact(t, f, "SELECT id FROM job WHERE state")
	if !r.Server.Statements {
		t.Error("pg_stat_statements was not read")
	}
}

func TestWhoHoldsATableUpIsNamed(t *testing.T) {
	pgtest.Alone(t, "where the machine is busy, its load does not do what it is for")
	url := pgtest.Empty(t)
	reader, owner := connect(t, url), connect(t, url)
	execute(t, reader, "CREATE TABLE stock (id int)", "SET application_name = 'report'", "BEGIN", "SELECT * FROM stock")
	altered := make(chan error, 1)
	go func() { // ends with the reader's transaction, which the test waits for
		_, err := owner.Exec(context.Background(), "ALTER TABLE stock ADD n int")
		altered <- err
	}()
	until(t, connect(t, url), "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'")
	var all sync.WaitGroup
	defer all.Wait()
	for range 6 {
		conn := connect(t, url)
		all.Go(func() {
			if _, err := conn.Exec(context.Background(), "SELECT id FROM stock"); err != nil {
				t.Error(err)
			}
		})
	}
	r := examine(t, url, examineFor)
	execute(t, reader, "COMMIT")
	if err := pgtest.Receive(t, altered, "the table was altered"); err != nil {
		t.Error(err)
	}
	f := expect(t, r, doctor.TableLock, doctor.Critical)
	expectFact(t, f, "wants AccessExclusiveLock: ALTER TABLE stock ADD n int")
	expectFact(t, f, fmt.Sprintf("pid %d (postgres, report, 127.0.0.1) holds AccessShareLock, idle in transaction, in a transaction for ", reader.PgConn().PID()))
}
