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

// attend has a session speak for a worker, by what it knows of its own end of the connection.
func attend(t *testing.T, conn *pgx.Conn, worker int32) bool {
	t.Helper()
	here := netip.MustParseAddrPort(conn.PgConn().Conn().LocalAddr().String())
	return value[bool](t, conn, `SELECT weir.attend($1, $2, $3, $4)`, worker, conn.PgConn().PID(), here.Addr().Unmap(), here.Port())
}

func isFenced(t *testing.T, conn *pgx.Conn, worker int32) bool {
	t.Helper()
	return value[bool](t, conn, `SELECT EXISTS (SELECT FROM weir.worker w WHERE w.id = $1 AND w.fenced)`, worker)
}

// watched is how much of Weir's own time has passed, in ms.
func watched(t *testing.T, conn *pgx.Conn) int64 {
	t.Helper()
	return value[int64](t, conn, `SELECT last_value FROM weir.watched`)
}

// hasEnded waits until a session is gone from the server, with its locks.
func hasEnded(t *testing.T, conn *pgx.Conn, pid uint32) {
	t.Helper()
	until(t, "the session has ended", func() bool {
		return value[bool](t, conn, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1) AND NOT EXISTS (SELECT FROM pg_locks WHERE pid = $1)`, pid)
	})
}

// TestJobsOfAKilledWorkerNeedNotWaitForItsLease: once the session of a worker that attends has ended, and no other has followed within seconds,
// its jobs are others'. Whoever comes back, by whatever session, keeps his.
func TestJobsOfAKilledWorkerNeedNotWaitForItsLease(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	start := func() (int32, *pgx.Conn) {
		t.Helper()
		worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 minutes')`)
		session := connect(t, url)
		if !attend(t, session, worker) {
			t.Fatal("the session of a worker does not count as its own")
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
			t.Fatalf("rescue speaks of workers %v, which all attend", got)
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
		t.Fatal("a worker may not attend again")
	}
	exec(t, conn, `SELECT weir.heartbeat($1)`, beats)
	relogged := 0
	until(t, "the jobs of the killed worker are logged again", func() bool {
		relogged += value[int](t, conn, `SELECT coalesce(sum(relogged), 0) FROM weir._rescue()`)
		return relogged > 0
	})
	if passed := watched(t, conn) - began; passed < 3000 || passed > 10_000 {
		t.Errorf("it was fenced after %d ms", passed)
	}
	if !isFenced(t, conn, killed) || isFenced(t, conn, back) || isFenced(t, conn, beats) || relogged != 1 {
		t.Errorf("fenced: killed %v, back %v, beats %v; %d jobs", isFenced(t, conn, killed), isFenced(t, conn, back), isFenced(t, conn, beats), relogged)
	}
	// The note of having been missed once does not shorten what is granted the next time.
	if err := again.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	hasEnded(t, conn, again.PgConn().PID())
	exec(t, conn, `SELECT weir._rescue()`)
	if isFenced(t, conn, back) {
		t.Error("a worker that attended again was fenced at the first look")
	}
}

// TestAStepOfTheClockIsNotTakenFromWhoReconnects: of the 3 s that are granted to who has lost his session, a clock that steps, by however much and in
// either direction, takes half a second: a worker interrupts its jobs after 2.25 s.
func TestAStepOfTheClockIsNotTakenFromWhoReconnects(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	for _, step := range []int{2000, -2000, 3_600_000} {
		worker := value[int32](t, conn, `SELECT weir._start('w', ARRAY['q'], '5 minutes')`)
		session := connect(t, url)
		if !attend(t, session, worker) {
			t.Fatal("the session of a worker does not count as its own")
		}
		if err := session.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		hasEnded(t, conn, session.PgConn().PID())
		exec(t, conn, `SELECT weir._rescue()`) // misses it
		looks := 0
		for ; !isFenced(t, conn, worker); looks++ {
			ago := 500
			if looks == 0 {
				ago += step
			}
			exec(t, conn, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1)`, ago)
			exec(t, conn, `SELECT weir._rescue()`)
			if looks > 20 {
				t.Fatal("the worker is never fenced")
			}
		}
		if looks != 6 {
			t.Errorf("after a step of %d ms the worker is fenced at the look number %d, each after half a second, want 6", step, looks)
		}
	}
}

// TestAttendingNeedsAnUnbrokenLine: a session that a pooler or a proxy has made speaks for nobody.
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
			t.Errorf("a session attends from behind a %s", what)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM pg_locks WHERE classid = 1464158554`); n != 0 {
		t.Errorf("%d locks are held all the same", n)
	}
	if !attend(t, conn, worker) {
		t.Error("a session of the server's own does not attend")
	}
	exec(t, conn, `SELECT weir._fence($1)`, worker)
	_, err := conn.Exec(t.Context(), `SELECT weir.attend($1, $2, $3, $4)`, worker, conn.PgConn().PID(), here.Addr(), here.Port())
	wantCode(t, "attend of a fenced worker", err, "WR001")
}

// TestAttendingUsesUpNoTransactionIDs: heartbeats and rescues of a fleet that attends write nothing, but for what has changed.
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
	if n := next() - before; n >= 20 { // others of this server may use up some
		t.Errorf("%d transaction ids were used up", n)
	}
	look := `SELECT state || ' ' || running || ' ' || (seen_at = now()) FROM weir.workers() WHERE id = $1`
	if got := value[string](t, conn, look, worker); got != "alive 7 true" {
		t.Errorf("the worker is %s, want alive, with 7, seen now", got)
	}
	exec(t, conn, `UPDATE weir.last_word SET at = at - interval '1 hour'`)
	if got := value[string](t, conn, look, worker); got != "alive 7 true" {
		t.Errorf("an hour later the worker is %s", got)
	}
}

// TestASessionThatStandsStillIsEndedAfterTheLease: a process that is stopped keeps its connections; the server ends the one that speaks for it.
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

// TestAServerWithoutRoomFencesNobodyForItsSession: who lost his connection and gets no other is granted the lease.
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
	for !value[bool](t, conn, `SELECT weir._is_crowded()`) {
		others = append(others, connect(t, url))
	}
	exec(t, conn, `SELECT weir._rescue()`)
	for began := watched(t, conn); watched(t, conn) < began+5000; {
		exec(t, conn, `SELECT weir._rescue()`)
	}
	if isFenced(t, conn, worker) {
		t.Fatal("a worker was fenced that could not connect")
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

// TestARestartFencesNobodyForItsSession: with the server all locks are gone, whether it was restarted, crashed, or lost to a standby; then
// the lease decides.
func TestARestartFencesNobodyForItsSession(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"restart", "crash of a backend", "failover"} {
		t.Run(how, func(t *testing.T) {
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
				backend, err := os.FindProcess(int(connect(t, url).PgConn().PID())) // the server is this test's own
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
				look := connect(t, standby.URL("postgres"))
				if state := value[string](t, look, `SELECT state FROM weir.workers() WHERE id = $1`, worker); state != "alive" {
					t.Errorf("seen from the standby, the worker is %s", state)
				}
				if err := server.Kill(); err != nil {
					t.Fatal(err)
				}
				pgtest.Promote(t, standby)
				url = standby.URL("postgres")
			}
			conn = reconnect(t, url)
			exec(t, conn, `SELECT weir._rescue()`)
			for began := watched(t, conn); watched(t, conn) < began+5000; {
				exec(t, conn, `SELECT weir._rescue()`)
			}
			if isFenced(t, conn, worker) || isFenced(t, conn, short) {
				t.Error("a worker was fenced before its lease was over")
			}
			until(t, "the one with the short lease is fenced", func() bool {
				exec(t, conn, `SELECT weir._rescue()`)
				return isFenced(t, conn, short)
			})
			if isFenced(t, conn, worker) {
				t.Error("the one with the long lease is fenced too")
			}
		})
	}
}

// hasCrashed waits until a session is cut off.
func hasCrashed(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	until(t, "the server has ended all sessions", func() bool {
		_, err := conn.Exec(t.Context(), `SELECT`)
		return err != nil
	})
}

// reconnect connects to a server that may be starting still.
func reconnect(t *testing.T, url string) (conn *pgx.Conn) {
	t.Helper()
	until(t, "the server lets in", func() bool {
		var err error
		conn, err = pgx.Connect(t.Context(), url)
		return err == nil
	})
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// TestOneWorkerThatCannotBeFencedHidesNoOther: neither those that are in the middle of something, nor one whose end is an error.
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
	until(t, "the one that can be fenced is", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return isFenced(t, conn, free)
	})
	exec(t, holder, `COMMIT`)
	until(t, "all but the broken one are", func() bool {
		exec(t, conn, `SELECT weir._rescue()`)
		return value[int](t, conn, `SELECT count(*) FROM weir.worker WHERE fenced`) == 31
	})
}

// TestAStrangersLockStopsNoRescue: locks are anybody's, and so is the number of a worker that there can't be.
func TestAStrangersLockStopsNoRescue(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, stranger := connect(t, url), connect(t, url)
	exec(t, stranger, `SELECT pg_advisory_lock_shared(1464158554, -1)`)
	exec(t, conn, `SELECT weir._rescue()`)
	exec(t, conn, `SELECT weir.workers()`)
}

// TestWhoFailsToAttendHoldsNoLock: it would outlive the error, and the worker would be taken to be alive.
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
	try("attend where nothing can be written", worker, "25006")
	exec(t, session, `SET default_transaction_read_only = off`)
	if !attend(t, session, worker) {
		t.Error("it may not attend when it can")
	}
}

// TestASessionThatWasResetAttendsAgain: what has let go of a session's locks is seen by the next heartbeat, which takes them again.
func TestASessionThatWasResetAttendsAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, session := connect(t, url), connect(t, url)
	worker := startWorker(t, conn, "q")
	attend(t, session, worker)
	exec(t, session, `SELECT weir.heartbeat($1)`, worker)
	exec(t, session, `SELECT pg_advisory_unlock_all()`)
	if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 1 {
		t.Fatalf("rescue misses %v", got)
	}
	exec(t, session, `SELECT weir.heartbeat($1)`, worker)
	for range 3 {
		if got := column[int32](t, conn, `SELECT worker FROM weir._rescue()`); len(got) != 0 {
			t.Fatalf("rescue speaks of %v", got)
		}
	}
	if says := value[string](t, conn, `SELECT says FROM weir.last_word WHERE worker = $1 ORDER BY no DESC LIMIT 1`, worker); says != "attends" {
		t.Errorf("its last word is %q", says)
	}
}

// TestTheServerGivesUpNoQuietLine: who is at the other end of it may not know, and go on while others are given its jobs.
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

// TestAFullRoleIsFencedByItsLeaseAlone: who may not connect again, for his role or the database takes no more, can't say that he lives.
func TestAFullRoleIsFencedByItsLeaseAlone(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	for _, limit := range []string{
		`ALTER DATABASE ` + value[string](t, conn, `SELECT quote_ident(current_database())`) + ` CONNECTION LIMIT `,
		`CREATE ROLE weir_full; ALTER ROLE weir_full CONNECTION LIMIT `,
	} {
		tx, err := conn.Begin(t.Context()) // roles are everybody's
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
			t.Errorf("nobody is held up by %s0", limit)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if value[bool](t, conn, `SELECT weir._is_crowded()`) {
		t.Error("this server has room")
	}
}

// TestALateHeartbeatIsNotTheLastWordOfWhoAttends: one that was sent before the session attended, and arrived after, would be renewed by nobody; and
// once the session ends, hours later, its lease would be long over.
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
		t.Error("a worker that attended is fenced by the first look after its session has ended")
	}
}
