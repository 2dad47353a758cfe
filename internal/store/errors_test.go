package store

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAServerIsDownOnlyWhereEveryAddressRefuses: if one of several hosts refuses, others may still be up, such as one that is full or does
// not answer.
func TestAServerIsDownOnlyWhereEveryAddressRefuses(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	const role = "weir_no_room"
	if _, err := conn.Exec(t.Context(), `CREATE ROLE `+role+` LOGIN PASSWORD 'x' CONNECTION LIMIT 0`); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := conn.Exec(t.Context(), `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	}()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	nobody := listen()
	refuses := nobody.Addr().String()
	nobody.Close()
	mute := listen()
	defer mute.Close()
	go func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	full, hangsUp := server.Host, mute.Addr().String()
	for hosts, down := range map[string]bool{
		refuses:                 true,
		refuses + "," + refuses: true,
		full:                    false,
		hangsUp:                 false,
		refuses + "," + full:    false,
		full + "," + refuses:    false,
		refuses + "," + hangsUp: false,
	} {
		for _, tls := range []string{"disable", "prefer"} {
			c, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s:x@%s%s?sslmode=%s", role, hosts, server.Path, tls))
			if err == nil {
				c.Close(t.Context())
				t.Fatalf("connected to %s", hosts)
			}
			if IsDown(fmt.Errorf("weir: %w", err)) != down {
				t.Errorf("down is %v, want %v: %v", !down, down, err)
			}
		}
	}
	if _, err := pgx.Connect(t.Context(), "host="+filepath.Join(t.TempDir(), "gone")+" user=x dbname=x sslmode=disable"); !IsDown(err) {
		t.Errorf("the socket does not exist, but the server does not count as down: %v", err)
	}
}
