package guard

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Unreached is a rule of a policy that does not apply as it is meant to.
type Unreached struct {
	Rule string
	Line int // in the policy's file, from 1; 0: unknown
	Why  string
}

// String is a sentence about it.
func (u Unreached) String() string {
	if u.Line == 0 {
		return fmt.Sprintf("rule %q: %s", u.Rule, u.Why)
	}
	return fmt.Sprintf("line %d: rule %q: %s", u.Line, u.Rule, u.Why)
}

func (r *Rule) unreached(format string, args ...any) Unreached {
	return Unreached{r.Name, r.line, fmt.Sprintf(format, args...)}
}

var ruleHead = regexp.MustCompile(`^\s*\[\[\s*rule\s*\]\]`)

// locate sets the lines of rules that are written as tables, one by one.
func locate(rules []Rule, text string) {
	var lines []int
	for i, line := range strings.Split(text, "\n") {
		if ruleHead.MatchString(line) {
			lines = append(lines, i+1)
		}
	}
	for i := range rules {
		if len(lines) == len(rules) {
			rules[i].line = lines[i]
		}
	}
}

// Shadowed returns the rules that never apply, because one before them matches all that they match.
func (p *Policy) Shadowed() (all []Unreached) {
	for i := range p.Rules {
		r := &p.Rules[i]
		for k := range p.Rules[:i] {
			if before := &p.Rules[k]; before.covers(r) {
				at := ""
				if before.line > 0 {
					at = fmt.Sprintf(" of line %d", before.line)
				}
				all = append(all, r.unreached("it never applies: rule %q%s, before it, matches all that it matches", before.Name, at))
				break
			}
		}
	}
	return all
}

// covers reports whether the rule certainly matches all sessions that another one matches.
func (r *Rule) covers(o *Rule) bool {
	return (r.On == "" || r.On == o.On) && coversAll(r.Roles, o.Roles) && coversAll(r.Applications, o.Applications) && coversAll(r.Databases, o.Databases) && r.coversClients(o)
}

// coversAll reports whether each of the others' patterns is one of those, or a plain text that one of them matches.
func coversAll(patterns, others []string) bool {
	if len(patterns) == 0 || slices.Contains(patterns, "*") {
		return true
	}
	return len(others) > 0 && !slices.ContainsFunc(others, func(o string) bool {
		return !slices.Contains(patterns, o) && (strings.ContainsAny(o, `*?[\`) || !anyMatches(patterns, o))
	})
}

func (r *Rule) coversClients(o *Rule) bool {
	if len(r.Clients) == 0 {
		return true
	}
	return len(o.Clients) > 0 && (r.local || !o.local) && !slices.ContainsFunc(o.networks, func(n netip.Prefix) bool {
		return !slices.ContainsFunc(r.networks, func(m netip.Prefix) bool { return m.Bits() <= n.Bits() && m.Contains(n.Addr()) })
	})
}

// Unreached returns the rules that never apply to this cluster as it is: also those for roles and databases that it does not have, and for standbys that the guard does not
// watch. Which applications will connect, nobody knows.
func (g *Guard) Unreached(ctx context.Context) ([]Unreached, error) {
	all := g.config.Policy.Shadowed()
	if len(g.config.Policy.Rules) == 0 {
		return all, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	names := map[string][]string{}
	for what, sql := range map[string]string{"role": "SELECT rolname::text FROM pg_catalog.pg_roles", "database": "SELECT datname::text FROM pg_catalog.pg_database"} {
		list, err := read(ctx, g.config.Primary.DB, sql, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("read which %ss %s has: %w", what, g.config.Primary.Name, err)
		}
		names[what] = list
	}
	for i := range g.config.Policy.Rules {
		r := &g.config.Policy.Rules[i]
		if r.On == "standby" && len(g.config.Standbys) == 0 {
			all = append(all, r.unreached("it never applies: it is for standbys, and none is given with --standby"))
		}
		for _, list := range []struct {
			what     string
			patterns []string
		}{{"role", r.Roles}, {"database", r.Databases}} {
			var none []string
			for _, pattern := range list.patterns {
				if !slices.ContainsFunc(names[list.what], func(name string) bool { return anyMatches([]string{pattern}, name) }) {
					none = append(none, fmt.Sprintf("%q", pattern))
				}
			}
			switch {
			case len(none) == 0:
			case len(none) == len(list.patterns):
				all = append(all, r.unreached("it never applies: no %s here matches %s", list.what, strings.Join(none, " or ")))
			default:
				all = append(all, r.unreached("no %s here matches %s", list.what, strings.Join(none, " or ")))
			}
		}
	}
	return all, nil
}
