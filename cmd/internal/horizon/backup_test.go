package horizon_test

import (
	"testing"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// TestABackupIsKnownByWhatItDoes: not only by the name that it gives itself.
func TestABackupIsKnownByWhatItDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ backend, application, query, want string }{
		{"walsender", "nightly", "BASE_BACKUP ( LABEL 'nightly',  WAL 'true' )", "a base backup (nightly)"},
		{"client backend", "pg_dump", "COPY public.t TO stdout", "a backup (pg_dump)"},
		{"client backend", "script", "SELECT pg_backup_start('x')", "a backup in progress (script)"},
		{"walsender", "standby", "START_REPLICATION 0/1 TIMELINE 1", "a server process (walsender)"},
		{"client backend", "shop", "SELECT 1", ""},
		{"", "", "", ""},
	} {
		if got := horizon.Leave(c.backend, c.application, c.query); got != c.want {
			t.Errorf("%s %q, %q: %q, want %q", c.backend, c.application, c.query, got, c.want)
		}
	}
}
