package doctor

import (
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// TestACommitThatHoldsTheHorizonIsLeftAlone while it waits for a standby, as one for which others wait is.
func TestACommitThatHoldsTheHorizonIsLeftAlone(t *testing.T) {
	t.Parallel()
	p := pin{Holder: horizon.Holder{Kind: horizon.Transaction, PID: 4711, Wait: "IPC:SyncRep", Session: &horizon.Session{Backend: "client backend"}}}
	if got := endOf(nil, p); !strings.HasPrefix(got, "Leave pid 4711 alone") || strings.Contains(got, "pg_") || !strings.Contains(got, "see sync-replication-stalled") {
		t.Errorf("the fix for now: %s", got)
	}
	p.Wait = "Client:ClientRead"
	if got := endOf(nil, p); !strings.Contains(got, "SELECT pg_terminate_backend(4711)") {
		t.Errorf("the fix for now of another: %s", got)
	}
}
