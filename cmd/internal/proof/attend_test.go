package proof

import (
	"context"
	"net/netip"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// attend makes a session attend for a worker, using the session's own address.
func attend(t *testing.T, conn *pgx.Conn, worker int32) bool {
	t.Helper()
	here := netip.MustParseAddrPort(conn.PgConn().Conn().LocalAddr().String())
	return value[bool](t, conn, `SELECT weir.attend($1, $2, $3, $4)`, worker, conn.PgConn().PID(), here.Addr().Unmap(), here.Port())
}

func isFenced(t *testing.T, conn *pgx.Conn, worker int32) bool {
	t.Helper()
	return value[bool](t, conn, `SELECT EXISTS (SELECT FROM weir.worker w WHERE w.id = $1 AND w.fenced)`, worker)
}

// watched returns how much time has passed by the counter with which Weir measures leases, in ms.
func watched(t *testing.T, conn *pgx.Conn) int64 {
	t.Helper()
	return value[int64](t, conn, `SELECT last_value FROM weir.watched`)
}

// hasEnded waits until a session has ended on the server, with its locks.
func hasEnded(t *testing.T, conn *pgx.Conn, pid uint32) {
	t.Helper()
	until(t, "the session has ended", func() bool {
		return value[bool](t, conn, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1) AND NOT EXISTS (SELECT FROM pg_locks WHERE pid = $1)`, pid)
	})
}

// TestJobsOfAKilledWorkerNeedNotWaitForItsLease: once the session of an attending worker has ended, and no other session has replaced it within
// seconds, its jobs run on other workers; a worker that attends again with any session keeps its jobs.
func TestJobsOfAKilledWorkerNeedNotWaitForItsLease(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	start := func() (int32, *pgx.Conn) {
		t.Helper()
		worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 minutes')`)
		session := connect(t, url)
		if !attend(t, session, worker) {
			t.Fatal("the session of a worker is not recognized as its own")
		}
		return worker, session
	}
	enqueueN(t, conn, "q", 3)
	killed, first := start()
	back, second := start()
	beats, third := start()
	for _, w := range []int32{killed, back, beats} {
		mustClaim(t, conn, w, "q", 1)
	}
	for range 5 {
		if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 0 {
			t.Fatalf("rescue reports workers %v, but all of them attend", got)
		}
	}
	for _, c := range []*pgx.Conn{first, second, third} {
		if err := c.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		hasEnded(t, conn, c.PgConn().PID())
	}
	exec(t, conn, `SELECT weir._rescue()`) // misses all three
	began := watched(t, conn)
	again := connect(t, url)
	if !attend(t, again, back) {
		t.Fatal("a worker can't attend again")
	}
	exec(t, conn, `SELECT weir.heartbeat($1)`, beats)
	relogged := 0
	until(t, "the jobs of the killed worker are logged again", func() bool {
		relogged += value[int](t, conn, `SELECT coalesce(sum(relogged), 0) FROM weir._rescue()`)
		return relogged > 0
	})
	if passed := watched(t, conn) - began; passed < 3000 || passed > 10_000 {
		t.Errorf("the worker was fenced after %d ms", passed)
	}
	if !isFenced(t, conn, killed) || isFenced(t, conn, back) || isFenced(t, conn, beats) || relogged != 1 {
		t.Errorf("fenced: killed %v, back %v, beats %v; %d jobs", isFenced(t, conn, killed), isFenced(t, conn, back), isFenced(t, conn, beats), relogged)
	}
	// That a worker was missed once does not shorten its time to reconnect when it is missed again.
	if err := again.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	hasEnded(t, conn, again.PgConn().PID())
	exec(t, conn, `SELECT weir._rescue()`)
	if isFenced(t, conn, back) {
		t.Error("a worker that attended again was fenced at the first check")
	}
}

// TestAStepOfTheClockIsNotTakenFromWhoReconnects: a worker that has lost its session has 3 s to reconnect, and a step of the clock, in either
// direction, takes at most half a second of that: a worker interrupts its jobs after 2.25 s.
func TestAStepOfTheClockIsNotTakenFromWhoReconnects(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	for _, step := range []int{2000, -2000, 3_600_000} {
		worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 minutes')`)
		session := connect(t, url)
		if !attend(t, session, worker) {
			t.Fatal("the session of a worker is not recognized as its own")
		}
		if err := session.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		hasEnded(t, conn, session.PgConn().PID())
		exec(t, conn, `SELECT weir._rescue()`) // notices that it is missing
		checks := 0
		for ; !isFenced(t, conn, worker); checks++ {
			ago := 500
			if checks == 0 {
				ago += step
			}
			exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1)`, ago)
			exec(t, conn, `SELECT weir._rescue()`)
			if checks > 20 {
				t.Fatal("the worker is never fenced")
			}
		}
		if checks != 6 {
			t.Errorf("after a step of %d ms the worker is fenced at check %d, made every half a second, want 6", step, checks)
		}
	}
}

// TestALeaseTakesNoMoreChecksAfterARestart: of a worker that was lost with the server, the lease counts, up to 2 s of it at each check, as of any other:
// checks are rare where few are left of many workers.
func TestALeaseTakesNoMoreChecksAfterARestart(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '6 seconds')`)
	session := connect(t, url)
	if !attend(t, session, worker) {
		t.Fatal("the session of a worker is not recognized as its own")
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	hasEnded(t, conn, session.PgConn().PID())
	exec(t, conn, `DELETE FROM weir.attendance WHERE worker <> 0`) // as after a crash or a failover
	checks := 0
	for ; !isFenced(t, conn, worker); checks++ {
		exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 15000)`)
		exec(t, conn, `SELECT weir._rescue()`)
		if checks > 30 {
			t.Fatal("the worker is never fenced")
		}
	}
	if checks > 6 {
		t.Errorf("the worker is fenced after %d checks, want at most 6: its lease is 6 s", checks)
	}
}

// TestAttendingNeedsAnUnbrokenLine: a session that was opened by a pooler or a proxy does not attend for a worker.
func TestAttendingNeedsAnUnbrokenLine(t *testing.T) {
	pgtest.Alone(t, "it counts locks of the whole server")
	conn := connect(t, pgtest.Database(t))
	worker := startWorker(t, conn, "q")
	here := netip.MustParseAddrPort(conn.PgConn().Conn().LocalAddr().String())
	for what, ok := range map[string]bool{
		"pooler": value[bool](t, conn, `SELECT weir.attend($1, $2 + 1, $3, $4)`, worker, conn.PgConn().PID(), here.Addr(), here.Port()),
		"proxy":  value[bool](t, conn, `SELECT weir.attend($1, $2, $3, $4 + 1)`, worker, conn.PgConn().PID(), here.Addr(), here.Port()),
		"NAT":    value[bool](t, conn, `SELECT weir.attend($1, $2, '192.0.2.1', $3)`, worker, conn.PgConn().PID(), here.Port()),
		"socket": value[bool](t, conn, `SELECT weir.attend($1, $2, NULL, NULL)`, worker, conn.PgConn().PID()),
	} {
		if ok {
			t.Errorf("a session attends through a %s", what)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE classid = 1464158554`); n != 0 {
		t.Errorf("%d locks are held although nothing attends", n)
	}
	if !attend(t, conn, worker) {
		t.Error("a direct session does not attend")
	}
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	_, err := conn.Exec(t.Context(), `SELECT weir.attend($1, $2, $3, $4)`, worker, conn.PgConn().PID(), here.Addr(), here.Port())
	wantCode(t, "attend of a fenced worker", err, "WR001")
}

// TestAttendingUsesUpNoTransactionIDs: heartbeats and rescues write nothing for workers that attend, except when something changes.
func TestAttendingUsesUpNoTransactionIDs(t *testing.T) {
	pgtest.Alone(t, "it counts transaction ids of the whole server")
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	session := connect(t, url)
	attend(t, session, worker)
	exec(t, session, `SELECT weir.heartbeat($1, 7)`, worker)
	next := func() int64 {
		return value[int64](t, conn, `SELECT pg_snapshot_xmax(s)::text::bigint + age(pg_snapshot_xmax(s)::xid) FROM pg_current_snapshot() s`)
	}
	before, rows := next(), value[int](t, conn, `SELECT count(*) FROM weir.last_word`)
	for range 20 {
		if value[bool](t, session, `SELECT fenced FROM weir.heartbeat($1, 7)`, worker) {
			t.Fatal("the worker is fenced")
		}
		exec(t, conn, `SELECT weir._rescue()`)
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.last_word`) - rows; n != 0 {
		t.Errorf("%d heartbeats were written", n)
	}
	if n := next() - before; n >= 20 { // background processes of the server may use up some
		t.Errorf("%d transaction ids were used up", n)
	}
	query := `SELECT state || ' ' || running || ' ' || (seen_at = now()) FROM weir.workers() WHERE id = $1`
	if got := value[string](t, conn, query, worker); got != "alive 7 true" {
		t.Errorf("the worker is %s, want alive, with 7, seen now", got)
	}
	exec(t, conn, `UPDATE weir.last_word SET at = at - interval '1 hour'`)
	if got := value[string](t, conn, query, worker); got != "alive 7 true" {
		t.Errorf("an hour later the worker is %s, want alive 7 true", got)
	}
}

// TestASessionThatStandsStillIsEndedAfterTheLease: if a process is stopped but keeps its connections, the server ends its attending session.
func TestASessionThatStandsStillIsEndedAfterTheLease(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '1 second')`)
	session := connect(t, url)
	exec(t, session, `SET idle_session_timeout = 0`)
	attend(t, session, worker)
	hasEnded(t, conn, session.PgConn().PID())
	until(t, "the worker is fenced", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return isFenced(t, conn, worker)
	})
}

// TestAServerWithoutRoomFencesNobodyForItsSession: a worker that loses its connection, and can't open another, keeps its lease.
func TestAServerWithoutRoomFencesNobodyForItsSession(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{"max_connections": "12"})
	url := server.URL("postgres")
	conn := connect(t, url)
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 minutes')`)
	session := connect(t, url)
	attend(t, session, worker)
	if err := session.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	hasEnded(t, conn, session.PgConn().PID())
	var others []*pgx.Conn
	for range 8 { // some more than are needed: workers of autovacuum count too, and come and go
		others = append(others, connect(t, url))
	}
	if !value[bool](t, conn, `SELECT weir._is_crowded()`) {
		t.Fatal("with 9 connections of 12, the server does not count as crowded")
	}
	exec(t, conn, `SELECT weir._rescue()`)
	began := watched(t, conn)
	until(t, "five seconds of the server have passed", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return watched(t, conn) >= began+5000
	})
	if isFenced(t, conn, worker) {
		t.Fatal("a worker that could not connect was fenced before its lease was over")
	}
	for _, c := range others {
		if err := c.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the worker is fenced", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return isFenced(t, conn, worker)
	})
}

// TestARestartFencesNobodyForItsSession: after a restart, a crash or a failover, which release all locks, the lease decides whether a worker is
// fenced.
func TestARestartFencesNobodyForItsSession(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"restart", "crash of a backend", "failover"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Server(t, nil)
			url := server.URL("postgres")
			conn := connect(t, url)
			if err := schema.Up(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
			worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 minutes')`)
			short := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '6 seconds')`)
			session, other := connect(t, url), connect(t, url)
			attend(t, session, worker)
			attend(t, other, short)
			exec(t, conn, `SELECT weir._rescue()`)
			switch how {
			case "restart":
				if err := server.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := server.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			case "crash of a backend":
				backend, err := os.FindProcess(int(connect(t, url).PgConn().PID())) // the test has its own server
				if err == nil {
					err = backend.Kill()
				}
				if err != nil {
					t.Fatal(err)
				}
				hasCrashed(t, conn)
			case "failover":
				standby := pgtest.Standby(t, server, nil)
				pgtest.Replayed(t, server, standby)
				observer := connect(t, standby.URL("postgres"))
				if state := value[string](t, observer, `SELECT state FROM weir.workers() WHERE id = $1`, worker); state != "alive" {
					t.Errorf("on the standby, the worker is shown as %s", state)
				}
				if err := server.Kill(); err != nil {
					t.Fatal(err)
				}
				pgtest.Promote(t, standby)
				url = standby.URL("postgres")
			}
			conn = reconnect(t, url)
			exec(t, conn, `SELECT weir._rescue()`)
			began := watched(t, conn)
			until(t, "five seconds of the server have passed", func() bool {
				exec(t, conn, `SELECT weir._rescue()`)
				return watched(t, conn) >= began+5000
			})
			if isFenced(t, conn, worker) || isFenced(t, conn, short) {
				t.Error("a worker was fenced before its lease was over")
			}
			until(t, "the worker with the short lease is fenced", func() bool {
				exec(t, conn, `SELECT weir._rescue()`)
				return isFenced(t, conn, short)
			})
			if isFenced(t, conn, worker) {
				t.Error("the worker with the long lease is fenced too")
			}
		})
	}
}

// hasCrashed waits until the server has ended a session.
func hasCrashed(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	until(t, "the server has ended all sessions", func() bool {
		_, err := conn.Exec(t.Context(), `SELECT`)
		return err != nil
	})
}

// reconnect connects to a server that may still be starting.
func reconnect(t *testing.T, url string) (conn *pgx.Conn) {
	t.Helper()
	until(t, "the server accepts connections", func() bool {
		var err error
		conn, err = pgx.Connect(t.Context(), url)
		return err == nil
	})
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// TestOneWorkerThatCannotBeFencedHidesNoOther: workers that are busy, or whose fencing fails, do not prevent the fencing of others.
func TestOneWorkerThatCannotBeFencedHidesNoOther(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	exec(t, conn, `SELECT weir._start('held ' || n, ARRAY['q'], '1 second') FROM generate_series(1, 30) n`)
	broken := value[int32](t, conn, `SELECT weir._start('broken', ARRAY['q'], '1 second')`)
	free := value[int32](t, conn, `SELECT weir._start('free', ARRAY['q'], '1 second')`)
	exec(t, holder, `BEGIN`)
	exec(t, holder, `SELECT pg_advisory_xact_lock_shared(1464158548, w.id) FROM weir.worker w WHERE w.name LIKE 'held%'`)
	exec(t, conn, `CREATE FUNCTION weir.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'this one not'; END $$`)
	exec(t, conn, `CREATE TRIGGER refuse BEFORE INSERT ON weir.worker FOR EACH ROW WHEN (NEW.fenced AND NEW.id = `+value[string](t, conn, `SELECT $1::integer::text`, broken)+`) EXECUTE FUNCTION weir.refuse()`)
	until(t, "the worker that can be fenced is fenced", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return isFenced(t, conn, free)
	})
	exec(t, holder, `COMMIT`)
	until(t, "all workers but the broken one are fenced", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return value[int](t, conn, `SELECT count(*) FROM weir.worker WHERE fenced`) == 31
	})
}

// TestAStrangersLockStopsNoRescue: anyone may hold advisory locks, even with the key of a worker that does not exist, and rescue still works.
func TestAStrangersLockStopsNoRescue(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, stranger := connect(t, url), connect(t, url)
	exec(t, stranger, `SELECT pg_advisory_lock_shared(1464158554, -1)`)
	exec(t, conn, `SELECT weir._rescue()`)
	exec(t, conn, `SELECT weir.workers()`)
}

// TestWhoFailsToAttendHoldsNoLock: a call that fails leaves no lock behind, which would make the worker seem alive.
func TestWhoFailsToAttendHoldsNoLock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, session := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	here := netip.MustParseAddrPort(session.PgConn().Conn().LocalAddr().String())
	try := func(what string, worker int32, want string) {
		t.Helper()
		_, err := session.Exec(t.Context(), `SELECT weir.attend($1, $2, $3, $4)`, worker, session.PgConn().PID(), here.Addr().Unmap(), here.Port())
		wantCode(t, what, err, want)
		if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1`, session.PgConn().PID()); n != 0 {
			t.Errorf("%s: %d locks are held", what, n)
		}
	}
	try("attend of an unknown worker", worker+1, "WR001")
	exec(t, session, `SET default_transaction_read_only = on`)
	try("attend in a read-only session", worker, "25006")
	exec(t, session, `SET default_transaction_read_only = off`)
	if !attend(t, session, worker) {
		t.Error("the session can't attend although it may write again")
	}
}

// TestASessionThatWasResetAttendsAgain: if a reset has released a session's locks, the next heartbeat takes them again.
func TestASessionThatWasResetAttendsAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, session := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	attend(t, session, worker)
	exec(t, session, `SELECT weir.heartbeat($1)`, worker)
	exec(t, session, `SELECT pg_advisory_unlock_all()`)
	if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 1 {
		t.Fatalf("rescue reports %v as missing", got)
	}
	exec(t, session, `SELECT weir.heartbeat($1)`, worker)
	for range 3 {
		if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 0 {
			t.Fatalf("rescue reports %v", got)
		}
	}
	if says := value[string](t, conn, `SELECT says FROM weir.last_word WHERE worker = $1 ORDER BY no DESC LIMIT 1`, worker); says != "attends" {
		t.Errorf("the heartbeat returned %q", says)
	}
}

// TestTheServerGivesUpNoQuietLine: the server waits as long as the lease before it gives up a silent connection, whose other end may still run jobs.
func TestTheServerGivesUpNoQuietLine(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, session := connect(t, url), connect(t, url)
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '40 seconds')`)
	for _, set := range []string{`SET tcp_user_timeout = '2s'`, `SET tcp_keepalives_idle = 1`, `SET tcp_keepalives_interval = 1`} {
		exec(t, session, set)
	}
	attend(t, session, worker)
	for name, want := range map[string]string{"tcp_user_timeout": "0", "tcp_keepalives_idle": "41", "tcp_keepalives_interval": "41", "idle_session_timeout": "40s"} {
		if got := value[string](t, session, `SELECT current_setting($1)`, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// TestAFullRoleIsFencedByItsLeaseAlone: a worker that can't reconnect because its role or database has reached its connection limit keeps its lease.
func TestAFullRoleIsFencedByItsLeaseAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	for _, limit := range []string{
		`ALTER DATABASE ` + value[string](t, conn, `SELECT quote_ident(current_database())`) + ` CONNECTION LIMIT `,
		`CREATE ROLE weir_full; ALTER ROLE weir_full CONNECTION LIMIT `,
	} {
		tx, err := conn.Begin(t.Context()) // roles belong to the whole server
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), limit+`0`); err != nil {
			t.Fatal(err)
		}
		var crowded bool
		if err := tx.QueryRow(t.Context(), `SELECT weir._is_crowded()`).Scan(&crowded); err != nil {
			t.Fatal(err)
		}
		if !crowded {
			t.Errorf("%s0 is not noticed as a full role or database", limit)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if value[bool](t, conn, `SELECT weir._is_crowded()`) {
		t.Error("the server does not count as having room")
	}
}

// TestALateHeartbeatIsNotTheLastWordOfWhoAttends: a heartbeat that was sent before the session attended, and arrives afterwards, does not make the
// worker seem long silent when the session ends hours later.
func TestALateHeartbeatIsNotTheLastWordOfWhoAttends(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, session := connect(t, url), connect(t, url)
	worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '6 seconds')`)
	attend(t, session, worker)
	exec(t, session, `SELECT weir.heartbeat($1)`, worker)
	exec(t, conn, `SELECT weir._rescue()`)
	exec(t, conn, `SELECT weir.heartbeat($1)`, worker) // late
	exec(t, session, `SELECT weir.heartbeat($1)`, worker)
	exec(t, conn, `SELECT setval('weir.watched', last_value + 60000) FROM weir.watched`)
	if err := session.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	hasEnded(t, conn, session.PgConn().PID())
	exec(t, conn, `SELECT weir._rescue()`)
	if isFenced(t, conn, worker) {
		t.Error("a worker that attended is fenced by the first check after its session has ended")
	}
}
