package doctor

import (
	"context"
	"fmt"
	"time"
)

// pin is somebody who keeps VACUUM from removing rows that died after a certain transaction.
type pin struct {
	Kind     string // session, prepared, slot, standby
	Name     string // pid, gid, slot or standby
	Database string
	User     string
	App      string
	State    string
	By       string // xid or xmin
	Age      int64  // transactions since
	Since    *time.Time
	Query    string
}

func (p pin) same(q pin) bool {
	return p.Kind == q.Kind && p.Name == q.Name && (p.Since == nil || q.Since == nil || p.Since.Equal(*q.Since))
}

func (p pin) held(now time.Time) time.Duration {
	if p.Since == nil {
		return 0
	}
	return now.Sub(*p.Since)
}

func (p pin) String() string {
	switch p.Kind {
	case "prepared":
		return fmt.Sprintf("the prepared transaction %q of %s in database %s", p.Name, p.User, p.Database)
	case "slot":
		return fmt.Sprintf("the replication slot %s (%s)", p.Name, p.State)
	case "standby":
		return fmt.Sprintf("the standby %s at %s, through hot_standby_feedback", orUnnamed(p.App), p.Database)
	}
	what := "holds an old snapshot"
	if p.By == "xid" {
		what = "has written"
	}
	return fmt.Sprintf("pid %s of %s (%s, database %s), which is %s and %s", p.Name, p.User, orUnnamed(p.App), p.Database, p.State, what)
}

// VACUUM's own sessions hold nothing back. A snapshot holds back its own database; but who writes holds all back,
// because every snapshot taken meanwhile, anywhere, counts him as running.
const pinsSQL = `
SELECT 'session', a.pid::text, coalesce(d.datname::text, ''), coalesce(r.rolname::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
       CASE WHEN a.backend_xid IS NOT NULL AND age(a.backend_xid) >= coalesce(age(a.backend_xmin), 0) THEN 'xid' ELSE 'xmin' END,
       greatest(age(a.backend_xid), age(a.backend_xmin))::bigint, a.xact_start, coalesce(left(a.query, 200), '')
FROM pg_stat_get_activity(NULL) a LEFT JOIN pg_database d ON d.oid = a.datid LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL) AND a.backend_type NOT IN ('walsender', 'autovacuum worker')
  AND NOT a.query ~* '^\s*vacuum\M' AND a.application_name IS DISTINCT FROM '` + ApplicationName + `'
  AND (a.backend_xid IS NOT NULL OR a.datid = (SELECT c.oid FROM pg_database c WHERE c.datname = current_database()))
UNION ALL
SELECT 'prepared', p.gid, p.database::text, p.owner::text, '', '', 'xid', age(p.transaction)::bigint, p.prepared, '' FROM pg_prepared_xacts p
UNION ALL
SELECT 'slot', s.slot_name::text, coalesce(s.database::text, ''), '', '', s.slot_type || CASE WHEN s.active THEN ', active' ELSE ', not active' END, 'xmin', age(s.xmin)::bigint, NULL, ''
FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
UNION ALL
SELECT 'standby', p.pid::text, coalesce(host(p.client_addr), 'a socket'), coalesce(p.usename::text, ''), p.application_name, p.state, 'xmin', age(p.backend_xmin)::bigint, NULL, ''
FROM pg_stat_replication p
WHERE p.backend_xmin IS NOT NULL AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = p.pid AND s.xmin IS NOT NULL)
ORDER BY 8 DESC LIMIT 50`

func readPins(ctx context.Context, s *session) ([]pin, error) { return list[pin](ctx, s, pinsSQL) }
