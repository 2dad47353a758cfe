package guard

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

func TestExampleIsTheDefaultPolicy(t *testing.T) {
	t.Parallel()
	p, err := ParsePolicy(Example)
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultPolicy()
	want.Protect.Tables = []string{}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("the example is %+v, and the default %+v", p, want)
	}
	// The commented-out settings are a valid policy too.
	var uncommented []string
	for _, line := range strings.Split(Example, "\n") {
		rest, commented := strings.CutPrefix(line, "# ")
		if commented && (strings.HasPrefix(rest, "[[") || strings.Contains(rest, " = ")) {
			line = rest
		}
		uncommented = append(uncommented, line)
	}
	p, err = ParsePolicy(strings.Join(uncommented, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Rules) != 1 || len(p.Protect.Probes) != 1 || p.Rules[0].Limit.Duration != 8*time.Hour {
		t.Errorf("the example's comments make %+v", p)
	}
}

func TestBadPolicyIsNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"interval = \"1s\"\nactions = 3":                       "line 2: unknown setting actions",
		"# checked often\ninterval = 5\n[protect]":             `line 2: "5" is not a valid duration`,
		"interval = \"fast\"":                                  `"fast" is not a valid duration`,
		"interval = \"1ms\"":                                   "interval must be 100ms to 1h, got 1ms",
		"ends_per_minute = 0":                                  "leave out --act",
		"[default]\naction = \"kill\"":                         `got "kill"`,
		"[default]\nafter = \"5h\"":                            "limit (4h) must not be less than after (5h)",
		"[[rule]]\non = \"replica\"":                           `rule "rule 1": on must be`,
		"[[rule]]\nroles = [\"[\"]":                            `"[" is not a valid pattern`,
		"[[rule]]\nclients = [\"example.com\"]":                `"example.com" must be an address`,
		"[[rule]]\naction = \"stop\"":                          `got "stop"`,
		"[protect]\ndead_rows = -1":                            "must not be negative, got -1",
		"[[protect.probe]]\nname = \"x\"\nsql = \"SELECT 1\"":  `protect.probe "x" needs name, sql and slower_than`,
		"[[rule]]\nafter = \"6h\"":                             "limit (4h) must not be less than after (6h): set it too",
		"[[rule]]\nafter = \"1h\"\nlimit = \"30m\"":            "limit (30m) must not be less than after (1h)",
		"[[rule]]\nafter = \"1h\"\n[[rule]]\nname = ":          "line 4",
		"[[rule]]\nclients = [\"local\"]\npatience = \"-1s\"":  "must not be negative",
		"[default]\nafter = \"1s\"\n[default]\nafter = \"2s\"": "line 3",
	} {
		if _, err := ParsePolicy(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestFirstRuleThatMatchesDecides(t *testing.T) {
	t.Parallel()
	p, err := ParsePolicy(`
		[[rule]]
		name = "office"
		clients = ["10.1.0.0/16", "::1", "local"]
		applications = ["psql", "pg*/x"]
		[[rule]]
		name = "replica"
		on = "standby"
		roles = ["bi_*", "boss"]
		databases = ["shop"]
		after = "6h"
		limit = "9h"
		action = "cancel"
	`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		session horizon.Session
		standby bool
		rule    string
		named   bool
	}{
		{horizon.Session{Application: "psql", Client: "10.1.2.3"}, false, "office", false},
		{horizon.Session{Application: "psql", Client: "::ffff:10.1.2.3"}, false, "office", false},
		{horizon.Session{Application: "psql", Client: "::1"}, true, "office", false},
		{horizon.Session{Application: "psql"}, false, "office", false},
		{horizon.Session{Application: "pg/a/x"}, false, "office", false},
		{horizon.Session{Application: "psql", Client: "10.2.0.1"}, false, "default", false},
		{horizon.Session{Application: "web", Role: "bi_reader", Database: "shop", Client: "10.1.2.3"}, true, "replica", false},
		{horizon.Session{Application: "web", Role: "boss", Database: "shop", Client: "10.1.2.3"}, true, "replica", true},
		{horizon.Session{Application: "web", Role: "boss", Database: "shop", Client: "10.1.2.3"}, false, "default", false},
		{horizon.Session{Application: "web", Role: "boss", Database: "other", Client: "10.1.2.3"}, true, "default", false},
	} {
		limits, rule, named := p.ruleFor(&c.session, c.standby)
		if rule != c.rule || named != c.named {
			t.Errorf("%+v, standby %v: rule %s, named %v; want %s, %v", c.session, c.standby, rule, named, c.rule, c.named)
		}
		if rule == "replica" && (limits.Action != Cancel || limits.Limit.Duration != 9*time.Hour || limits.Patience != DefaultPolicy().Default.Patience) {
			t.Errorf("limits are %+v", limits)
		}
	}
}

func TestSomeAreNeverEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		session horizon.Session
		named   bool
		want    string // "": it may be ended
	}{
		{horizon.Session{Backend: "client backend"}, false, ""},
		{horizon.Session{Backend: "client backend", Superuser: true}, true, ""},
		{horizon.Session{Backend: "client backend", Superuser: true}, false, "superuser"},
		{horizon.Session{Backend: "walsender"}, true, "walsender"},
		{horizon.Session{Backend: "autovacuum worker"}, true, "autovacuum"},
		{horizon.Session{Backend: "logical replication worker"}, true, "server process"},
		{horizon.Session{Backend: "client backend", Application: "pgBackRest [backup]"}, true, "backup"},
		{horizon.Session{Backend: "client backend", Application: "pg_dump"}, true, "backup"},
		{horizon.Session{Backend: "client backend", Query: "SELECT PG_BACKUP_START('x')"}, true, "backup in progress"},
	} {
		if got := neverEnds(&c.session, c.named); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.session, got, c.want)
		}
	}
}

func TestSignalsAreFewAndFewerAfterOneThatDidNoGood(t *testing.T) {
	t.Parallel()
	var c caution
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	wait := func(d, want time.Duration) {
		t.Helper()
		if got := c.wait(at(d), 2); got != want {
			t.Errorf("after %v the wait is %v, want %v", d, got, want)
		}
	}
	wait(0, 0)
	c.signalled(at(0))
	c.signalled(at(10 * time.Second))
	wait(20*time.Second, 40*time.Second)
	wait(time.Minute, 0)
	c.failed(at(time.Minute))
	wait(time.Minute, leastPause)
	c.failed(at(2 * time.Minute))
	wait(2*time.Minute, 2*leastPause)
	for range 20 {
		c.failed(at(2 * time.Minute))
	}
	wait(2*time.Minute, longestPause)
	c.helped()
	wait(2*time.Minute, 0)
}

// TestGuardsOfOneServerShareTheLimitOnSignals: two of them signal no more often than one, and wait together after one that did not help.
func TestGuardsOfOneServerShareTheLimitOnSignals(t *testing.T) {
	t.Parallel()
	var turns Turns
	one, err := New(Config{Primary: Server{DB: limited{}}, Turns: &turns})
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(Config{Primary: Server{DB: limited{}}, Turns: &turns})
	if err != nil {
		t.Fatal(err)
	}
	alone, err := New(Config{Primary: Server{DB: limited{}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	one.turns.caution.signalled(now)
	other.turns.caution.signalled(now)
	if wait := one.turns.caution.wait(now, 2); wait <= 0 {
		t.Error("a third signal within a minute need not wait")
	}
	if wait := alone.turns.caution.wait(now, 2); wait != 0 {
		t.Errorf("the guard of another server waits for %s", wait)
	}
}
