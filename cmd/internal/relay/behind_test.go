package relay_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-pg/weir/cmd/internal/relay"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestHowFarARelayIsBehindGrowsWhileItsTargetIsAway: weir_relay_behind_seconds, also of what nobody has read, and while nothing is published. A relay beside it that has passed on everything is not behind.
func TestHowFarARelayIsBehindGrowsWhileItsTargetIsAway(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	path := filepath.Join(t.TempDir(), "relay.toml")
	const one = "[relay.%s]\nsince = \"oldest\"\nroute = [{ channels = \"c\" }]\n[relay.%[1]s.database]\nurl = %[2]q\n"
	if err := os.WriteFile(path, fmt.Appendf(fmt.Appendf(nil, one, "away", pgtest.Empty(t)), one, "there", pgtest.Database(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	registry := prometheus.NewRegistry()
	relays, err := relay.Open(t.Context(), relay.Config{Path: path, Log: log.Logger(), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relays.Close)
	pool := pgtest.Pool(t, url)
	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('c', 'a')`); err != nil {
		t.Fatal(err)
	}
	relaying(t, func(ctx context.Context) error { return relays.Run(ctx, pool) })
	metric := func(name, relay string) float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name && m.GetLabel()[0].GetValue() == relay {
					return m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		t.Errorf("there is no %s of the relay %s", name, relay)
		return 0
	}
	const behind = "weir_relay_behind_seconds"
	pgtest.Until(t, "the relay whose target is there has passed on everything", func() bool { return metric("weir_relay_messages_total", "there") == 1 && metric(behind, "there") == 0 })
	var first float64
	pgtest.Until(t, "the other one is behind", func() bool { first = metric(behind, "away"); return first > 0 })
	pgtest.Until(t, "it is so further and further", func() bool { return metric(behind, "away") > first+1 })
	if got := metric(behind, "there"); got != 0 {
		t.Errorf("the relay whose target is there is %v s behind", got)
	}
}
