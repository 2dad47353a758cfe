package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// hubReport runs a bench of the hub, and returns its report and the measured ways by name.
func hubReport(t *testing.T, url string, args ...string) (load.Report, map[string][]load.Way) {
	t.Helper()
	r, fields := report(t, url, args...)
	hasFields(t, fields, "hub", "note", "targets")
	if r.Hub == nil || len(r.Hub.Ways) == 0 {
		t.Fatalf("the report has no ways: %v", fields)
	}
	ways := map[string][]load.Way{}
	for _, w := range r.Hub.Ways {
		ways[w.Way] = append(ways[w.Way], w)
		if w.Unit == "" || w.Done <= 0 {
			t.Errorf("the way does not say what was done: %+v", w)
		}
	}
	return r, ways
}

// rated checks what was measured of a way. A latency may be 0: on a busy machine, most subscribers may have a message before its publisher has the answer to the commit.
func rated(t *testing.T, w load.Way, rounds int) {
	t.Helper()
	if w.PerSecond == nil || w.PerSecond.Min <= 0 || w.PerSecond.Samples != rounds || w.P50 == nil || *w.P50 < 0 || *w.P99 < *w.P50 {
		text, _ := json.Marshal(w)
		t.Errorf("the rate or the latency is not plausible: %s", text)
	}
}

// TestPublishComparesWithInsertAloneAndNotify: publish measures all ways with fast and with slow flushes. It needs a private server that flushes,
// since slow flushes don't slow down one that does not.
func TestPublishComparesWithInsertAloneAndNotify(t *testing.T) {
	t.Parallel()
	r, ways := hubReport(t, "", "publish", "--clients", "4", "--rounds", "2", "--seconds", "0.1")
	if len(ways) != 5 {
		t.Errorf("there are %d ways, want 5: %+v", len(ways), ways)
	}
	for name, conditions := range ways {
		if len(conditions) != 2 || conditions[0].Under == conditions[1].Under {
			t.Errorf("%s was not measured once with the disk as it is and once with slow flushes: %+v", name, conditions)
		}
		for _, w := range conditions {
			rated(t, w, 2)
		}
	}
	if slow := ways["insert alone"][1]; *slow.P50 < 2 {
		t.Errorf("a flush should take 2 ms, but half of the transactions took at most %.2f ms", *slow.P50)
	}
	if len(r.Hub.Comparisons) != 10 || len(r.Targets) != 3 {
		t.Errorf("the comparisons are %+v, and the targets %+v", r.Hub.Comparisons, r.Targets)
	}
}

// TestPingPongPlaysOnHubAndPostgres: pingpong measures each way with each number of idle listeners.
func TestPingPongPlaysOnHubAndPostgres(t *testing.T) {
	t.Parallel()
	r, ways := hubReport(t, pgtest.Database(t), "pingpong", "--idle", "12", "--idle-postgres", "10", "--rounds", "1", "--seconds", "0.1")
	for name, sizes := range map[string][]int{"hub, passed on at once": {0, 10, 12}, "hub, logged first": {0, 10, 12}, "PostgreSQL": {0, 10}} {
		if len(ways[name]) != len(sizes) {
			t.Fatalf("%s: %+v", name, ways[name])
		}
		for i, w := range ways[name] {
			rated(t, w, 1)
			if *w.Idle != sizes[i] {
				t.Errorf("%s: %d idle listeners, want %d", name, *w.Idle, sizes[i])
			}
		}
	}
	if len(r.Hub.Comparisons) != 4 {
		t.Errorf("%+v", r.Hub.Comparisons)
	}
}

// TestFanoutDeliversEverything: fanout delivers every message to every subscriber, over every transport.
func TestFanoutDeliversEverything(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for _, transport := range []string{"pg", "ws", "sse"} {
		profile := t.TempDir() + "/hub.pprof"
		_, ways := hubReport(t, url, "fanout", "--subscribers", "20", "--seconds", "0.2", "--transport", transport, "--hub-cpu-profile", profile)
		bare := 0
		for name, w := range ways {
			if strings.HasSuffix(name, "bare loop") {
				if bare++; w[0].Done == 0 || w[0].PerSecond.Median <= 0 {
					t.Errorf("%+v", w[0])
				}
			} else if rated(t, w[0], 1); w[0].Clients != 20 || w[0].Cores == nil || name != "a channel for each" && w[0].Done%20 != 0 {
				t.Errorf("over %s: %+v", transport, w[0])
			}
		}
		if want := map[string]int{"pg": 3}[transport]; bare != want || len(ways) != 3+want {
			t.Errorf("over %s there are %d ways, %d of them bare loops, want %d and %d: %+v", transport, len(ways), bare, 3+want, want, ways)
		}
		if info, err := os.Stat(profile); err != nil || info.Size() == 0 {
			t.Errorf("the profile of the hub was not written: %v", err)
		}
	}
}

// TestListenersWeighsSubscribers: listeners measures the memory of subscribers, and of PostgreSQL's sessions on a private server.
func TestListenersWeighsSubscribers(t *testing.T) {
	t.Parallel()
	_, ways := hubReport(t, "", "listeners", "--subscribers", "300", "--backends", "3", "--settle", "0.1")
	for _, transport := range []string{"pg", "ws", "sse"} {
		w := ways["hub, over "+transport]
		if len(w) != 1 || w[0].Clients != 300 || w[0].Each == nil || w[0].Each.RSS > 1<<20 || w[0].Each.Stack <= 0 {
			t.Errorf("over %s: %+v", transport, w)
		}
	}
	if w := ways["PostgreSQL, a backend each"]; exists("/proc/self/smaps_rollup") && (len(w) != 1 || w[0].Each.PSS < 100<<10) {
		t.Errorf("PostgreSQL: %+v", w)
	}
}

// TestHubsDeliverEverythingAloneAndJoined: hubs measures each number of hubs in each way, on a private server also with a standby, and all subscribers get everything.
func TestHubsDeliverEverythingAloneAndJoined(t *testing.T) {
	t.Parallel()
	r, _ := report(t, "", "hubs", "--hubs", "1,2", "--subscribers", "3", "--rate", "50", "--seconds", "0.4")
	want := []struct {
		name string
		hubs int64
	}{
		{"1 hub, each reads for itself", 1},
		{"1 hub, each reads from a standby", 1},
		{"2 hubs, each reads for itself", 2},
		{"2 hubs, each reads from a standby", 2},
		{"2 hubs, one reads for all, over NATS", 2},
	}
	if len(r.Hub.Ways) != len(want) {
		t.Fatalf("%+v", r.Hub.Ways)
	}
	for i, w := range r.Hub.Ways {
		if w.Way != want[i].name || w.Done != 20*3*want[i].hubs || w.P50 == nil || *w.P99 < *w.P50 || w.Cores.Hub <= 0 || (w.Cores.Standby != nil) != strings.Contains(w.Way, "standby") {
			t.Errorf("%+v, want %+v", w, want[i])
		}
	}
}

// TestStormServesEverybody: storm measures how long it takes until all clients of hubs and of PostgreSQL are served.
func TestStormServesEverybody(t *testing.T) {
	pgtest.Alone(t, "it compares two times")
	r, ways := hubReport(t, pgtest.Database(t), "storm", "--clients", "100", "--postgres", "10", "--rounds", "2")
	for name, clients := range map[string]int{"hub": 100, "hub, as many as PostgreSQL": 10, "PostgreSQL": 10} {
		if w := ways[name]; len(w) != 1 || w[0].Clients != clients || *w[0].Refused != 0 || w[0].Seconds.Samples != 2 || *w[0].Longest < *w[0].P50 {
			t.Errorf("%s: %+v", name, w)
		}
	}
	if len(r.Hub.Comparisons) != 1 || !r.Targets[0].Met {
		t.Errorf("%+v %+v", r.Hub.Comparisons, r.Targets)
	}
}

// TestStormIsLargerThanHubsTakeFromOneAddress: a storm may have more clients on this machine than a hub by default lets log in from one address.
func TestStormIsLargerThanHubsTakeFromOneAddress(t *testing.T) {
	t.Parallel()
	_, ways := hubReport(t, pgtest.Database(t), "storm", "--clients", "3000", "--postgres", "10", "--rounds", "1")
	if w := ways["hub"]; len(w) != 1 || w[0].Clients != 3000 {
		t.Errorf("%+v", w)
	} else if *w[0].Refused != 0 {
		t.Errorf("%d of %d clients were refused", *w[0].Refused, w[0].Clients)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
