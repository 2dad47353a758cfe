package relay_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhatALaggingRelayHasNotReadIsKeptUpToTheCap: message_retention_bytes. Beyond it the relay goes on behind a gap, which is an error in its log and counted in its metrics.
func TestWhatALaggingRelayHasNotReadIsKeptUpToTheCap(t *testing.T) {
	t.Parallel()
	url, target := pgtest.Database(t), pgtest.Database(t)
	pool, to := pgtest.Pool(t, url), pgtest.Pool(t, target)
	path := filepath.Join(t.TempDir(), "relay.toml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "[relay.slow]\nsince = \"oldest\"\nroute = [{ channels = \"c\" }]\n[relay.slow.database]\nurl = %q\n", target), 0o600); err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	registry := prometheus.NewRegistry()
	relays, err := relay.Open(t.Context(), relay.Config{Path: path, Log: log.Logger(), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relays.Close)
	from := pgtest.Pool(t, url)
	start := func() (stop func()) {
		return relaying(t, func(ctx context.Context) error { return relays.Run(ctx, from) })
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	rotate := func() {
		t.Helper()
		for range 10 {
			exec(`SELECT weir._rotate_messages()`)
		}
	}
	last := 0 // message
	publish := func(n int) {
		t.Helper()
		for range n {
			last++
			exec(`SELECT weir.publish('c', lpad($1, 20000, '0'))`, fmt.Sprint(last))
			exec(`SELECT seqs FROM weir._await_tick(weir.newest_tick())`) // as a hub does
			rotate()
		}
	}
	kept := func() []string {
		return texts(t, pool, `SELECT ltrim(encode(payload, 'escape'), '0') FROM weir.message ORDER BY id`)
	}
	arrived := func() []string {
		return texts(t, to, `SELECT ltrim(encode(payload, 'escape'), '0') FROM weir.message ORDER BY id`)
	}
	until := func(n int) {
		t.Helper()
		pgtest.Until(t, fmt.Sprintf("message %d has arrived", n), func() bool {
			all := arrived()
			return len(all) > 0 && all[len(all)-1] == fmt.Sprint(n)
		})
	}
	metric := func(want string) {
		t.Helper()
		page := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		if got := page.Body.String(); !strings.Contains(got, want+"\n") {
			t.Errorf("the metrics lack %q: %s", want, got)
		}
	}

	exec(`SELECT weir.set('message_retention_bytes', '1048576')`)
	stop := start()
	publish(1)
	until(1)
	stop()

	// Below the cap: what it has not read is kept although its retention is over, and all of it arrives.
	publish(30)
	exec(`SELECT weir.set('message_retention', '0 seconds')`)
	exec(`UPDATE weir.segment SET at = at - interval '2 hours'`)
	rotate()
	if got := len(kept()); got < 30 {
		t.Errorf("%d messages are kept, want at least the 30 that the relay has not passed on", got)
	}
	stop = start()
	until(last)
	stop()
	if got := arrived(); len(got) != last || log.Count("messages may be missing") != 0 {
		t.Errorf("%v has arrived: %s", got, log.String())
	}
	metric(`weir_relay_gaps_total{relay="slow"} 0`)

	// Beyond it, what is oldest goes, although it was not read.
	exec(`SELECT weir.set('message_retention', '1 hour')`) // so that segments change by their size alone
	read := last
	publish(150)
	left := kept()
	if len(left) < 25 || len(left) > 60 || left[len(left)-1] != fmt.Sprint(last) {
		t.Errorf("%d messages of 20 kB are kept, want the newest, within 1 MB: %v", len(left), left)
	}
	start()
	until(last)
	var behind []string
	for n := last - len(left) + 1; n <= last; n++ {
		behind = append(behind, fmt.Sprint(n))
	}
	if got := strings.Join(arrived()[read:], " "); got != strings.Join(behind, " ") {
		t.Errorf("after message %d, %s has arrived; want %v", read, got, behind)
	}
	if text := log.String(); log.Count("messages may be missing") != 1 || !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "message_retention_bytes") {
		t.Error(text)
	}
	metric(`weir_relay_gaps_total{relay="slow"} 1`)
}
