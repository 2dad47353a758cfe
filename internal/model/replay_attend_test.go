package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// lives replays who is alive: sessions that attend, heartbeats on others, rescues, and seconds, which pass when the test says so.
type lives struct {
	script
	m       *attendances
	s       attendState
	url     string
	admin   *pgx.Conn
	id      int32
	session *pgx.Conn // the session that attends
	open    *pgx.Conn // a session that attends in an open transaction
	elapsed int64     // seconds since the last check
}

func newLives(t *testing.T, rng *rand.Rand) *lives {
	m := &attendances{attendScenario: attendScenario{name: "replay", ends: 200, restarts: 200, slow: true}}
	l := &lives{script: script{T: t, rng: rng}, m: m, s: m.machine().start, url: pgtest.Database(t)}
	l.admin = l.connect(l.url)
	// The lease is as long as in the model; moments between two calls do not add up to a second.
	l.id = query[int32](&l.script, l.admin, `SELECT weir._start('w', '{q}', '4.9 seconds')`)
	l.exec(l.admin, `INSERT INTO weir.attendance (worker, started_at, watched) VALUES (0, pg_postmaster_start_time(), -1000000)`) // rescuers have been checking for long
	return l
}

func (l *lives) close() {
	for _, c := range []*pgx.Conn{l.admin, l.session, l.open} {
		if c != nil {
			_ = c.Close(context.Background())
		}
	}
}

func (l *lives) moves() (all []func()) {
	can := func(weight int, f func()) {
		for range weight {
			all = append(all, f)
		}
	}
	can(4, l.passes)
	can(4, l.rescue)
	switch {
	case l.s.fenced || l.s.w.over:
		can(1, l.attend) // this is refused
	case l.open != nil:
		can(3, l.commit)
	case l.session != nil:
		can(2, l.heartbeat)
		can(2, l.ends)
		can(1, l.restarts)
		can(1, l.late)
	default:
		can(2, l.attend)
		can(2, l.begin)
		can(2, l.heartbeat)
	}
	return all
}

func (l *lives) take(do action, a int) {
	l.Helper()
	if err := l.m.take(&l.s, step{do, uint8(a), 0}); err != nil {
		l.fail("the model breaks a promise: %v", err)
	}
}

// all lets a call run to its end.
func (l *lives) all() {
	for l.s.calls.n > 0 {
		l.take(callGoesOn, 0)
	}
}

func (l *lives) passes() {
	for l.m.mustInterrupt(&l.s) {
		l.take(interrupts, 0)
	}
	l.elapsed++
	l.m.pass(&l.s)
	l.note("a second passes")
}

const sqlAttend = `SELECT weir.attend($1, $2, $3, $4)`

func (l *lives) attendBy(c *pgx.Conn) bool {
	here := netip.MustParseAddrPort(c.PgConn().Conn().LocalAddr().String())
	var attends bool
	err := c.QueryRow(l.Context(), sqlAttend, l.id, int32(c.PgConn().PID()), here.Addr().Unmap(), int32(here.Port())).Scan(&attends)
	if refused := code(err) == "WR001"; refused != l.s.fenced || err != nil && !refused || err == nil && !attends {
		l.fail("attend returned %v and %v, but in the model the worker is fenced: %v", attends, err, l.s.fenced)
	}
	if attends {
		l.exec(c, `SET idle_session_timeout = 0`) // real seconds must not count
	}
	return attends
}

func (l *lives) attend() {
	c := l.connect(l.url)
	attends := l.attendBy(c)
	l.note("attend: %v", attends)
	if !attends {
		_ = c.Close(l.Context())
		return
	}
	l.take(attend, 0)
	l.all()
	l.session = c
}

// begin attends in a transaction that stays open.
func (l *lives) begin() {
	l.open = l.connect(l.url)
	l.exec(l.open, `BEGIN`)
	l.attendBy(l.open)
	l.take(attend, 0)
	l.note("attend, in a transaction")
}

func (l *lives) commit() {
	l.exec(l.open, `COMMIT`)
	l.session, l.open = l.open, nil
	l.all()
	l.note("that transaction commits")
}

// heartbeat sends a heartbeat on the session that attends, or on another if none does.
func (l *lives) heartbeat() {
	c := l.session
	if c == nil {
		c = l.admin
	}
	if query[bool](&l.script, c, `SELECT fenced FROM weir.heartbeat($1)`, l.id) {
		l.fail("a heartbeat returned that the worker is fenced")
	}
	l.take(heartbeat, 0)
	l.all()
	l.note("heartbeat; attends: %v", l.session != nil)
}

// late is a heartbeat that the worker gave up before it attended.
func (l *lives) late() {
	l.exec(l.admin, `SELECT weir.heartbeat($1)`, l.id)
	l.s.calls.add(acall{kind: beating})
	l.all()
	l.note("a heartbeat on another connection arrives late")
}

func (l *lives) ends() {
	pid := l.session.PgConn().PID()
	_ = l.session.Close(l.Context())
	l.session = nil
	l.until("the session has ended", `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = $1)`, l.admin, pid)
	l.take(sessionEnds, 0)
	l.take(notices, 0)
	l.note("the session ends")
}

// restarts ends a life of the server, as far as weir.attendance shows it.
func (l *lives) restarts() {
	pid := l.session.PgConn().PID()
	_ = l.session.Close(l.Context())
	l.session = nil
	l.until("the session has ended", `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE pid = $1)`, l.admin, pid)
	l.exec(l.admin, `DELETE FROM weir.attendance WHERE started_at < pg_postmaster_start_time()`)
	l.exec(l.admin, `UPDATE weir.attendance SET started_at = started_at - interval '1 day'`)
	l.take(attendRestart, 0)
	l.take(noticesDown, 0)
	l.note("the server is stopped and started")
}

func (l *lives) rescue() {
	before := query[int64](&l.script, l.admin, `SELECT last_value FROM weir.watched`)
	looks := 1
	if l.elapsed > 0 && l.s.attended && l.s.lastWord().says == missed {
		looks = 2 // each counts half a second
	}
	for range looks {
		l.exec(l.admin, `SELECT setval('weir.watched_at', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1)`, l.elapsed*1000)
		l.exec(l.admin, `SELECT weir._rescue()`)
	}
	if moved := query[int64](&l.script, l.admin, `SELECT last_value FROM weir.watched`) - before; moved > 0 {
		// The moments that the calls took don't count, not even a second of them on a busy machine, and not in a word that was written in between.
		whole := before + min(moved/1000, l.elapsed)*1000
		l.exec(l.admin, `SELECT setval('weir.watched', $1)`, whole)
		l.exec(l.admin, `UPDATE weir.last_word SET watched = $1 WHERE watched > $1`, whole)
		l.elapsed = 0
	}
	if !l.s.fenced {
		l.take(fenceSilent, 0)
		for k := l.s.calls.n; k > 0 && l.s.call(fencesSilent) != nil; {
			for i := range l.s.calls.all() {
				if l.s.calls.row[i].kind == fencesSilent {
					l.take(callGoesOn, i)
					break
				}
			}
		}
	}
	l.note("rescue")
}

// look compares the worker's last word, and whether the worker is fenced.
func (l *lives) look() {
	l.m.tidy(&l.s)
	said := query[string](&l.script, l.admin, `SELECT CASE WHEN EXISTS (SELECT FROM weir.worker WHERE id = $1 AND fenced) THEN 'fenced' ELSE weir._last_says($1) END`, l.id)
	want := fmt.Sprint(l.s.lastWord().says)
	if l.s.fenced {
		want = "fenced"
	}
	if said != want {
		l.fail("the last word is %q, but in the model it is %q", said, want)
	}
}
