package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

const seeSyncReplication = `SELECT application_name, client_addr, state, sync_state, flush_lag, pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn) FROM pg_stat_replication`

const syncReplicationSQL = `
SELECT coalesce(r.application_name, ''), coalesce(host(r.client_addr), ''), coalesce(r.state, ''), coalesce(r.sync_state, ''),
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), r.flush_lsn), 0)::bigint, coalesce(extract(epoch FROM clock_timestamp() - r.reply_time), 0)::float8
FROM pg_stat_replication r LIMIT 100`

// syncStandby is a standby that is connected.
type syncStandby struct {
	Application, Client, State, Sync string
	Behind                           int64 // bytes not confirmed as flushed
	Silent                           float64
}

// counted matches synchronous_standby_names with a number: FIRST 2 (a, b), ANY 1 (a, b), 2 (a, b).
var counted = regexp.MustCompile(`(?i)^\s*(?:first\s+|any\s+)?(\d+)\s*\(`)

// needed returns how many standbys must confirm a commit.
func needed(names string) int {
	if m := counted.FindStringSubmatch(names); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1
}

// checkSyncReplication detects commits that wait for synchronous standbys that are gone, or don't confirm. Such a commit waits without end and without
// a timeout.
func checkSyncReplication(ctx context.Context, l *inspection) (result, error) {
	if l.server.Standby {
		return result{}, nil
	}
	names, err := scalars[string](ctx, l.session, "SELECT current_setting('synchronous_standby_names')")
	if err != nil {
		return result{}, err
	}
	if strings.TrimSpace(names[0]) == "" {
		return healthy("No commit waits for a standby: synchronous_standby_names is empty.")
	}
	if !l.server.sees() {
		return result{unseen: []string{"which standbys confirm commits (synchronous_standby_names is set): it needs pg_monitor"}, blind: true}, nil
	}
	standbys, err := list[syncStandby](ctx, l.session, syncReplicationSQL)
	if err != nil {
		return result{}, err
	}
	lost := per(l.waits.Events[standbyWait], seconds(l.waits.Seconds))
	stands := l.view.stuckIn(Session.committed)
	need, have := needed(names[0]), 0
	for _, s := range standbys {
		if s.Sync == "sync" || s.Sync == "quorum" {
			have++
		}
	}
	if have >= need && len(stands) == 0 {
		return healthy("Synchronous standbys confirm commits: %d connected, %d needed, %s sessions wait for them on average.", have, need, figure(lost))
	}
	severity := Critical
	if have < need && lost < noticeable && len(stands) == 0 {
		severity = Warning // nobody has committed anything
	}
	f := l.finding(SyncReplicationStalled, severity, lost, l.seenBy(Session.committed))
	if have < need {
		f.Summary = fmt.Sprintf("Every commit hangs until a synchronous standby returns: %d must confirm, %d of them connected, and %s.", need, have, sessionsThat(lost, "waits", "wait"))
	} else {
		f.Summary = fmt.Sprintf("Synchronous standbys are connected, but do not confirm commits: %s, the longest for %s or longer.", sessionsThat(lost, "waits", "wait"), span(stands[0].lasted))
	}
	f.add("SHOW synchronous_standby_names", "synchronous_standby_names is %s", clip(names[0], 200))
	for _, s := range standbys[:min(len(standbys), maxFacts)] {
		f.add(seeSyncReplication, "standby %s at %s: %s, %s, %s bytes not flushed there yet, last reply %s ago",
			orUnnamed(s.Application), orNoAddress(s.Client), s.State, s.Sync, figure(float64(s.Behind)), span(seconds(s.Silent)))
	}
	if len(standbys) == 0 {
		f.add(seeSyncReplication, "no standby is connected")
	}
	for _, s := range stands[:min(len(stands), maxFacts)] {
		f.add(`SELECT pid, query_start, query FROM pg_stat_activity WHERE wait_event = 'SyncRep'`, "pid %d has waited for %s or longer: %s", s.PID, span(s.lasted), shape(s.Query))
		f.names(WaitsForIt, s.Query)
	}
	f.add("", "cancelling a waiting commit does not undo it: it has happened here, and may be missing on the standby")
	f.Now = "Start the standby, or the network between. If commits may go on without it: ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf() lets all that wait go on, " +
		"until that setting is there again with one copy less."
	f.ForGood = "Name more standbys than must confirm, such as ANY 1 (a, b), so that one may be away; and raise an alert when pg_stat_replication has fewer than these."
	return found(f)
}

func orNoAddress(client string) string {
	if client == "" {
		return "a socket"
	}
	return client
}
