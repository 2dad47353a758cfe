package lab

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestAFullDiskIsNamed: by the log of the private server, although its sessions see only that it refuses connections.
func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	s := &site{}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.start(t.Context(), 0, needs{}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("lab: notify: connection refused")
	if err := s.explain(refused); !errors.Is(err, refused) || err.Error() != refused.Error() {
		t.Errorf("while there is space: %v", err)
	}
	conn, err := connect(t.Context(), s.url, watcherName, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(t.Context(), `COPY (SELECT 1) TO '/dev/full'`); err == nil {
		t.Fatal("there is space in /dev/full")
	}
	got := s.explain(refused)
	if text := got.Error(); !errors.Is(got, refused) || !strings.HasPrefix(text, "lab: the disk is full, ") || !strings.Contains(text, "TMPDIR") || !strings.HasSuffix(text, ": notify: connection refused") {
		t.Errorf("on a full disk: %s", text)
	}
}
