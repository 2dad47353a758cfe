package proof

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// TestBadMessageLeavesNothing: a message that can't be published is refused with the value and the limit, and leaves nothing behind, even of a call
// that publishes many.
func TestBadMessageLeavesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	long, longest := strings.Repeat("é", 128), strings.Repeat("é", 127)+"e" // 256 and 255 bytes
	for _, c := range []struct {
		sql, code, says string
		args            []any
	}{
		{sql: `SELECT weir.publish(NULL, 'x')`, says: "the channel name is null"},
		{sql: `SELECT weir.publish('', 'x')`, says: "the channel name is empty"},
		{sql: `SELECT weir.publish($1, 'x')`, args: []any{long}, says: "channel name too long: 256 bytes, at most 255 are allowed"},
		{sql: `SELECT weir.publish('c', repeat('x', 1048577))`, says: "payload too large: 1048577 bytes, at most 1048576 are allowed"},
		{sql: `SELECT weir.publish('c', repeat('é', 524288) || 'x')`, says: "payload too large: 1048577 bytes"},
		{sql: `SELECT weir.publish('c', repeat('x', 1048577), true)`, says: "at most 1048576"},
		{sql: `SELECT weir.publish_bytes(NULL, '')`, says: "name is null"},
		{sql: `SELECT weir.publish_bytes('', '')`, says: "name is empty"},
		{sql: `SELECT weir.publish_bytes($1, '')`, args: []any{long}, says: "256 bytes, at most 255"},
		{sql: `SELECT weir.publish_bytes('c', $1)`, args: []any{make([]byte, 1048577)}, says: "1048577 bytes, at most 1048576"},
		{sql: `SELECT weir.notify(NULL, 'x')`, says: "name is null"},
		{sql: `SELECT weir.notify('', 'x')`, says: "name is empty"},
		{sql: `SELECT weir.publish_many(ARRAY['c', NULL], ARRAY['x', 'y'])`, says: "name is null"},
		{sql: `SELECT weir.publish_many(ARRAY['c', ''], ARRAY['x', 'y'])`, says: "name is empty"},
		{sql: `SELECT weir.publish_many(ARRAY['c', $1], ARRAY['x', 'y'])`, args: []any{long}, says: "256 bytes"},
		{sql: `SELECT weir.publish_many(ARRAY['c', 'd'], ARRAY['x', repeat('x', 1048577)])`, says: "1048577 bytes, at most 1048576"},
		{sql: `SELECT weir.publish_many(ARRAY['c', 'd'], ARRAY['x'])`, says: "got 2 channels and 1 payloads"},
		{sql: `SELECT weir.publish_many(ARRAY['c'], NULL)`, says: "got 1 channels and null payloads"},
		{sql: `SELECT weir._publish_drafts(ARRAY['c', NULL], ARRAY['x', 'y']::bytea[], ARRAY[false, false])`, says: "name is null"},
		{sql: `SELECT weir._publish_drafts(ARRAY['c', 'd'], ARRAY['x', $1::bytea], ARRAY[false, false])`, args: []any{make([]byte, 1048577)}, says: "1048577 bytes"},
		{sql: `SELECT weir.publish('c', $1)`, args: []any{"a\x00b"}, code: "22021", says: "0x00"},
		{sql: `SELECT weir.set('message_bytes', '7999')`, says: "message_bytes must be 8000 to 16777216, got 7999"},
		{sql: `SELECT weir.set('message_bytes', '16777217')`, says: "got 16777217"},
		{sql: `SELECT weir.set('message_retention_bytes', '1048575')`, says: "message_retention_bytes must be 1048576 to"},
		{sql: `SELECT weir.set('message_retention', '-1 s')`, says: "message_retention must be 0 to 1 year, got \"-1 s\""},
		{sql: `SELECT weir.set('message_bytes', '1 XB')`, says: "message_bytes must be 8000 to 16777216, got \"1 XB\""},
		{sql: `SELECT weir.set('message_bytes', '')`, says: "message_bytes must be 8000 to 16777216, got \"\""},
		{sql: `SELECT weir.set('message_bytes', '16.1 MB')`, says: "got \"16.1 MB\""},
		{sql: `SELECT weir.set('retention_bytes', '99999999999999999999')`, says: "retention_bytes must be 1048576 to 9223372036854775807, got 99999999999999999999"},
		{sql: `SELECT weir.set('retention_bytes', '99999999 TB')`, says: "retention_bytes must be 1048576 to 9223372036854775807, got \"99999999 TB\""},
		{sql: `SELECT weir.set('failed_retention', '5 parsecs')`, says: "failed_retention must be an interval of 0 to 1 year, got \"5 parsecs\""},
		{sql: `SELECT weir.set('failed_retention', '')`, says: "failed_retention must be an interval"},
		{sql: `SELECT weir.set('failed_retention', '99999999999 days')`, says: "failed_retention must be an interval"},
		{sql: `SELECT weir.set('failed_retention', ' 14 ')`, says: "failed_retention needs a unit, got \" 14 \""},
		{sql: `SELECT weir.set('q', 'backoff', '10')`, says: "backoff needs a unit, got \"10\""},
		{sql: `SELECT weir.set('q', 'backoff', 'soon')`, says: "backoff must be an interval of 0 to 1 year, got \"soon\""},
		{sql: `SELECT weir.set('message_size', '1')`, says: "unknown setting message_size"},
		{sql: `SELECT weir.restrict('app', ARRAY[ARRAY['a']])`, says: "restrict needs a list as listens, got an array with the dimensions [1:1][1:1]"},
		{sql: `SELECT weir.restrict('app', ARRAY['a'], ARRAY[ARRAY['a'], ARRAY['b']])`, says: "restrict needs a list as notifies, got an array with the dimensions [1:2][1:1]"},
		{sql: `SELECT weir.restrict('app', ARRAY['a', NULL])`, says: "'null' is neither a channel nor a pattern"},
		{sql: `SELECT weir._beat('', '', 1, 1)`, says: "a hub needs a name of 1 to 128 characters"},
	} {
		_, err := conn.Exec(t.Context(), c.sql, c.args...)
		if c.code == "" {
			c.code = "22023"
		}
		wantCode(t, c.sql, err, c.code)
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: the error is %v, which does not contain %q", c.sql, err, c.says)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.message`); n != 0 {
		t.Errorf("%d messages were left behind", n)
	}
	for _, c := range []struct {
		sql  string
		args []any
	}{
		{`SELECT weir.publish($1, 'x')`, []any{longest}},
		{`SELECT weir.publish('c', repeat('x', 8000))`, nil},
		{`SELECT weir.publish('c', repeat('x', 8001))`, nil},
		{`SELECT weir.publish('c', repeat('x', 1048576))`, nil},
		{`SELECT weir.publish_bytes('c', $1)`, []any{make([]byte, 1048576)}},
		{`SELECT weir.publish('c', NULL, NULL)`, nil},
		{`SELECT weir.publish_bytes('c', NULL, NULL)`, nil},
		{`SELECT weir.publish_many(ARRAY['c'], ARRAY[NULL], NULL)`, nil},
	} {
		exec(t, conn, c.sql, c.args...)
	}
	for sql, want := range map[string]int{
		`SELECT coalesce(weir.publish_many(NULL, NULL), -1)`: 0, `SELECT weir.publish_many('{}', '{}')`: 0, `SELECT weir.publish_many(ARRAY['c', 'c'], ARRAY['x', 'x'])`: 2,
	} {
		if n := value[int](t, conn, sql); n != want {
			t.Errorf("%s: returned %d, want %d", sql, n, want)
		}
	}
	if n := value[int](t, conn, `SELECT count(*) FROM weir.message`); n != 8+2 {
		t.Errorf("%d messages were published, want 10", n)
	}
	exec(t, conn, `SELECT weir.set('message_bytes', '8000')`)
	exec(t, conn, `SELECT weir.publish('c', repeat('x', 8000))`)
	_, err := conn.Exec(t.Context(), `SELECT weir.publish('c', repeat('x', 8001))`)
	wantCode(t, "8001 bytes where 8000 are allowed", err, "22023")
	exec(t, conn, `SELECT weir.set('message_bytes', '2000000')`)
	exec(t, conn, `SELECT weir.publish('c', repeat('x', 2000000))`)
}

// TestRepeatedMessageCostsOneRow: weir.notify does not log a message again that directly follows the same one in its transaction; a rollback to a
// savepoint, or an exception, that undoes the message also undoes that memory.
func TestRepeatedMessageCostsOneRow(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	at := newest(t, conn)
	for _, c := range []struct {
		name, sql string
		want      []string
	}{
		{"repeated", `SELECT weir.notify('c', 'x') FROM generate_series(1, 1000)`, []string{"c=x"}},
		{"published", `SELECT weir.publish('c', 'x'), weir.publish('c', 'x')`, []string{"c=x", "c=x"}}, // hubs deliver only one
		{"kept", `SELECT weir.publish('c', 'x', true) FROM generate_series(1, 3)`, []string{"c=x", "c=x", "c=x"}},
		{"kept between", `BEGIN; SELECT weir.notify('c', 'x'), weir.publish('c', 'x', true), weir.notify('c', 'x'); COMMIT`, []string{"c=x", "c=x"}},
		{"channel and payload are told apart", `BEGIN; SELECT weir.notify('c', 'xy'), weir.notify('cx', 'y'), weir.notify('c x', 'y'), weir.notify('c', ' xy'), weir.notify('1 c', 'xy'); COMMIT`,
			[]string{"c=xy", "cx=y", "c x=y", "c= xy", "1 c=xy"}},
		{"in two transactions", `BEGIN; SELECT weir.notify('c', 'x'); COMMIT; BEGIN; SELECT weir.notify('c', 'x'); COMMIT`, []string{"c=x", "c=x"}},
		{"after a rollback", `BEGIN; SELECT weir.notify('c', 'x'); ROLLBACK; BEGIN; SELECT weir.notify('c', 'x'); COMMIT`, []string{"c=x"}},
		{"after a savepoint's rollback", `BEGIN; SAVEPOINT s; SELECT weir.notify('c', 'x'); ROLLBACK TO s; SELECT weir.notify('c', 'x'); COMMIT`, []string{"c=x"}},
		{"around a savepoint", `BEGIN; SELECT weir.notify('c', 'x'); SAVEPOINT s; SELECT weir.notify('c', 'y'); ROLLBACK TO s; SELECT weir.notify('c', 'x'), weir.notify('c', 'y'); COMMIT`, []string{"c=x", "c=y"}},
		{"released savepoint", `BEGIN; SAVEPOINT s; SELECT weir.notify('c', 'x'); RELEASE s; SELECT weir.notify('c', 'x'); COMMIT`, []string{"c=x"}},
		{"released, then rolled back", `BEGIN; SAVEPOINT r; SAVEPOINT s; SELECT weir.notify('c', 'x'); RELEASE s; ROLLBACK TO r; SELECT weir.notify('c', 'x'); COMMIT`, []string{"c=x"}},
		{"undone by an exception", `DO $$ BEGIN BEGIN PERFORM weir.notify('c', 'x'); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END; PERFORM weir.notify('c', 'x'); END $$`, []string{"c=x"}},
		{"kept by a block with an exception handler", `DO $$ BEGIN BEGIN PERFORM weir.notify('c', 'x'); EXCEPTION WHEN division_by_zero THEN NULL; END; PERFORM weir.notify('c', 'x'); END $$`, []string{"c=x"}},
		{"prepared", `BEGIN; SELECT weir.notify('c', 'x'); PREPARE TRANSACTION 'memo'; BEGIN; SELECT weir.notify('c', 'x'); COMMIT; COMMIT PREPARED 'memo'`, []string{"c=x", "c=x"}},
		{"commits inside", `DO $$ BEGIN PERFORM weir.notify('c', 'x'); COMMIT; PERFORM weir.notify('c', 'x'); END $$`, []string{"c=x", "c=x"}},
		{"a pooled session between", `BEGIN; SELECT weir.notify('c', 'x'); COMMIT; DISCARD ALL; BEGIN; SELECT weir.notify('c', 'x'); COMMIT`, []string{"c=x", "c=x"}},
		{"null is empty", `BEGIN; SELECT weir.notify('c', NULL), weir.notify('c', ''), weir.notify('c', NULL); COMMIT`, []string{"c="}},
		{"text and bytes are not the same", `BEGIN; SELECT weir.notify('c', 'x'), weir.publish_bytes('c', 'x'); COMMIT`, []string{"c=x", "c=x"}},
		{"a function with settings of its own", `CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS $$ BEGIN PERFORM weir.notify('c', 'x'); END $$;
			BEGIN; SELECT pg_temp.f(), weir.notify('c', 'x'), pg_temp.f(); COMMIT`, []string{"c=x"}},
	} {
		// Each statement is sent separately, as required by DISCARD ALL and by a DO block that commits.
		for sql := range strings.SplitSeq(c.sql, ";") {
			if strings.Contains(c.sql, "$$") {
				sql = c.sql
			}
			if strings.HasPrefix(c.name, "a function") {
				if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				break
			}
			exec(t, conn, sql)
			if strings.Contains(sql, "DISCARD") {
				_ = conn.DeallocateAll(t.Context()) // forgets the driver's prepared statements
			}
			if strings.Contains(c.sql, "$$") {
				break
			}
		}
		var got []string
		for {
			seqs, _ := nextTicks(t, conn, at)
			if seqs == nil {
				break
			}
			at = seqs[len(seqs)-1]
			got = append(got, column[string](t, conn, `SELECT channel || '=' || convert_from(payload, 'UTF8') FROM unnest($1::bigint[]) s(seq), weir.read(s.seq) r ORDER BY s.seq, r.id`, seqs)...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: the log has %q, want %q", c.name, got, c.want)
		}
	}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprint(i))
	}
	exec(t, conn, `SELECT weir.publish_many(array_fill('c'::text, ARRAY[300]), $1)`, many)
	if ticks, _ := hearAll(t, conn, at); len(ticks) != 1 || !slices.Equal(ticks[0], many) {
		t.Errorf("publish_many did not keep the order: %v", ticks)
	}
}
