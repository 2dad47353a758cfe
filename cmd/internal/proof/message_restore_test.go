package proof

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestRestoredMessagesGoOn: in another cluster, the log of messages reports that it was moved, and is rebased: messages that were in no tick yet are
// delivered, including those published before the rebase, and all positions of the old log cause a gap, even those reached after the dump.
func TestRestoredMessagesGoOn(t *testing.T) {
	t.Parallel()
	t.Run("copied tables", func(t *testing.T) {
		restoredMessages(t, func(from, to *pgx.Conn, _ string) func() {
			if err := schema.Up(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			copyAll(t, from, to)
			return func() {}
		})
	})
	t.Run("pg_dump", func(t *testing.T) {
		dump := dumpProgram(t)
		restoredMessages(t, func(from, to *pgx.Conn, into string) func() {
			for _, role := range []string{"weir_enqueue", "weir_work", "weir_operate", "weir_publish", "weir_subscribe", "weir_hub"} { // roles are restored with pg_dumpall -g
				exec(t, to, `CREATE ROLE `+role)
			}
			sql := run(t, nil, dump, "--schema=weir", from.Config().ConnString())
			return func() {
				run(t, bytes.NewReader(sql), filepath.Join(filepath.Dir(dump), "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", into)
			}
		})
	})
}

// dumpProgram returns the path of a pg_dump that fits the server, or skips the test.
func dumpProgram(t *testing.T) string {
	t.Helper()
	major := value[int](t, connect(t, pgtest.Empty(t)), `SELECT current_setting('server_version_num')::int / 10000`)
	dump, err := findDump(major)
	if err != nil {
		if strings.Contains(os.Getenv("WEIR_TEST_REQUIRE"), "pg_dump") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return dump
}

// restoredMessages checks a copy of a log. take copies the log, and returns a function that restores the copy.
func restoredMessages(t *testing.T, take func(from, to *pgx.Conn, into string) (bring func())) {
	server := pgtest.Server(t, nil)
	target := connect(t, server.URL("postgres"))
	url := pgtest.Database(t)
	source, late := connect(t, url), connect(t, url)
	exec(t, source, `DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	start := newest(t, source)
	exec(t, late, `BEGIN`)
	exec(t, late, `SELECT weir.publish('c', 'late')`)
	exec(t, source, `SELECT weir.publish('c', 'delivered')`)
	ticks, at := hearAll(t, source, start)
	if len(ticks) != 1 || !slices.Equal(ticks[0], []string{"delivered"}) {
		t.Fatalf("heard %v", ticks)
	}
	exec(t, late, `COMMIT`)
	exec(t, source, `SELECT weir.publish('c', 'waiting'), weir.publish('c', 'large', true)`)
	exec(t, source, `SELECT weir.publish_bytes('c', '\x6200')`)
	exec(t, source, `BEGIN; SELECT weir.publish('c', 'gone'); ROLLBACK`)
	bring := take(source, target, server.URL("postgres"))
	// The old log continues after the dump.
	_, beyond := hearAll(t, source, at)
	exec(t, source, `SELECT weir.publish('c', 'after the dump')`)
	_, beyond = hearAll(t, source, beyond)

	bring()
	exec(t, target, `SELECT weir.publish('c', 'before the rebase')`)
	for _, sql := range []string{`SELECT weir.newest_tick()`, `SELECT * FROM weir._await_tick(` + itoa(at) + `)`} {
		_, err := target.Exec(t.Context(), sql)
		wantCode(t, sql, err, "WR003")
	}
	if n := value[int](t, target, `SELECT weir.rebase_messages()`); n != 5 {
		t.Errorf("rebase_messages logged %d messages again, want 5", n)
	}
	if n := value[*int](t, target, `SELECT weir.rebase_messages()`); n != nil {
		t.Errorf("a second rebase_messages logged %d messages again", *n)
	}
	for _, old := range []int64{0, start, at, beyond, beyond + 1_000_000_000} {
		_, err := target.Exec(t.Context(), `SELECT * FROM weir._await_tick($1)`, old)
		wantCode(t, "ticks after an old position", err, "WR005")
		if floor, _ := detail(err); floor >= newest(t, target) {
			t.Errorf("the error says that ticks up to %d are gone, but the newest is %d", floor, newest(t, target))
		}
		_, err = target.Exec(t.Context(), `SELECT * FROM weir.read($1)`, old)
		wantCode(t, "an old tick", err, "WR005")
	}
	exec(t, target, `SELECT weir.publish('c', 'after')`)
	got, last := [][]byte{}, newest(t, target)
	for {
		seqs, _ := nextTicks(t, target, last)
		if seqs == nil {
			break
		}
		last = seqs[len(seqs)-1]
		got = append(got, column[[]byte](t, target, `SELECT r.payload FROM unnest($1::bigint[]) s(seq), weir.read(s.seq) r ORDER BY s.seq, r.id`, seqs)...)
	}
	want := []string{"late", "waiting", "large", "b\x00", "before the rebase", "after"}
	if texts := strings.Split(string(bytes.Join(got, []byte(","))), ","); !slices.Equal(texts, want) {
		t.Errorf("read %q, want %q", texts, want)
	}
}
