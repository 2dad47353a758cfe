package lab

import (
	"strings"
	"testing"
)

// TestSizesThatCantBeMeasuredAreRefused: before anything is started, with the flag and the value.
func TestSizesThatCantBeMeasuredAreRefused(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"--clients must be at least 0, got -3":     {Scenario: "notify", Notify: NotifySize{Clients: -3}},
		"--idle must be at least 0, got -1":        {Scenario: "listeners", Listeners: ListenersSize{Idle: []int{0, -1}}},
		"--idle needs two different numbers":       {Scenario: "listeners", Listeners: ListenersSize{Idle: []int{1000, 1000}}},
		"--groups must be at least 1, got 0":       {Scenario: "listeners", Listeners: ListenersSize{Groups: []int{2, 0}}},
		"--groups may be at most 32":               {Scenario: "listeners", Listeners: ListenersSize{Groups: []int{100}}},
		"--notifiers must be at least 1, got 0":    {Scenario: "listeners", Listeners: ListenersSize{Notifiers: []int{0}}},
		"--clients must be at least 1, got -2":     {Scenario: "listeners", Listeners: ListenersSize{Clients: []int{-2}}},
		"--parents must be at least 0, got -1":     {Scenario: "tree", Tree: TreeSize{Parents: -1}},
		"--rate must be at least 0, got -1500":     {Scenario: "pinned", Pinned: PinnedSize{Rate: -1500}},
		"lab: --workers must be at least 0, got -": {Scenario: "pinned", Pinned: PinnedSize{Workers: -8}},
	} {
		c.Database = "postgres://127.0.0.1:1/nowhere"
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, name := range Scenarios {
		if err := tiny(name, "").Usable(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := (Config{Scenario: name}).Usable(); err != nil {
			t.Errorf("the defaults of %s: %v", name, err)
		}
	}
}

// TestAServerWithItsDefaultsHasRoom: for small sizes of everything that has a flag. 97 of its 100 connections are for ordinary roles, and the lab has one already.
func TestAServerWithItsDefaultsHasRoom(t *testing.T) {
	t.Parallel()
	c := Config{Scenario: "listeners", Listeners: ListenersSize{Idle: []int{0, 4}, Groups: []int{2}, Notifiers: []int{1}, Clients: []int{1}}}
	if n := listenersScenario.needs(&c).connections; n > 96 {
		t.Errorf("it needs %d connections", n)
	}
}
