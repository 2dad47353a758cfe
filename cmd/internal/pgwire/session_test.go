package pgwire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/pgwire"
	"github.com/weir-pg/weir/internal/hub"
)

func TestListenAndNotifyTakeEffectAtCommit(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	listener, _ := e.session(nil)
	sender, _ := e.session(nil)
	listener.asks("LISTEN marker", "LISTEN /I")
	// Relayed messages arrive in order, so a marker shows what did not arrive before it.
	marker := func(name string) {
		t.Helper()
		sender.asks("NOTIFY marker, '"+name+"'", "NOTIFY /I")
		listener.expect("!marker " + name)
	}

	sender.asks("BEGIN", "BEGIN /T", "NOTIFY a, 'early'", "NOTIFY /T")
	listener.asks("BEGIN", "BEGIN /T", "LISTEN a", "LISTEN /T", "COMMIT", "COMMIT /I")
	sender.asks("NOTIFY a, 'early'", "NOTIFY /T", "NOTIFY a, 'late'", "NOTIFY /T", "END", "COMMIT /I")
	listener.expect("!a early") // once
	listener.expect("!a late")

	sender.asks("START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE", "START TRANSACTION /T", "NOTIFY a", "NOTIFY /T",
		"ABORT", "ROLLBACK /I")
	marker("nothing after a rollback")
	listener.asks("BEGIN", "BEGIN /T", "UNLISTEN a", "UNLISTEN /T", "LISTEN b", "LISTEN /T", "ROLLBACK", "ROLLBACK /I")
	sender.asks("NOTIFY b", "NOTIFY /I", "NOTIFY a", "NOTIFY /I")
	listener.expect("!a ")

	sender.asks(
		"BEGIN", "BEGIN /T", "NOTIFY a, '1'", "NOTIFY /T", "SAVEPOINT s", "SAVEPOINT /T", "NOTIFY a, '2'", "NOTIFY /T",
		"SAVEPOINT s", "SAVEPOINT /T", "NOTIFY a, '3'", "NOTIFY /T", "nonsense", "ERROR 0A000 /E", "NOTIFY a, '4'", "ERROR 25P02 /E",
		"ROLLBACK TO s", "ROLLBACK /T", "RELEASE SAVEPOINT s", "RELEASE /T", "ROLLBACK WORK TO SAVEPOINT s", "ROLLBACK /T",
		"NOTIFY a, '5'", "NOTIFY /T", "ROLLBACK TO other", "ERROR 3B001 /E", "ROLLBACK TO s", "ROLLBACK /T", "COMMIT", "COMMIT /I")
	listener.expect("!a 1")
	marker("savepoints that were rolled back deliver nothing")

	listener.asks("LISTEN c; UNLISTEN *; LISTEN d", "LISTEN UNLISTEN LISTEN /I",
		"SELECT pg_listening_channels()", "[pg_listening_channels:25] (d) SELECT 1 /I")
	sender.asks("NOTIFY a", "NOTIFY /I", "NOTIFY c", "NOTIFY /I", "NOTIFY d", "NOTIFY /I")
	listener.expect("!d ")
}

func TestErrorsFailTheTransactionUntilItEnds(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r, _ := e.session(nil)
	r.asks(
		"SELECT 1", "[?column?:23] (1) SELECT 1 /I",
		"COMMIT", "WARNING 25P01 COMMIT /I", "ROLLBACK", "WARNING 25P01 ROLLBACK /I", "SAVEPOINT s", "ERROR 25P01 /I",
		"BEGIN", "BEGIN /T", "BEGIN", "WARNING 25001 BEGIN /T", "SELECT * FROM account", "ERROR 0A000 /E", "SELECT 1", "ERROR 25P02 /E",
		"BEGIN", "ERROR 25P02 /E", "COMMIT", "ROLLBACK /I", "SELECT 1 AS one", "[one:23] (1) SELECT 1 /I",
		"BEGIN", "BEGIN /T", "COMMIT AND CHAIN", "COMMIT /T", "ROLLBACK AND CHAIN", "ROLLBACK /T", "ROLLBACK AND NO CHAIN", "ROLLBACK /I",
		"LISTEN a; nonsense; LISTEN b", "LISTEN ERROR 0A000 /I",
		"SELECT * FROM pg_listening_channels()", "[pg_listening_channels:25] SELECT 0 /I",
		"LISTEN a; BEGIN; LISTEN b; ROLLBACK", "LISTEN BEGIN LISTEN ROLLBACK /I",
		"SELECT pg_listening_channels()", "[pg_listening_channels:25] SELECT 0 /I",
		"BEGIN; LISTEN a; COMMIT; LISTEN b; syntax", "BEGIN LISTEN COMMIT LISTEN ERROR 0A000 /I",
		"SELECT pg_listening_channels()", "[pg_listening_channels:25] (a) SELECT 1 /I",
		"LISTEN c; LISTEN", "ERROR 42601 /I", "", "empty /I", " ; -- nothing", "empty /I",
		"NOTIFY a, 7", "ERROR 42601 /I", "SELECT pg_notify('', 'x')", "ERROR 22023 /I", "SELECT pg_notify(NULL, 'x')", "ERROR 22023 /I",
		"SELECT pg_notify('"+strings.Repeat("x", 256)+"', '')", "ERROR 22023 /I", "LISTEN "+strings.Repeat("x", 256), "ERROR 42622 /I",
		"NOTIFY a, 'x", "ERROR 42601 /I", "NOTIFY a, E'\\000'", "ERROR 22021 /I", "NOTIFY a, E'\\xff'", "ERROR 22021 /I",
		"DECLARE c CURSOR FOR SELECT 1", "ERROR 0A000 /I", "COPY t FROM STDIN", "ERROR 0A000 /I", "PREPARE TRANSACTION 'x'", "ERROR 0A000 /I",
	)
}

func TestWhatIsNotSupportedSaysWhereToSendIt(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r, _ := e.session(nil)
	r.send(&pgproto3.Query{String: "INSERT INTO account VALUES (1)"})
	m, err := r.wire.Receive()
	if err != nil {
		t.Fatal(err)
	}
	told, ok := m.(*pgproto3.ErrorResponse)
	if !ok || !strings.Contains(told.Message, "only listens and notifies") || !strings.Contains(told.Message, "INSERT") ||
		!strings.Contains(told.Hint, "to the database itself") {
		t.Errorf("got %+v", m)
	}
}

func TestNotificationsWaitWhileATransactionIsOpen(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	listener, _ := e.session(nil)
	other, _ := e.session(nil)
	sender, _ := e.session(nil)
	listener.asks("LISTEN a", "LISTEN /I", "BEGIN", "BEGIN /T")
	other.asks("LISTEN a", "LISTEN /I")
	sender.asks("NOTIFY a, 'x'", "NOTIFY /I")
	other.expect("!a x") // so the listener could have had it
	listener.asks("SELECT 1", "[?column?:23] (1) SELECT 1 /T", "nonsense", "ERROR 0A000 /E")
	listener.asks("ROLLBACK", "ROLLBACK /I")
	listener.expect("!a x")
}

func TestATransactionHearsItself(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r, _ := e.session(nil)
	r.asks("LISTEN a; NOTIFY a, 'own'", "LISTEN NOTIFY /I")
	r.expect("!a own")
}

func TestACommitThatFailsDoesNothing(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{DurableNotify: true})
	r, _ := e.session(nil)
	r.asks("SELECT 1", "[?column?:23] (1) SELECT 1 /I")
	e.source.mu.Lock()
	e.source.fails = errors.New("no space left")
	e.source.mu.Unlock()
	r.asks("NOTIFY a", "ERROR 58030 /I", "BEGIN", "BEGIN /T", "LISTEN a", "LISTEN /T", "NOTIFY a", "NOTIFY /T", "COMMIT", "ERROR 58030 /I",
		"SELECT pg_listening_channels()", "[pg_listening_channels:25] SELECT 0 /I")
	e.source.mu.Lock()
	e.source.fails = &hub.RefusedError{Err: errors.New("payload too long")}
	e.source.mu.Unlock()
	r.asks("NOTIFY a", "ERROR 22023 /I")
}

func TestExtendedProtocol(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{})
	r, _ := e.session(nil)
	parse := func(name, sql string, oids ...uint32) *pgproto3.Parse {
		return &pgproto3.Parse{Name: name, Query: sql, ParameterOIDs: oids}
	}
	bind := func(portal, name string, parameters ...[]byte) *pgproto3.Bind {
		return &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: name, Parameters: parameters}
	}
	run := func(want string, messages ...pgproto3.FrontendMessage) {
		t.Helper()
		r.send(append(messages, &pgproto3.Sync{})...)
		if got := r.answer(); got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	}
	statement, portal := &pgproto3.Describe{ObjectType: 'S', Name: "s"}, &pgproto3.Describe{ObjectType: 'P'}
	execute := &pgproto3.Execute{}

	run("/I")
	run("1 t[] n 2 LISTEN 1 t[25,25] [pg_notify:2278] /I", parse("", "LISTEN a"), portalless('S'), bind("", ""), execute,
		parse("s", "SELECT pg_notify($1, $2)"), statement)
	run("2 [pg_notify:2278] () SELECT 1 /I", bind("", "s", []byte("a"), []byte("x")), portal, execute)
	r.expect("!a x")
	run("ERROR 42P05 /I", parse("s", "SELECT 1"))
	run("3 1 t[1043,25] [pg_notify:2278] /I",
		&pgproto3.Close{ObjectType: 'S', Name: "s"}, parse("s", "SELECT pg_notify($1, $2)", 1043, 705), statement)
	binary := bind("", "s", []byte("a"), nil)
	binary.ParameterFormatCodes, binary.ResultFormatCodes = []int16{1, 0}, []int16{1}
	run("2 () SELECT 1 /I", binary, execute)
	r.expect("!a ")

	// After an error, messages up to Sync are skipped, and what came before is undone.
	run("1 2 LISTEN ERROR 26000 /I", parse("", "LISTEN b"), bind("", ""), execute, bind("", "none"), execute)
	run("1 2 (a) SELECT 1 /I", parse("", "SELECT pg_listening_channels()"), bind("", ""), execute)
	run("ERROR 34000 /I", execute)
	run("1 2 empty /I", parse("", ""), bind("", ""), execute)
	run("ERROR 42601 /I", parse("", "SELECT 1; SELECT 2"))
	run("1 ERROR 08P01 /I", parse("", "SELECT pg_notify($1, $2)"), bind("", "", []byte("a")))
	run("1 ERROR 22021 /I", parse("", "SELECT pg_notify('a', $1)"), bind("", "", []byte{0xff}))
	run("ERROR 42P18 /I", parse("", "SELECT pg_notify('a', $2)"))
	run("ERROR 0A000 /I", parse("", "SELECT pg_notify('a', $1)", 600))
	run("1 2 ERROR 0A000 /I", parse("", "SELECT a FROM b WHERE c = $1"), bind("", ""), execute)

	// A portal returns its rows in portions, within a transaction.
	r.asks("LISTEN a; LISTEN a2", "LISTEN LISTEN /I")
	rows := &pgproto3.Execute{Portal: "p", MaxRows: 1}
	r.send(parse("", "BEGIN"), bind("", ""), execute, parse("", "SELECT pg_listening_channels()"), bind("p", ""), rows, rows, &pgproto3.Sync{})
	if got := r.answer(); got != "1 2 BEGIN 1 2 (a) s (a2) SELECT 2 /T" && got != "1 2 BEGIN 1 2 (a2) s (a) SELECT 2 /T" {
		t.Error(got)
	}
}

func portalless(kind byte) *pgproto3.Describe { return &pgproto3.Describe{ObjectType: kind} }

func TestSettingsAreKeptAndReported(t *testing.T) {
	t.Parallel()
	e := start(t, pgwire.Config{ServerVersion: "17.2 (Debian 17.2-1)"})
	r, begin := e.session(map[string]string{
		"application_name": "tests", "client_encoding": "'utf-8'", "options": `-c TimeZone=Europe/Rome --statement-timeout=5 -csearch_path=a\ b`,
	})
	for _, want := range []string{
		"application_name=tests", "client_encoding=UTF8", "server_version=17.2 (Debian 17.2-1)", "server_encoding=UTF8", "TimeZone=Europe/Rome",
		"in_hot_standby=off", "default_transaction_read_only=off", "integer_datetimes=on", "standard_conforming_strings=on", "is_superuser=off",
		"session_authorization=someone", "DateStyle=ISO, MDY", "IntervalStyle=postgres", "search_path=a b", "scram_iterations=4096",
	} {
		if !strings.Contains(begin, want+" ") {
			t.Errorf("not reported: %s in %s", want, begin)
		}
	}
	r.asks(
		"SHOW statement_timeout", "[statement_timeout:25] (5) SHOW /I", "SHOW server_version_num", "[server_version_num:25] (170002) SHOW /I",
		"SET application_name = 'other'", "SET application_name=other /I", "SET extra_float_digits = 3", "SET /I",
		"SET x.y TO a, 'b', -1", "SET /I",
		"SELECT current_setting('x.y'), set_config('x.z', 'v', false)", "[current_setting:25|set_config:25] (a, b, -1|v) SELECT 1 /I",
		"SHOW transaction_read_only", "[transaction_read_only:25] (off) SHOW /I",
		"SHOW TRANSACTION ISOLATION LEVEL", "[transaction_isolation:25] (read committed) SHOW /I",
		"SET datestyle TO iso", "SET /I", "SHOW datestyle", "[DateStyle:25] (ISO, MDY) SHOW /I", "SHOW nothing", "ERROR 42704 /I",
		"SET server_version = '1'", "ERROR 55P02 /I", "SET client_encoding TO 'LATIN1'", "ERROR 22023 /I",
		"SET NAMES 'UTF8'", "SET /I", "SET TIME ZONE 'UTC'", "SET TimeZone=UTC /I", "RESET timezone", "RESET TimeZone=Europe/Rome /I",
		"BEGIN", "BEGIN /T", "SET application_name = 'rolled back'", "SET application_name=rolled back /T",
		"ROLLBACK", "ROLLBACK application_name=other /I",
		"BEGIN; SET LOCAL application_name = 'local'", "BEGIN SET application_name=local /T", "COMMIT", "COMMIT application_name=other /I",
		"SET LOCAL application_name = 'local'", "WARNING 25P01 SET /I",
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET /I", "SET SESSION AUTHORIZATION DEFAULT", "SET /I",
		"SET ROLE admin", "ERROR 0A000 /I",
		"LISTEN a", "LISTEN /I", "DISCARD ALL", "DISCARD ALL application_name=tests /I",
		"SELECT pg_listening_channels()", "[pg_listening_channels:25] SELECT 0 /I",
		"SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;", "[pg_advisory_unlock_all:2278] () SELECT 1 CLOSE CURSOR ALL UNLISTEN RESET /I",
		"SELECT version()", "[version:25] (PostgreSQL 17.2 (Debian 17.2-1) (Weir: this endpoint only listens and notifies)) SELECT 1 /I",
		"SELECT current_user, current_database(), pg_catalog.pg_is_in_recovery()", "[current_user:19|current_database:19|pg_is_in_recovery:16] (someone|app|f) SELECT 1 /I",
	)
}
