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
		n, err := Named(text)
		if got := n.Short + " " + n.Full; err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	a, _ := Named("host=a dbname=" + long)
	b, _ := Named("host=b dbname=" + long)
	if a.Full == b.Full || len(a.Full) != 63 || len(b.Full) != 63 {
		t.Errorf("long names: %q and %q", a.Full, b.Full)
	}
	for _, pair := range [][2]string{{"host=a dbname='my db'", "host=a dbname=my-db"}, {"host=b.c dbname=a", "host=c dbname=a.b"}, {"host=::1 dbname=a", "host=1:: dbname=a"}} {
		a, _ := Named(pair[0])
		b, _ := Named(pair[1])
		if a.Full != b.Full || a.Place == b.Place {
			t.Errorf("%v: %+v, %+v: want one name for two places", pair, a, b)
		}
	}
	if _, err := Named("no connection string, with secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("what is no connection string: %v", err)
	}
}
