package doctor

import (
	"context"
	"fmt"
)

// whoSQL reads the role, application and client of a session. A process of the server has no role, and of another role's session a role without pg_monitor does not
// see the client.
const whoSQL = `
SELECT CASE WHEN a.usesysid IS NULL THEN coalesce(a.backend_type, '?') ELSE ` + whose + ` END
FROM pg_stat_get_activity($1) a LEFT JOIN pg_roles r ON r.oid = a.usesysid`

// whose is the role, application and client of a session, a, whose role is r.
const whose = `concat_ws(', ', coalesce(r.rolname, '?'),
       CASE a.application_name WHEN '' THEN 'no application name' ELSE a.application_name END,
       CASE WHEN a.client_port IS NOT NULL THEN coalesce(host(a.client_addr), 'a socket') END)`

// who names a session for people: its pid, and whose it is.
func (l *inspection) who(ctx context.Context, pid uint32) (string, error) {
	names, err := scalars[string](ctx, l.session, whoSQL, int32(pid))
	if err != nil {
		return "", fmt.Errorf("whose session pid %d is: %w", pid, err)
	}
	if len(names) == 0 {
		return fmt.Sprintf("pid %d (gone by now)", pid), nil
	}
	return fmt.Sprintf("pid %d (%s)", pid, names[0]), nil
}
