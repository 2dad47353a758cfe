package proof

import (
	"context"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAHistoryIsWholeUnderKills: calls that are killed, or rolled back after they have done everything, count nothing, and later ones count it once.
func TestAHistoryIsWholeUnderKills(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	worker := startWorker(t, conn, "q")
	m := newMinutes(t, conn)
	const each, rounds = 10, 12
	for i := range rounds {
		enqueueN(t, conn, "q", each)
		mustComplete(t, conn, worker, mustClaim(t, conn, worker, "q", each))
		m.pass()
		dies := connect(t, url)
		switch i % 3 {
		case 0: // after it has set the sequence, which does not roll back
			exec(t, dies, `BEGIN`)
			exec(t, dies, `SELECT weir._count_minutes($1)`, m.at().Add(time.Minute))
			exec(t, conn, `SELECT pg_terminate_backend($1)`, dies.PgConn().PID())
		case 1: // somewhere
			ended := make(chan error, 1)
			go func() { // ends with its session
				_, err := dies.Exec(context.Background(), `SELECT weir._count_minutes($1)`, m.at().Add(time.Minute))
				ended <- err
			}()
			exec(t, conn, `SELECT pg_terminate_backend($1)`, dies.PgConn().PID())
			_ = pgtest.Receive(t, ended, "the session is killed, or has been quick")
		}
		until(t, "the session has ended", func() bool {
			return i%3 == 2 || !value[bool](t, conn, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, dies.PgConn().PID())
		})
	}
	m.n++
	m.count()
	points := m.history("q", "1 minute")
	for i, p := range points {
		want := int64(each)
		if i >= rounds {
			want = 0
		}
		if p.Completed != want {
			t.Errorf("minute %d has %d, want %d", i, p.Completed, want)
		}
	}
	if len(points) < rounds {
		t.Errorf("the history has %d minutes of %d", len(points), rounds)
	}
}
