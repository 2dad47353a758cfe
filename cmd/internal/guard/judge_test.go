package guard

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// made is an invented cluster. The next xid is 1000, sessions have been idle in their transactions for an hour, and all may be ended.
type made struct {
	c   *cluster
	now time.Time
}

func newMade() *made {
	now := time.Now()
	return &made{&cluster{primary: &view{View: &horizon.View{At: now, Database: "shop", Next: 1000, Stream: horizon.Stream{Port: 5432}}, server: Server{Name: "primary"}}}, now}
}

func (m *made) session(v *view, pid int32, xid, xmin horizon.XID) *horizon.Session {
	since := m.now.Add(-time.Hour)
	s := &horizon.Session{
		PID: pid, Connected: since, Started: &since, Quiet: &since, Backend: "client backend", Database: "shop", State: "idle in transaction",
	}
	if xid > 0 {
		s.XID = &xid
	}
	if xmin > 0 {
		s.Xmin = &xmin
	}
	v.Sessions = append(v.Sessions, s)
	return s
}

// standby adds a standby that reports xmin to v.
func (m *made) standby(v *view, name, application string, xmin horizon.XID) *view {
	walsender := m.session(v, int32(900+len(m.c.standbys)), 0, xmin)
	walsender.Backend, walsender.Application, walsender.Database = "walsender", application, ""
	s := &view{
		View: &horizon.View{At: m.now, Standby: true, Database: "shop", Next: 1000, Stream: horizon.Stream{
			Feedback: true, Port: 5432, Streams: true, FromPort: 5432,
			Conninfo: "user=x passfile=/a b port=5432 fallback_application_name=" + application + " sslmode=prefer",
		}},
		server: Server{Name: name},
	}
	m.c.standbys = append(m.c.standbys, s)
	return s
}

func (m *made) judged(harmed ...string) []*Holder {
	holders := m.c.holders()
	p := DefaultPolicy()
	p.Default.Limit = Duration{}
	judge(&p, holders, harmed)
	return holders
}

func steps(holders []*Holder) string {
	var b strings.Builder
	for _, h := range holders {
		b.WriteString(h.Server + " " + h.Name + " " + string(h.Step) + "; ")
	}
	return b.String()
}

func (m *made) expect(t *testing.T, want string, harmed ...string) {
	t.Helper()
	holders := m.judged(harmed...)
	if got := steps(holders); got != want {
		t.Errorf("judged %q, want %q", got, want)
		for _, h := range holders {
			t.Logf("%s: %s", h.Name, h.Why)
		}
	}
}

func TestSessionsOfStandbysOfOneNameAreTheirOwn(t *testing.T) {
	t.Parallel()
	m := newMade()
	a := m.standby(m.c.primary, "a", "walreceiver", 100)
	b := m.standby(m.c.primary, "b", "walreceiver", 200)
	m.session(a, 1, 0, 100)
	m.session(b, 2, 0, 200)
	m.expect(t, "a pid 1 terminate; b pid 2 terminate; ", "jobs")
	if holders := m.c.holders(); holders[0].Xid != 100 || holders[1].Xid != 200 {
		t.Errorf("they hold %d and %d", holders[0].Xid, holders[1].Xid)
	}
}

func TestStandbyOfAnotherNameIsNotTakenForTheOneThatHolds(t *testing.T) {
	t.Parallel()
	m := newMade()
	a := m.standby(m.c.primary, "a", "first", 100)
	m.standby(m.c.primary, "b", "second", 100)
	m.c.standbys = m.c.standbys[:1] // b is not named
	m.session(a, 1, 0, 100)
	m.expect(t, "a pid 1 report; primary second ; ", "jobs")
}

func TestStandbyWithoutFeedbackHoldsNothing(t *testing.T) {
	t.Parallel()
	m := newMade()
	a := m.standby(m.c.primary, "a", "first", 100)
	m.c.primary.Sessions, a.Stream.Feedback = nil, false
	m.session(a, 1, 0, 100)
	m.expect(t, "", "jobs")
}

func TestEndThatGivesBackLittleIsNotWorthIt(t *testing.T) {
	t.Parallel()
	for next, want := range map[horizon.XID]string{
		110: "primary pid 1 report; primary pid 2 report; ",
		900: "primary pid 1 terminate; primary pid 2 report; ",
	} {
		m := newMade()
		m.session(m.c.primary, 1, 0, 100)
		m.session(m.c.primary, 2, 0, next).Application = "pg_dump"
		m.expect(t, want, "jobs")
	}
}

func TestFrontIsEndedAsFarAsItReaches(t *testing.T) {
	t.Parallel()
	m := newMade()
	m.session(m.c.primary, 1, 100, 0)
	m.session(m.c.primary, 2, 0, 200)
	m.session(m.c.primary, 3, 0, 300).Superuser = true // stays
	m.session(m.c.primary, 4, 0, 400)
	m.expect(t, "primary pid 1 report; primary pid 2 report; primary pid 3 report; primary pid 4 ; ", "jobs")
	m.c.primary.Next = 10_000
	*m.c.primary.Sessions[2].Xmin = 9_000
	*m.c.primary.Sessions[3].Xmin = 9_100
	m.expect(t, "primary pid 1 terminate; primary pid 2 terminate; primary pid 3 report; primary pid 4 ; ", "jobs")
}

func TestXidsAreComparedOnACircle(t *testing.T) {
	t.Parallel()
	m := newMade()
	m.c.primary.Next = 5
	m.session(m.c.primary, 1, 0, 4294967000)
	m.session(m.c.primary, 2, 0, 4)
	holders := m.judged("jobs")
	if holders[0].PID != 1 || holders[0].AgeXids != 301 || holders[1].AgeXids != 1 {
		t.Errorf("ages are %d and %d", holders[0].AgeXids, holders[1].AgeXids)
	}
}

// A snapshot is as old as the oldest transaction of any database; VACUUM respects the snapshots of its own database.
func TestTransactionElsewhereCountsThroughSnapshotsHere(t *testing.T) {
	t.Parallel()
	m := newMade()
	m.session(m.c.primary, 1, 100, 0).Database = "elsewhere"
	m.session(m.c.primary, 2, 0, 50).Database = "elsewhere"
	m.expect(t, "primary pid 2 ; primary pid 1 ; ", "jobs")
	m.session(m.c.primary, 3, 0, 100)
	m.expect(t, "primary pid 2 ; primary pid 1 terminate; primary pid 3 ; ", "jobs")
}

func TestSlotOfACatalogHoldsNoTable(t *testing.T) {
	t.Parallel()
	m := newMade()
	old := horizon.XID(10)
	m.c.primary.Slots = []horizon.ReplicationSlot{{Name: "changes", Logical: true, CatalogXmin: &old}}
	m.session(m.c.primary, 1, 100, 0)
	m.expect(t, "primary changes ; primary pid 1 terminate; ", "jobs")
}

// While the transaction runs whose xid a snapshot shows, the snapshot may be as old or older; one that stays is told from it when that has ended, and what comes behind it ends in vain.
func TestWhatIsBehindASnapshotThatMayBeOldWaits(t *testing.T) {
	t.Parallel()
	m := newMade()
	m.session(m.c.primary, 1, 0, 100).Superuser = true // stays
	m.session(m.c.primary, 2, 100, 0)
	m.session(m.c.primary, 3, 101, 0)
	m.expect(t, "primary pid 2 terminate; primary pid 1 ; primary pid 3 ; ", "jobs")
	m.c.primary.Sessions = append(m.c.primary.Sessions[:1], m.c.primary.Sessions[2])
	m.expect(t, "primary pid 1 report; primary pid 3 ; ", "jobs")
	m.c.primary.Sessions[0].XID, m.c.primary.Sessions[0].Xmin = nil, m.c.primary.Sessions[1].XID
	m.expect(t, "primary pid 3 terminate; primary pid 1 ; ", "jobs")
}

// A session that was idle before the transaction began has a snapshot of its own age, even if it shows the xid of the transaction. What runs may have
// taken its snapshot later. That of a backup stays in any case.
func TestTransactionIsNotEndedForASnapshotThatIsOlder(t *testing.T) {
	t.Parallel()
	m := newMade()
	other := m.session(m.c.primary, 1, 0, 100)
	other.Superuser = true // stays
	began := m.now.Add(-30 * time.Minute)
	writer := m.session(m.c.primary, 2, 100, 0)
	writer.Started, writer.Quiet = &began, &began
	m.session(m.c.primary, 3, 101, 0)
	const keeps, waits = "primary pid 2 report; primary pid 1 report; primary pid 3 ; ", "primary pid 2 terminate; primary pid 1 ; primary pid 3 ; "
	m.expect(t, keeps, "jobs")
	other.State = "active"
	m.expect(t, waits, "jobs")
	other.State, other.Quiet = "idle in transaction", &began
	m.expect(t, waits, "jobs")
	other.Application = "pg_dump"
	m.expect(t, keeps, "jobs")
}
