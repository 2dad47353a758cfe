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
	if unseen := strings.Join(r.Unseen, "\n"); !strings.Contains(unseen, "how far 2 sequences of integer columns have counted: it needs SELECT on them, or pg_read_all_data") {
		t.Errorf("what can't be read is not named:\n%s", unseen)
	}
	execute(t, conn, "SELECT setval('ticket_id_seq', 2100000000)")
	expect(t, examine(t, url, time.Second), doctor.SequenceNearEnd, doctor.Critical)
	execute(t, conn, "SELECT setval('ticket_id_seq', 1000000000)", "SELECT setval('number', 1000)")
	r = examine(t, url, time.Second)
	if f, found := r.Find(doctor.SequenceNearEnd); found {
		t.Errorf("half of the numbers are left: %s", f.Summary)
	}
}
