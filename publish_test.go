package weir_test

import (
	"database/sql"
	"testing"

	"github.com/weir-pg/weir"
)

// TestPublishTxTakesTransactionsOfDatabaseSQL: PublishTx publishes in a transaction of database/sql.
func TestPublishTxTakesTransactionsOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	db, err := sql.Open("pgx", r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.client.PublishTx(t.Context(), weir.SQLTx(tx), "orders", []byte("text"), nil); err != nil {
			t.Error(err)
		}
		if err := r.client.PublishTx(t.Context(), weir.SQLTx(tx), "orders", []byte{0, 1}, &weir.PublishOptions{Binary: true}); err != nil {
			t.Error(err)
		}
		if commit {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := r.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.message WHERE channel = 'orders'`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d messages were published, want the two of the committed transaction (%v)", n, err)
	}
}
