package guard

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/weir-pg/weir/cmd/internal/horizon"
)

// ruleFor returns the limits of a session and the name of the rule that sets them. named reports whether the rule contains the role's exact
// name.
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

// anyMatches reports whether a pattern matches; an empty list matches everything.
func anyMatches(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(pattern string) bool {
		// A slash is an ordinary character here, unlike in a path.
		ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(text, "/", "\x00"))
		return err == nil && ok
	})
}

// neverEnds returns why the guard must not end a session, whatever the policy says, or "" if it may.
func neverEnds(s *horizon.Session, named bool) string {
	query := strings.ToLower(s.Query)
	switch {
	case s.Backend == "walsender":
		return "it is a walsender: a standby or a replication consumer would lose its connection"
	case strings.HasPrefix(s.Backend, "autovacuum"):
		return "it is autovacuum, which would begin again"
	case s.Backend != "client backend":
		return "it is a server process (" + s.Backend + "), which would begin again"
	case horizon.IsBackup(s.Application):
		return "it is a backup, which would be lost"
	case strings.Contains(query, "pg_backup_start") || strings.Contains(query, "pg_start_backup"):
		return "it has a backup in progress, which would be lost"
	case s.Wait == "IPC:SyncRep":
		return "its commit is done here and waits for a standby: to end the wait would acknowledge what no standby has"
	case s.Superuser && !named:
		return "its role is a superuser, and the rule does not contain its exact name"
	}
	return ""
}

// likePatterns converts patterns with * and ? to LIKE patterns.
func likePatterns(patterns []string) []string {
	like := make([]string, len(patterns))
	for i, pattern := range patterns {
		like[i] = strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`, "*", "%", "?", "_").Replace(pattern)
	}
	return like
}
