package guard

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// backups are the names by which backup programs connect, in lower case.
var backups = []string{
	"pg_dump", "pg_dumpall", "pg_basebackup", "pg_receivewal", "pg_probackup", "pg_rman", "pgbackrest", "barman", "wal-g", "walg",
}

// ruleFor returns the limits of a session and the name of the rule that gives them. named tells whether the rule names the role in full.
func (p *Policy) ruleFor(s *horizon.Session, standby bool) (limits Limits, rule string, named bool) {
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.matches(s, standby) {
			return r.limits(p.Default), r.Name, slices.Contains(r.Roles, s.Role)
		}
	}
	return p.Default, "default", false
}

func (r *Rule) matches(s *horizon.Session, standby bool) bool {
	return (r.On == "" || (r.On == "standby") == standby) &&
		anyMatches(r.Roles, s.Role) && anyMatches(r.Applications, s.Application) && anyMatches(r.Databases, s.Database) &&
		(len(r.Clients) == 0 || r.matchesClient(s.Client))
}

func (r *Rule) matchesClient(client string) bool {
	if client == "" {
		return r.local
	}
	address, err := netip.ParseAddr(client)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(r.networks, func(n netip.Prefix) bool { return n.Contains(address.Unmap().WithZone("")) })
}

// anyMatches tells whether a pattern matches; none at all matches everything.
func anyMatches(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		// A slash is an ordinary character here.
		ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(text, "/", "\x00"))
		return err == nil && ok
	})
}

// neverEnds says why a session is not for the guard to end, whatever the policy; "" is: it may.
func neverEnds(s *horizon.Session, named bool) string {
	application, query := strings.ToLower(s.Application), strings.ToLower(s.Query)
	switch {
	case s.Backend == "walsender":
		return "it is a walsender: a standby or a consumer of changes would lose its connection"
	case strings.HasPrefix(s.Backend, "autovacuum"):
		return "it is autovacuum"
	case s.Backend != "client backend":
		return "it is a process of the server (" + s.Backend + ")"
	case slices.ContainsFunc(backups, func(name string) bool { return strings.HasPrefix(application, name) }):
		return "it is a backup"
	case strings.Contains(query, "pg_backup_start") || strings.Contains(query, "pg_start_backup"):
		return "it has a backup in progress"
	case s.Superuser && !named:
		return "its role is a superuser, whom no rule names in full"
	}
	return ""
}

// likePatterns turns patterns with * and ? into those of LIKE.
func likePatterns(patterns []string) []string {
	like := make([]string, len(patterns))
	for i, pattern := range patterns {
		like[i] = strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`, "*", "%", "?", "_").Replace(pattern)
	}
	return like
}
