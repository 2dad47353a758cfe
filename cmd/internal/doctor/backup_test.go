package doctor_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// TestABaseBackupIsKnownWhateverItCallsItself: by the command that the server shows.
func TestABaseBackupIsKnownWhateverItCallsItself(t *testing.T) {
	t.Parallel()
	url, conn := serverFor(t, nil)
	command := "BASE_BACKUP (LABEL 'x', MAX_RATE 32)"
	if version(t, conn) < 150000 {
		command = "BASE_BACKUP LABEL 'x' MAX_RATE 32"
	}
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["replication"], config.RuntimeParams["application_name"] = "true", "nightly"
	backup, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // the test's end waits for it
		defer close(done)
		_, _ = backup.Exec(ctx, command).ReadAll() // it is cancelled
	}()
	t.Cleanup(func() { stop(); <-done })
	until(t, conn, "SELECT EXISTS (SELECT FROM pg_stat_progress_basebackup)")
	var kind, application, query string
	if err := conn.QueryRow(t.Context(), "SELECT backend_type, application_name, query FROM pg_stat_activity JOIN pg_stat_progress_basebackup USING (pid)").Scan(&kind, &application, &query); err != nil {
		t.Fatal(err)
	}
	if got := horizon.Leave(kind, application, query); got != "a base backup (nightly)" {
		t.Errorf("%s, %q: %q", kind, query, got)
	}
}
