package pgtest_test

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestStandbyShowsWhatThePrimaryCommitted: a standby shows the commits of its primary once Replayed returns.
func TestStandbyShowsWhatThePrimaryCommitted(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t, nil)
	standby := pgtest.Standby(t, primary, nil)
	write, read := pgtest.Pool(t, primary.URL("postgres")), pgtest.Pool(t, standby.URL("postgres"))
	if _, err := write.Exec(t.Context(), "CREATE TABLE kept AS SELECT 1"); err != nil {
		t.Fatal(err)
	}
	pgtest.Replayed(t, primary, standby)
	if _, err := read.Exec(t.Context(), "TABLE kept"); err != nil {
		t.Error(err)
	}
}
