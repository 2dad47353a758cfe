package guard

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// Example is a policy file with every setting, its default and its meaning.
//
//go:embed example.toml
var Example string

// Action is the last step that a rule allows.
type Action string

// The steps, lowest first. Ignore takes none.
const (
	Ignore    Action = "ignore"
	Report    Action = "report"
	Cancel    Action = "cancel"
	Terminate Action = "terminate"
)

// Duration is written as in "1h30m". It is not a number, so that a policy can't give a number without a unit.
type Duration struct{ time.Duration }

// UnmarshalText parses a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a valid duration: write it as 30s, 5m or 1h30m", text)
	}
	d.Duration = v
	return nil
}

// MarshalText returns what UnmarshalText parses.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String omits the trailing zero units that time.Duration prints.
func (d Duration) String() string {
	text := d.Duration.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Policy says what to protect, and which sessions to end when. Example explains its fields; DefaultPolicy returns the defaults.
type Policy struct {
	Interval      Duration `toml:"interval"`
	EndsPerMinute int      `toml:"ends_per_minute"`
	HideQueries   bool     `toml:"hide_queries"`
	Protect       Protect  `toml:"protect"`
	Default       Limits   `toml:"default"`
	Rules         []Rule   `toml:"rule"`
}

// Protect selects the tables to protect, and defines what harms them.
type Protect struct {
	Tables   []string `toml:"tables"`
	DeadRows int64    `toml:"dead_rows"`
	Probes   []Probe  `toml:"probe"`
	// Sessions that have waited for one session's locks for BlockedFor suffer if there are this many of them; 0: they don't.
	BlockedSessions int      `toml:"blocked_sessions"`
	BlockedFor      Duration `toml:"blocked_for"`
}

// Probe is a query that is timed in each poll, such as a queue's claim without its locks.
type Probe struct {
	Name       string   `toml:"name"`
	SQL        string   `toml:"sql"`
	SlowerThan Duration `toml:"slower_than"`
}

// Limits are what a session may do, and the last step allowed beyond that.
type Limits struct {
	Action   Action   `toml:"action"`
	After    Duration `toml:"after"`
	Patience Duration `toml:"patience"`
	Limit    Duration `toml:"limit"` // 0: none
}

// Rule sets the limits of the sessions that it matches: those that match a pattern of each list that is not empty.
type Rule struct {
	Name         string    `toml:"name"`
	Roles        []string  `toml:"roles"`
	Applications []string  `toml:"applications"`
	Databases    []string  `toml:"databases"`
	Clients      []string  `toml:"clients"`
	On           string    `toml:"on"`
	Action       Action    `toml:"action"`
	After        *Duration `toml:"after"`
	Patience     *Duration `toml:"patience"`
	Limit        *Duration `toml:"limit"`

	networks []netip.Prefix // parsed from Clients
	local    bool           // Clients contains "local"
	line     int            // in the file; 0: unknown
}

// DefaultPolicy returns the policy used without a file.
func DefaultPolicy() Policy {
	return Policy{
		Interval:      Duration{5 * time.Second},
		EndsPerMinute: 2,
		Protect:       Protect{DeadRows: 10_000, BlockedFor: Duration{30 * time.Second}},
		Default: Limits{
			Action: Terminate, After: Duration{5 * time.Minute}, Patience: Duration{30 * time.Second}, Limit: Duration{4 * time.Hour},
		},
	}
}

// ParsePolicy parses a policy. Settings left out have their defaults; an unknown setting is an error that names its line.
func ParsePolicy(text string) (Policy, error) {
	p := DefaultPolicy()
	decoder := toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		var unknown *toml.StrictMissingError
		if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
			first := unknown.Errors[0]
			line, _ := first.Position()
			return p, fmt.Errorf("line %d: unknown setting %s: see weir guard --print-policy", line, strings.Join(first.Key(), "."))
		}
		var wrong *toml.DecodeError
		if errors.As(err, &wrong) {
			line, column := wrong.Position()
			return p, fmt.Errorf("line %d, column %d: %s", line, column, strings.TrimPrefix(wrong.Error(), "toml: "))
		}
		return p, fmt.Errorf("line %d: %w", lineOf(text, err), err)
	}
	locate(p.Rules, text)
	return p, p.prepare()
}

// lineOf returns the line of an error that does not tell it, as those about a number in place of a text: the first with which the policy has that error.
func lineOf(text string, err error) int {
	lines := strings.SplitAfter(text, "\n")
	for n := range lines {
		var p Policy
		if e := toml.Unmarshal([]byte(strings.Join(lines[:n+1], "")), &p); e != nil && e.Error() == err.Error() {
			return n + 1
		}
	}
	return len(lines)
}

// prepare checks the values and parses the rules' networks.
func (p *Policy) prepare() error {
	switch {
	case p.Interval.Duration < 100*time.Millisecond || p.Interval.Duration > time.Hour:
		return fmt.Errorf("interval must be 100ms to 1h, got %v", p.Interval)
	case p.EndsPerMinute < 1 || p.EndsPerMinute > 600:
		return fmt.Errorf("ends_per_minute must be 1 to 600, got %d: to end no sessions, leave out --act", p.EndsPerMinute)
	case p.Protect.DeadRows < 0:
		return fmt.Errorf("protect.dead_rows must not be negative, got %d", p.Protect.DeadRows)
	case p.Protect.BlockedSessions < 0 || p.Protect.BlockedSessions > mostBlocked:
		return fmt.Errorf("protect.blocked_sessions must be 0 to %d, got %d", mostBlocked, p.Protect.BlockedSessions)
	case p.Protect.BlockedFor.Duration < 0:
		return fmt.Errorf("protect.blocked_for must not be negative, got %v", p.Protect.BlockedFor)
	}
	for _, probe := range p.Protect.Probes {
		if probe.Name == "" || probe.SQL == "" || probe.SlowerThan.Duration <= 0 {
			return fmt.Errorf("protect.probe %q needs name, sql and slower_than", probe.Name)
		}
	}
	if err := p.Default.check("default"); err != nil {
		return err
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Name == "" {
			r.Name = fmt.Sprintf("rule %d", i+1)
		}
		if err := r.prepare(); err != nil {
			return fmt.Errorf("rule %q: %w", r.Name, err)
		}
		if err := r.limits(p.Default).check("rule " + r.Name); err != nil {
			return err
		}
	}
	return nil
}

func (l Limits) check(name string) error {
	switch {
	case l.Action != Ignore && l.Action != Report && l.Action != Cancel && l.Action != Terminate:
		return fmt.Errorf("%s: action must be ignore, report, cancel or terminate, got %q", name, l.Action)
	case l.After.Duration < 0 || l.Patience.Duration < 0 || l.Limit.Duration < 0:
		return fmt.Errorf("%s: after, patience and limit must not be negative", name)
	case l.Limit.Duration > 0 && l.Limit.Duration < l.After.Duration:
		return fmt.Errorf("%s: limit (%v) must not be less than after (%v): set it too, or to 0s for none", name, l.Limit, l.After)
	}
	return nil
}

func (r *Rule) prepare() error {
	for _, patterns := range [][]string{r.Roles, r.Applications, r.Databases} {
		for _, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("%q is not a valid pattern: use only * and ?", pattern)
			}
		}
	}
	if r.On != "" && r.On != "primary" && r.On != "standby" {
		return fmt.Errorf(`on must be "primary" or "standby", got %q`, r.On)
	}
	r.networks, r.local = nil, false
	for _, client := range r.Clients {
		if client == "local" {
			r.local = true
			continue
		}
		network, err := netip.ParsePrefix(client)
		if err != nil {
			var address netip.Addr
			if address, err = netip.ParseAddr(client); err == nil {
				network = netip.PrefixFrom(address, address.BitLen())
			}
		}
		if err != nil {
			return fmt.Errorf(`clients: %q must be an address, a network as in 10.1.0.0/16, or "local" for Unix sockets`, client)
		}
		r.networks = append(r.networks, network)
	}
	return nil
}

// limits returns the rule's limits, with l's where the rule sets none.
func (r *Rule) limits(l Limits) Limits {
	if r.Action != "" {
		l.Action = r.Action
	}
	for _, set := range []struct{ to, from *Duration }{{&l.After, r.After}, {&l.Patience, r.Patience}, {&l.Limit, r.Limit}} {
		if set.from != nil {
			*set.to = *set.from
		}
	}
	return l
}
