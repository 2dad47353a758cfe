package proof

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestEachLifeOfAServerIsAnEpoch: ticks cut after a restart have another epoch, and positions from before stay valid; a tick number of another
// epoch, or one ahead of the log, is refused with an error that says from where to continue.
func TestEachLifeOfAServerIsAnEpoch(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	tick := func(text string) (seq, epoch int64) {
		t.Helper()
		exec(t, conn, `SELECT weir.publish('c', $1)`, text)
		var epochs, seqs []int64
		if err := conn.QueryRow(t.Context(), `SELECT seqs, epochs FROM weir._await_tick(weir.newest_tick())`).Scan(&seqs, &epochs); err != nil || len(seqs) != 1 {
			t.Fatalf("there are %d ticks (%v)", len(seqs), err)
		}
		if of := value[int64](t, conn, `SELECT weir._epoch_of($1)`, seqs[0]); of != epochs[0] {
			t.Errorf("tick %d has epoch %d in one place and %d in another", seqs[0], epochs[0], of)
		}
		return seqs[0], epochs[0]
	}
	one, first := tick("one")
	two, second := tick("two")
	if first != second || first <= 0 {
		t.Errorf("two ticks of one life of the server have the epochs %d and %d", first, second)
	}
	_ = conn.Close(t.Context())
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn = connect(t, server.URL("postgres"))
	three, third := tick("three")
	if third == second {
		t.Error("the epoch is the same after a restart")
	}
	for _, c := range []struct {
		tick, epoch int64
		detail      string // "": the tick is in this log
	}{
		{one, first, ""}, {two, first, ""}, {three, third, ""},
		{three, first, place(first, two)}, {three + 1, first, place(first, two)}, {three + 1000, third, place(third, three)},
		{two, third, place(third, three)}, {one, first + 1, place(third, three)}, {three, 0, place(third, three)},
	} {
		for _, sql := range []string{`SELECT * FROM weir._await_tick($1, epoch => $2)`, `SELECT * FROM weir._await_tick($1, epoch => $2, cuts => false)`} {
			refused(t, conn, sql, c.tick, c.epoch, c.detail)
		}
		if c.tick <= three {
			refused(t, conn, `SELECT * FROM weir.read($1, epoch => $2)`, c.tick, c.epoch, c.detail)
		}
	}
	// An empty tick that replaces the newest one when a segment is reclaimed begins an epoch too.
	exec(t, conn, `SELECT weir.set('message_retention', '0 s')`)
	exec(t, conn, `UPDATE weir.epoch SET started_at = started_at - interval '1 hour'`)
	until(t, "a segment is reclaimed", func() bool {
		did := value[string](t, conn, `SELECT coalesce(weir._rotate_messages(), '')`)
		return did != "" && did[0] == 'r'
	})
	if at := newest(t, conn); at != three+1 || value[int64](t, conn, `SELECT weir._epoch_of($1)`, at) == third {
		t.Errorf("the newest tick is %d, of the previous epoch", at)
	}
	refused(t, conn, `SELECT * FROM weir._await_tick($1, epoch => $2)`, three, third, "") // at the floor, whose tick no longer exists
	_, err := conn.Exec(t.Context(), `SELECT * FROM weir._await_tick($1, epoch => $2)`, one, first)
	wantCode(t, "a truncated tick", err, "WR005")
}

func place(epoch, tick int64) string { return itoa(epoch) + "." + itoa(tick) }

func refused(t *testing.T, conn *pgx.Conn, sql string, tick, epoch int64, want string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, tick, epoch)
	if want == "" {
		if err != nil {
			t.Errorf("%s with tick %d of epoch %d: %v", sql, tick, epoch, err)
		}
		return
	}
	wantCode(t, sql, err, "WR006")
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Detail != want {
		t.Errorf("%s with tick %d of epoch %d: the error says to continue from %s, want %s", sql, tick, epoch, pg.Detail, want)
	}
}

// TestEpochsAreBounded: however often the server starts, only the newest epochs and those whose ticks can be read are kept; positions of older
// epochs are refused like any others that are not in this log.
func TestEpochsAreBounded(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	cut := func(n int) {
		t.Helper()
		exec(t, conn, `DO $$ BEGIN FOR i IN 1..`+itoa(int64(n))+` LOOP
			UPDATE weir.epoch SET started_at = started_at - interval '1 hour' WHERE from_tick = (SELECT max(from_tick) FROM weir.epoch);
			PERFORM weir.publish('c', 'x'); COMMIT; PERFORM weir._await_tick(weir.newest_tick()); COMMIT; END LOOP; END $$`)
	}
	first := value[int64](t, conn, `SELECT epoch FROM weir.epoch`)
	cut(1100)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.epoch`); n != 1101 {
		t.Errorf("%d epochs are kept, but the ticks of 1101 can be read", n)
	}
	exec(t, conn, `SELECT setval('weir.tick_floor', 51)`)
	cut(1)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.epoch`); n != 1102-50 {
		t.Errorf("%d epochs are kept, but the ticks of 1052 can be read", n)
	}
	exec(t, conn, `SELECT setval('weir.tick_floor', 1090)`)
	cut(1)
	if n := value[int](t, conn, `SELECT count(*) FROM weir.epoch`); n != 1000 {
		t.Errorf("%d epochs are kept, want the newest 1000", n)
	}
	at := newest(t, conn)
	refused(t, conn, `SELECT * FROM weir._await_tick($1, epoch => $2)`, 1, first, place(value[int64](t, conn, `SELECT weir._epoch_of($1)`, at), at))
}

// TestACopyInTheSameServerIsAnotherLog: a database copied within its server continues under its own epoch, because both logs use the same numbers.
func TestACopyInTheSameServerIsAnotherLog(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	source := connect(t, url)
	exec(t, source, `SELECT weir.publish('c', 'before')`)
	nextTicks(t, source, newest(t, source))
	both, name := newest(t, source), source.Config().Database
	epoch := value[int64](t, source, `SELECT weir._epoch_of($1)`, both)
	_ = source.Close(t.Context())
	other := connect(t, pgtest.Empty(t))
	copied := name[:len(name)-5] + "_copy" // no longer than the name, because names are truncated to 63 bytes
	exec(t, other, `CREATE DATABASE `+copied+` TEMPLATE `+name)
	defer exec(t, other, `DROP DATABASE `+copied+` WITH (FORCE)`)
	config := source.Config().Copy()
	config.Database = copied
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, conn, `SELECT * FROM weir._await_tick($1, epoch => $2)`, both, epoch, "") // both have the same log up to here
	exec(t, conn, `SELECT weir.publish('c', 'in the copy')`)
	nextTicks(t, conn, both)
	_ = conn.Close(t.Context())
	if conn, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	refused(t, conn, `SELECT * FROM weir._await_tick($1, epoch => $2)`, both+1, epoch, place(epoch, both))
	_ = conn.Close(t.Context())
}

// TestAMovedLogOfMessagesIsNoticedByWhoStayed: cutting a tick reports that the log comes from another cluster, even if the new cluster's
// transaction ids lie between the last tick and the messages, so that there seems to be nothing to cut.
func TestAMovedLogOfMessagesIsNoticedByWhoStayed(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	at := newest(t, conn)
	exec(t, conn, `SELECT weir.publish('c', 'waiting')`)
	exec(t, conn, `UPDATE weir.message SET xid = (xid::text::bigint + 1000000)::text::xid8`)
	exec(t, conn, `UPDATE weir.setting SET value = '1' WHERE name = 'message_cluster'; UPDATE weir.epoch SET started_at = started_at - interval '1 day'`)
	_, err := conn.Exec(t.Context(), `SELECT * FROM weir._await_tick($1)`, at)
	wantCode(t, "a cut in a log that was moved", err, "WR003")
	exec(t, conn, `SELECT weir.rebase_messages()`)
	if ticks, _ := hearAll(t, conn, newest(t, conn)); len(ticks) != 1 || len(ticks[0]) != 1 || ticks[0][0] != "waiting" {
		t.Errorf("heard %v", ticks)
	}
}
