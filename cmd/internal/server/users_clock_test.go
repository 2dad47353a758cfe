package server

import (
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// TestARevocationEndsWhenTheDatabaseSaysSo: a hub whose clock is ahead of the database's lets nobody in early.
func TestARevocationEndsWhenTheDatabaseSaysSo(t *testing.T) {
	t.Parallel()
	var u users
	now := time.Now()
	until := now.Add(-time.Minute) // by the hub's clock, it is over
	u.set([]store.Revocation{{ID: 1, User: "ada", At: now.Add(-time.Hour), Until: &until}})
	if !u.has("ada", now.Add(-2*time.Hour)) {
		t.Error("a revoked token is accepted although the database lists the revocation")
	}
	if u.set(nil); u.has("ada", now.Add(-2*time.Hour)) {
		t.Error("a token is refused although the database lists no revocation")
	}
}
