package doctor

import (
	"context"
	"fmt"
)

// extra are further counters of the whole server.
type extra struct {
	Deadlocks, TempFiles, TempBytes int64
	WAL                             float64 // bytes written or, on a standby, replayed
	SubtransReads                   int64   // pages of the log of subtransactions looked up
	Requested, Timed                int64   // checkpoints
}

const extraSQL = `
SELECT coalesce(sum(d.deadlocks), 0)::bigint, coalesce(sum(d.temp_files), 0)::bigint, coalesce(sum(d.temp_bytes), 0)::bigint,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, '0/0'), 0)::float8,
       coalesce((SELECT sum(s.blks_hit + s.blks_read) FROM pg_stat_slru s WHERE lower(s.name) LIKE 'subtrans%%'), 0)::bigint,
       %s
FROM pg_stat_database d`

// checkpointerView is the version from which on checkpoints have a view of their own.
const checkpointerView = 170000

func readExtra(ctx context.Context, s *session, server Server) (extra, error) {
	checkpoints := "(SELECT b.checkpoints_req FROM pg_stat_bgwriter b), (SELECT b.checkpoints_timed FROM pg_stat_bgwriter b)"
	if server.VersionNum >= checkpointerView {
		checkpoints = "(SELECT c.num_requested FROM pg_stat_checkpointer c), (SELECT c.num_timed FROM pg_stat_checkpointer c)"
	}
	e, err := one[extra](ctx, s, fmt.Sprintf(extraSQL, checkpoints))
	if err != nil {
		return e, fmt.Errorf("counters of deadlocks, temporary files and checkpoints: %w", err)
	}
	return e, nil
}

// grown returns the growth of a counter. A counter that was reset in between counts from zero.
func (l *inspection) grown(get func(*counters) int64) int64 {
	n := get(l.last) - get(l.first)
	if n < 0 {
		n = get(l.last)
	}
	return n
}

// wal returns the bytes of WAL per second.
func (l *inspection) wal() float64 { return max(0, per(l.last.WAL-l.first.WAL, l.span())) }

// bytes formats a size.
func bytes(n float64) string {
	for _, unit := range []string{"bytes", "kB", "MB", "GB"} {
		if n < 1024 {
			return figure(float64(int64(n))) + " " + unit
		}
		n /= 1024
	}
	return figure(n) + " TB"
}
