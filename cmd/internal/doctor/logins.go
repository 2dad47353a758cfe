package doctor

import (
	"context"
	"fmt"
	"slices"
)

// loginsSQL reads the locks first: a session that has logged in since then is no login that hangs.
const loginsSQL = `
WITH k AS MATERIALIZED (
  SELECT l.pid, l.database, l.locktype, clock_timestamp() - l.waitstart AS waited FROM pg_lock_status() l WHERE NOT l.granted AND l.pid IS NOT NULL
)
SELECT k.pid, coalesce(k.database, 0), k.locktype, coalesce(extract(epoch FROM k.waited), 0)::float8
FROM k WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(k.pid)) ORDER BY 4 DESC LIMIT 100`

// logins returns the sessions that stand still because their logins wait for a lock, such as one on a catalog. Before PostgreSQL 18 they are in no list of sessions
// until they are in, and so in no sample.
func (l *inspection) logins(ctx context.Context) ([]stuck, error) {
	type row struct {
		PID      int32
		Database uint32
		Lock     string
		Waited   float64
	}
	rows, err := list[row](ctx, l.session, loginsSQL)
	if err != nil {
		return nil, fmt.Errorf("which logins wait for a lock: %w", err)
	}
	sampled := map[uint32]bool{} // a role that sees no other sessions reads those that wait from the locks
	l.view.each(func(s Session, _ float64) { sampled[s.PID] = true })
	var all []stuck
	for _, r := range rows {
		if sampled[uint32(r.PID)] || !l.here(r.Database) || seconds(r.Waited) < standStill {
			continue
		}
		all = append(all, stuck{lasted: seconds(r.Waited), Session: Session{
			PID: uint32(r.PID), Database: r.Database, Kind: "client backend", State: "starting", WaitType: "Lock", Wait: r.Lock, Class: classify("starting", "Lock", r.Lock),
		}})
	}
	return all, nil
}

// inExtensions returns the client sessions that stand still in a wait of an extension. Background workers of extensions always do.
func (v view) inExtensions() []stuck {
	return v.stuckIn(func(s Session) bool {
		return s.WaitType == "Extension" && s.Kind == "client backend" && slices.Contains([]string{"active", "fastpath function call", "disabled"}, s.State)
	})
}

// doing returns what a session runs, as far as the server tells it.
func (s Session) doing() string {
	switch {
	case s.Query != "":
		return shape(s.Query)
	case s.State == "disabled":
		return untold
	}
	return aLogin
}
