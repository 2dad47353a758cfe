package proof

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestNoStatementFailsBecauseAChangeIsTooLarge: messages of a watched table fit, however little message_bytes allows, and whatever the rows are.
func TestNoStatementFailsBecauseAChangeIsTooLarge(t *testing.T) {
	t.Parallel()
	for _, most := range []string{"8000", "30000", "65536", "1048576"} {
		t.Run(most, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, pgtest.Database(t))
			exec(t, conn, `SELECT weir.set('message_bytes', $1)`, most)
			exec(t, conn, `CREATE TABLE "a ""b" (id text PRIMARY KEY, a text); SELECT weir.watch_table('"a ""b"', 'of', '{a}')`)
			for _, sql := range []string{
				`INSERT INTO "a ""b" SELECT n, 'x' FROM generate_series(1, 3000) n`, `UPDATE "a ""b" SET a = a || 'y'`, `UPDATE "a ""b" SET id = id || 'z'`,
				`INSERT INTO "a ""b" VALUES ('large', repeat('ü"', 100000))`, `INSERT INTO "a ""b" SELECT n, repeat('x', n) FROM generate_series(3001, 3100) n`, `DELETE FROM "a ""b"`,
			} {
				exec(t, conn, sql)
			}
			const sizes = `SELECT octet_length(m.payload) FROM weir.message m ORDER BY id`
			got := column[int](t, conn, sizes)
			limit := min(65536, value[int](t, conn, `SELECT $1::int`, most))
			if len(got) != 6 || slices.Max(got) > limit || got[1] < limit-200 {
				t.Errorf("messages have %v bytes, want up to %d", got, limit)
			}
			large := value[string](t, conn, `SELECT convert_from(payload, 'UTF8')::jsonb::text FROM weir.message ORDER BY id OFFSET 3 LIMIT 1`)
			if want := `{"op": "insert", "more": true, "rows": 1, "table": "public.\"a \"\"b\"", "changes": []}`; large != want {
				t.Errorf("of a change that is too large, the message is %s, want %s", large, want)
			}
		})
	}
}

// TestNoStatementFailsBecauseItsChannelIsTooLong: what is too long for a channel becomes a hash.
func TestNoStatementFailsBecauseItsChannelIsTooLong(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	for _, c := range []struct{ template, fields, want string }{
		{`'o.{a}.{b}'`, `{"a": "x.y", "b": null}`, `'o.x%2Ey.%00'`},
		{`'o.{a}.{b}'`, `{"a": "` + dots(60) + `", "b": "short"}`, `'o.' || repeat('%2E', 60) || '.short'`},
		{`'o.{a}.{b}.{c}'`, `{"a": "` + dots(60) + `", "b": "` + dots(50) + `", "c": "short"}`, `'o.%23' || md5(repeat('.', 60)) || '.%23' || md5(repeat('.', 50)) || '.short'`},
		{`repeat('ü', 125) || '{a}'`, `{"a": "abc"}`, `repeat('ü', 125) || 'abc'`},
		{`'x' || repeat('ü', 125) || '{a}'`, `{"a": "abcdef"}`, `'x' || repeat('ü', 109) || '%23' || md5('x' || repeat('ü', 125) || 'abcdef')`},
		{`repeat('{a}', 85)`, `{"a": "` + dots(60) + `"}`, `left(repeat('%23' || md5(repeat('.', 60)), 85), 220) || '%23' || md5(repeat('%23' || md5(repeat('.', 60)), 85))`},
	} {
		if got, want := value[string](t, conn, `SELECT weir._channel_for(`+c.template+`, '`+c.fields+`')`), value[string](t, conn, `SELECT `+c.want); got != want || len(got) > 255 {
			t.Errorf("%s with %s: %s with %d bytes, want %s", c.template, c.fields, got, len(got), want)
		}
	}
	exec(t, conn, `CREATE TABLE p (id int PRIMARY KEY, a text, b text, c text, d text, e text); SELECT weir.watch_table('p', 'p.{a}.{b}.{c}.{d}.{e}')`)
	exec(t, conn, `INSERT INTO p SELECT n, repeat('. ', 30), repeat('. ', 25), repeat('c', 55), repeat('d', 55), repeat('e', n) FROM generate_series(1, 60) n`)
	exec(t, conn, `UPDATE p SET a = repeat('a', 55), b = repeat('b', 55)`)
	if n := value[int](t, conn, `SELECT count(DISTINCT channel) FROM weir.message`); n != 120 {
		t.Errorf("rows of 120 channels were published on %d", n)
	}
}

func dots(n int) string { return strings.Repeat(".", n) }
