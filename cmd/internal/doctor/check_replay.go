package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	replayRounds   = 9
	replayPause    = 250 * time.Millisecond
	replayPatience = 5 * time.Minute // for which a standby may wait for its queries without a warning
	replayFar      = 1 << 30         // bytes received and not replayed
)

const seeReplay = `SELECT pid, wait_event_type, wait_event, pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), pg_get_wal_replay_pause_state() FROM pg_stat_activity WHERE backend_type = 'startup'`

const replaySQL = `
SELECT a.pid, coalesce(a.wait_event_type, ''), coalesce(a.wait_event, ''), pg_last_wal_replay_lsn()::text,
       coalesce(greatest(pg_wal_lsn_diff(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()), 0), 0)::bigint, pg_get_wal_replay_pause_state(),
       (SELECT p.setting::bigint FROM pg_settings p WHERE p.name = 'max_standby_streaming_delay')
FROM pg_stat_get_activity(NULL) a WHERE a.backend_type = 'startup'`

// replay is what the startup process of a standby does.
type replay struct {
	PID            int32
	WaitType, Wait string
	At             string // LSN up to which it has replayed
	Behind         int64  // bytes received and not replayed
	Pause          string
	Patience       int64 // ms, for which it waits for queries; -1: without end
}

// conflicts reports whether it waits for a session of the standby.
func (r replay) conflicts() bool {
	return r.WaitType == "Lock" || r.WaitType == "BufferPin" || strings.HasPrefix(r.Wait, "RecoveryConflict")
}

// inTheWaySQL lists the sessions with the oldest snapshots, whose rows replay may not remove.
const inTheWaySQL = `
SELECT 0, a.pid, coalesce(a.backend_type, ''), coalesce(a.application_name, ''), coalesce(a.state, '?'), coalesce(a.wait_event_type || ':' || a.wait_event, ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8, coalesce(extract(epoch FROM clock_timestamp() - a.state_change), 0)::float8, coalesce(left(a.query, $1), '')
FROM pg_stat_get_activity(NULL) a WHERE a.backend_xmin IS NOT NULL AND a.backend_type = 'client backend' AND a.application_name IS DISTINCT FROM '` + ApplicationName + `'
ORDER BY age(a.backend_xmin) DESC, a.xact_start LIMIT 5`

// checkReplay detects a standby that does not replay what it has received: because a query there is in the way, which the primary does not see, or because replay is paused.
func checkReplay(ctx context.Context, l *inspection) (result, error) {
	if !l.server.Standby {
		return result{}, nil
	}
	var first, r replay
	for i := range replayRounds {
		rows, err := list[replay](ctx, l.session, replaySQL)
		switch {
		case err != nil:
			return result{}, fmt.Errorf("what the startup process does: %w", err)
		case len(rows) == 0 && !l.server.sees():
			return result{unseen: []string{"whether replay stands still: it needs pg_monitor"}, blind: true}, nil
		case len(rows) == 0:
			return healthy("This server has just been promoted.")
		}
		if r = rows[0]; i == 0 {
			first = r
		}
		switch {
		case r.Pause != "not paused":
			return l.replayPaused(r)
		case !r.conflicts(), r.At != first.At:
			return healthy("Replay goes on: %s bytes received and not replayed yet.", figure(float64(r.Behind)))
		}
		if err := l.session.pause(ctx, replayPause); err != nil {
			return result{}, err
		}
	}
	severity := Info
	switch {
	case r.Behind >= replayFar:
		severity = Critical
	case r.Patience < 0 || time.Duration(r.Patience)*time.Millisecond >= replayPatience:
		severity = Warning
	}
	f := l.finding(ReplayStalled, severity, 0, len(l.view.samples))
	event := Event{r.WaitType, r.Wait}
	f.Summary = fmt.Sprintf("Replay of the primary's changes stands still, because it waits for a session here (%s): %s bytes are received and not replayed, and what is read here gets older.", event, figure(float64(r.Behind)))
	f.add(seeReplay, "the startup process, pid %d, has waited in %s for %s or longer", r.PID, event, span((replayRounds-1)*replayPause))
	f.holders[classify("active", r.WaitType, r.Wait)]++
	patience := "for at most " + span(time.Duration(r.Patience)*time.Millisecond) + ", and then cancels what is in the way"
	if r.Patience < 0 {
		patience = "without end"
	}
	f.add("SHOW max_standby_streaming_delay", "it waits %s", patience)
	var blockers []blocker
	var err error
	if r.WaitType == "Lock" {
		blockers, err = l.blockers(ctx, []uint32{uint32(r.PID)})
	} else {
		blockers, err = l.snapshotsInTheWay(ctx)
	}
	if err != nil {
		return result{}, err
	}
	f.Now = "Look which sessions have been in a transaction for long: " + oneLine(seeOnStandby)
	for i, b := range blockers {
		f.add(seeOnStandby, "%s", b.text())
		f.names(HoldsIt, b.Query)
		if i == 0 {
			f.Now = b.end()
		}
	}
	f.ForGood = "Decide what matters more here, long queries or fresh data. max_standby_streaming_delay bounds how long replay waits; hot_standby_feedback avoids most conflicts, at the price of dead rows on the primary; " +
		"reports may have a standby of their own."
	return found(f)
}

// replayPaused reports that somebody has paused replay, or that the server has, because a setting is smaller here than on the primary.
func (l *inspection) replayPaused(r replay) (result, error) {
	f := l.finding(ReplayStalled, Warning, 0, len(l.view.samples))
	if r.Behind >= replayFar {
		f.Severity = Critical
	}
	f.Summary = fmt.Sprintf("Replay of the primary's changes is paused: %s bytes are received and not replayed, and what is read here gets older.", figure(float64(r.Behind)))
	f.add(seeReplay, "pg_get_wal_replay_pause_state() is %s", r.Pause)
	f.Now = "If nobody needs the pause any more: SELECT pg_wal_replay_resume();"
	f.ForGood = "A server pauses by itself if max_connections, max_worker_processes, max_wal_senders, max_prepared_transactions or max_locks_per_transaction is smaller here than on its primary, and says so in its log: raise it here first, then there."
	return found(f)
}

func (l *inspection) snapshotsInTheWay(ctx context.Context) ([]blocker, error) {
	rows, err := list[blockerRow](ctx, l.session, inTheWaySQL, queryLength)
	if err != nil {
		return nil, fmt.Errorf("who is in the way of replay: %w", err)
	}
	var all []blocker
	for _, r := range rows {
		b := r.blocker()
		b.blocks = 1
		all = append(all, b)
	}
	return all, nil
}
