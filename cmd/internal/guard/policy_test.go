package guard

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestExampleIsTheDefaultPolicy(t *testing.T) {
	p, err := ParsePolicy(Example)
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultPolicy()
	want.Protect.Tables = []string{}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("the example is %+v, and the default %+v", p, want)
	}
	// What stands in comments is a policy too.
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
	for text, want := range map[string]string{
		"interval = \"1s\"\nactions = 3":                       "line 2: there is no setting actions",
		"interval = 5":                                         `"5" is no duration`,
		"interval = \"fast\"":                                  `"fast" is no duration`,
		"interval = \"1ms\"":                                   "interval must be 100ms to 1h, got 1ms",
		"ends_per_minute = 0":                                  "leave out --act",
		"[default]\naction = \"kill\"":                         `got "kill"`,
		"[default]\nafter = \"5h\"":                            "limit (4h) must not be less than after (5h)",
		"[[rule]]\non = \"replica\"":                           `rule "rule 1": on must be`,
		"[[rule]]\nroles = [\"[\"]":                            `"[" is no pattern`,
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
		session session
		standby bool
		rule    string
		named   bool
	}{
		{session{application: "psql", client: "10.1.2.3"}, false, "office", false},
		{session{application: "psql", client: "::ffff:10.1.2.3"}, false, "office", false},
		{session{application: "psql", client: "::1"}, true, "office", false},
		{session{application: "psql"}, false, "office", false},
		{session{application: "pg/a/x"}, false, "office", false},
		{session{application: "psql", client: "10.2.0.1"}, false, "default", false},
		{session{application: "web", role: "bi_reader", database: "shop", client: "10.1.2.3"}, true, "replica", false},
		{session{application: "web", role: "boss", database: "shop", client: "10.1.2.3"}, true, "replica", true},
		{session{application: "web", role: "boss", database: "shop", client: "10.1.2.3"}, false, "default", false},
		{session{application: "web", role: "boss", database: "other", client: "10.1.2.3"}, true, "default", false},
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
	for _, c := range []struct {
		session session
		named   bool
		want    string // "" is that it may be ended
	}{
		{session{backendType: "client backend"}, false, ""},
		{session{backendType: "client backend", superuser: true}, true, ""},
		{session{backendType: "client backend", superuser: true}, false, "superuser"},
		{session{backendType: "walsender"}, true, "walsender"},
		{session{backendType: "autovacuum worker"}, true, "autovacuum"},
		{session{backendType: "logical replication worker"}, true, "process of the server"},
		{session{backendType: "client backend", application: "pgBackRest [backup]"}, true, "backup"},
		{session{backendType: "client backend", application: "pg_dump"}, true, "backup"},
		{session{backendType: "client backend", query: "SELECT PG_BACKUP_START('x')"}, true, "backup in progress"},
	} {
		if got := c.session.never(c.named); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.session, got, c.want)
		}
	}
}

func TestSignalsAreFewAndFewerAfterOneThatDidNoGood(t *testing.T) {
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
