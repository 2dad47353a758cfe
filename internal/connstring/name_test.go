package connstring

import (
	"strings"
	"testing"
)

// TestNamesOfDatabasesStay: they are made of the database and its address alone, and fit into an address.
func TestNamesOfDatabasesStay(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 63)
	for text, want := range map[string]string{
		"postgres://ada:secret@10.0.0.5/shop": "shop shop.10.0.0.5-5432", "postgres://ada@[::1]:5433/shop": "shop shop.-1-5433", "host=/run/pg dbname=shop": "shop shop.-run-pg-5432",
		"host=a user=ada": "ada ada.a-5432", "host=a dbname='my shop'": "my-shop my-shop.a-5432", "host=a,b port=1,2 dbname=.": "postgres postgres.a-1",
	} {
		short, full, err := Named(text)
		if got := short + " " + full; err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	_, a, _ := Named("host=a dbname=" + long)
	_, b, _ := Named("host=b dbname=" + long)
	if a == b || len(a) != 63 || len(b) != 63 {
		t.Errorf("long names: %q and %q", a, b)
	}
	if _, _, err := Named("no connection string, with secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("what is no connection string: %v", err)
	}
}
