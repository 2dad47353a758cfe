package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	connectingRounds = 12
	connectingPause  = 50 * time.Millisecond
	connectingFor    = connectingRounds * connectingPause
)

// connectingSQL lists the sessions that are younger than so many seconds.
const connectingSQL = `
SELECT a.pid, (extract(epoch FROM a.backend_start) * 1000000)::bigint, ` + whose + `
FROM pg_stat_get_activity(NULL) a LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.backend_type = 'client backend' AND a.backend_start > clock_timestamp() - make_interval(secs => $1) AND a.application_name IS DISTINCT FROM '` + ApplicationName + `' LIMIT 2000`

// connecting looks a few times who has just connected, and counts each new session that it meets once, by role, application and client.
func (l *inspection) connecting(ctx context.Context) (map[string]int, error) {
	type row struct {
		PID     int32
		Started int64
		Whose   string
	}
	met, counts := map[[2]int64]bool{}, map[string]int{}
	for range connectingRounds {
		rows, err := list[row](ctx, l.session, connectingSQL, connectingFor.Seconds())
		if err != nil {
			return nil, fmt.Errorf("who connects: %w", err)
		}
		for _, r := range rows {
			if key := [2]int64{int64(r.PID), r.Started}; !met[key] {
				met[key] = true
				counts[r.Whose]++
			}
		}
		if err := l.session.pause(ctx, connectingPause); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// addConnecting says who connects, as far as that is seen.
func (l *inspection) addConnecting(ctx context.Context, f *Finding) error {
	counts, err := l.connecting(ctx)
	if err != nil {
		return err
	}
	if n := total(counts); n > 0 {
		f.add(seeYoung, "who connects, of %s met: %s", many(n, "new session"), ranked(counts, n, func(s string) string { return s }))
		return nil
	}
	f.add("", "who connects was not seen: in %d looks none of the new sessions was there any more; with log_connections the server's log names them", connectingRounds)
	return nil
}
