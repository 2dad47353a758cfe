package proof

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/schema"
)

// TestKilledServerLosesNothingCommitted: if the postmaster is killed under load, everything enqueued or recorded before exists afterwards; only
// claims may be lost, because they commit asynchronously, and their attempts are claimed again.
func TestKilledServerLosesNothingCommitted(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	conn := connect(t, server.URL("postgres"))
	if err := schema.Up(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	l := newLoad(t, server.URL("postgres"), newSeed(t))
	l.crashing = true
	var killed time.Time
	l.run(loadTime(3*time.Second), func() {
		killed = time.Now()
		if err := server.Kill(); err != nil {
			l.fail(err)
			return
		}
		down := time.Now()
		if err := server.Restart(t.Context()); err != nil {
			l.fail(err)
			return
		}
		t.Logf("killed in %v, restarted in %v", down.Sub(killed).Round(time.Millisecond), time.Since(down).Round(time.Millisecond))
		killed = down
	})
	l.verify(killed)
}
