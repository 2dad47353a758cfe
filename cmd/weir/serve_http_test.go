package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestAPortThatIsTakenIsNotProposed: whoever asked for one is told of another.
func TestAPortThatIsTakenIsNotProposed(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	_, err = serveHTTP("--listen-metrics", address, http.NotFoundHandler(), "metrics", "/metrics", slog.New(slog.DiscardHandler))
	want := fmt.Sprintf("--listen-metrics %s: address already in use: name a free port, as in :%d", address, taken.Addr().(*net.TCPAddr).Port%65535+1)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
