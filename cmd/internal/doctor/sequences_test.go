package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

// TestColumnsThatRunOutOfNumbersAreNamed: by their own type and that of the sequence, and not those of a bigint; a role that may not read them says so.
func TestColumnsThatRunOutOfNumbersAreNamed(t *testing.T) {
	t.Parallel()
	url := sequenceLoad(t)
	r := examine(t, url, time.Second)
	f := expect(t, r, doctor.SequenceNearEnd, doctor.Warning)
	expectFact(t, f, "ticket.id has used 84% of its numbers: after 2,147,483,647 each insert fails")
	expectFact(t, f, "note.id (smallint) is at 26,000 of 32,767, from the sequence number")
	if text := describe(r); strings.Contains(text, "visit") {
		t.Errorf("a bigint is named:\n%s", text)
	}
	conn := connect(t, url)
	execute(t, conn, "CREATE ROLE watcher LOGIN PASSWORD 'w' IN ROLE pg_monitor")
	r = examine(t, as(t, url, "watcher", "w"), time.Second)
	const want = `how far 2 sequences of integer columns have counted: it needs SELECT on them, or GRANT pg_read_all_data TO "watcher"`
	if unseen := strings.Join(r.Unseen, "\n"); !r.Incomplete || !strings.Contains(unseen, want) {
		t.Errorf("incomplete: %t; what could not be seen:\n%s", r.Incomplete, unseen)
	}
	execute(t, conn, "GRANT SELECT ON SEQUENCE number TO watcher")
	r = examine(t, as(t, url, "watcher", "w"), time.Second)
	if unseen := strings.Join(r.Unseen, "\n"); !strings.Contains(unseen, "how far 1 sequence of integer columns has counted: it needs SELECT on it,") {
		t.Errorf("what could not be seen:\n%s", unseen)
	}
	execute(t, conn, "GRANT SELECT ON SEQUENCE ticket_id_seq TO watcher")
	if r = examine(t, as(t, url, "watcher", "w"), time.Second); r.Incomplete {
		t.Errorf("with what it needs, it is incomplete:\n%s", describe(r))
	}
	execute(t, conn, "SELECT setval('ticket_id_seq', 2100000000)")
	expect(t, examine(t, url, time.Second), doctor.SequenceNearEnd, doctor.Critical)
	execute(t, conn, "SELECT setval('ticket_id_seq', 1000000000)", "SELECT setval('number', 1000)")
	r = examine(t, url, time.Second)
	if f, found := r.Find(doctor.SequenceNearEnd); found {
		t.Errorf("half of the numbers are left: %s", f.Summary)
	}
}

// TestTheAdviceOnASequenceThatEndsHelps: whatever the names are, the statements run as they stand; the sequence of a serial must become a bigint beside its column, and of one whose column is
// one already, it alone.
func TestTheAdviceOnASequenceThatEndsHelps(t *testing.T) {
	t.Parallel()
	url := alone(t)
	conn := connect(t, url)
	execute(t, conn, `CREATE TABLE "My order" ("the id" serial)`, `SELECT setval('"My order_the id_seq"', 2147483647)`)
	const table, sequence = `ALTER TABLE "My order" ALTER COLUMN "the id" TYPE bigint`, `ALTER SEQUENCE "My order_the id_seq" AS bigint NO MAXVALUE`
	advice := func() string {
		return expect(t, examine(t, url, time.Second), doctor.SequenceNearEnd, doctor.Critical).Now
	}
	if now := advice(); !strings.Contains(now, table+" ") || !strings.Contains(now, sequence+";") {
		t.Errorf("of a serial: %s", now)
	}
	execute(t, conn, table)
	if now := advice(); strings.Contains(now, "ALTER TABLE") || !strings.Contains(now, sequence+" ") {
		t.Errorf("of a bigint with the sequence of an integer: %s", now)
	}
	execute(t, conn, sequence, `INSERT INTO "My order" DEFAULT VALUES`)
	if f, found := examine(t, url, time.Second).Find(doctor.SequenceNearEnd); found {
		t.Errorf("what was advised does not help: %s", f.Summary)
	}
	execute(t, conn, `CREATE TABLE ticket (id int GENERATED ALWAYS AS IDENTITY)`, `SELECT setval('ticket_id_seq', 2147483647)`)
	if now := advice(); !strings.Contains(now, "ALTER TABLE ticket ALTER COLUMN id TYPE bigint") || strings.Contains(now, "ALTER SEQUENCE") {
		t.Errorf("of an identity: %s", now)
	}
	execute(t, conn, `ALTER TABLE ticket ALTER COLUMN id TYPE bigint`, `INSERT INTO ticket DEFAULT VALUES`)
}
