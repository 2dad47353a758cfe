package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	connectionsMany = 0.9 // of those that ordinary roles may use
	idleMany        = "10 minutes"
)

const seeConnections = `SELECT usename, application_name, state, count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' GROUP BY 1, 2, 3 ORDER BY 4 DESC`

const connectionsSQL = `
SELECT current_setting('max_connections')::bigint, current_setting('superuser_reserved_connections')::bigint + coalesce(current_setting('reserved_connections', true)::bigint, 0),
       count(*), count(*) FILTER (WHERE a.state = 'idle'), count(*) FILTER (WHERE a.state = 'idle' AND a.state_change < clock_timestamp() - interval '` + idleMany + `'),
       count(*) FILTER (WHERE a.state LIKE 'idle in transaction%'), count(*) FILTER (WHERE a.query = '` + hiddenQuery + `')
FROM pg_stat_get_activity(NULL) a WHERE a.backend_type = 'client backend' OR a.query = '` + hiddenQuery + `' AND a.usesysid IS NOT NULL AND a.datid IS NOT NULL`

const connectionsOfSQL = `
SELECT coalesce(r.rolname, '?') || ', ' || coalesce(nullif(a.application_name, ''), 'no application name'), count(*)
FROM pg_stat_get_activity(NULL) a LEFT JOIN pg_roles r ON r.oid = a.usesysid WHERE a.usesysid IS NOT NULL AND a.datid IS NOT NULL GROUP BY 1 ORDER BY 2 DESC LIMIT 3`

// checkConnections detects a server that has few connections left, or none.
func checkConnections(ctx context.Context, l *inspection) (result, error) {
	c, err := one[connectionCount](ctx, l.session, connectionsSQL)
	if err != nil {
		return result{}, err
	}
	open := max(c.Most-c.Reserved, 1)
	if float64(c.Used) < connectionsMany*float64(open) {
		return healthy("%d of %d connections are in use.", c.Used, open)
	}
	severity := Warning
	if c.Used >= open {
		severity = Critical
	}
	f := l.finding(ConnectionsExhausted, severity, 0, len(l.view.samples))
	f.Summary = fmt.Sprintf("%d of the %d connections that ordinary roles may use are taken; once they are, every new client is refused.", c.Used, open)
	f.add("SHOW max_connections", "max_connections is %d, of which %d are reserved", c.Most, c.Reserved)
	f.add(seeConnections, "%d are idle, %d of them for %s or longer; %d are idle in a transaction", c.Idle, c.Long, idleMany, c.Transaction)
	if c.Hidden > 0 {
		f.add(seeConnections, "what %d of them do is hidden from this role: it needs pg_monitor", c.Hidden)
	}
	type of struct {
		Who string
		N   int64
	}
	most, err := list[of](ctx, l.session, connectionsOfSQL)
	if err != nil {
		return result{}, err
	}
	for _, m := range most {
		f.add(seeConnections, "%s: %s", m.Who, many(m.N, "connection"))
	}
	f.Now = c.now()
	f.ForGood = goodConnections
	return found(f)
}

// connectionCount counts the sessions of clients, and what they do.
type connectionCount struct{ Most, Reserved, Used, Idle, Long, Transaction, Hidden int64 }

const endThose = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state %s AND state_change < now() - interval '%s';"

// now says what frees connections, which depends on what holds them.
func (c connectionCount) now() string {
	working := c.Used - c.Idle - c.Transaction - c.Hidden
	switch {
	case c.Hidden > c.Used/2:
		return "Look who has them, and what they do, as a role with pg_monitor."
	case c.Long > 0:
		return "Close what nobody uses: " + fmt.Sprintf(endThose, "= 'idle'", idleMany)
	case c.Transaction > 0 && c.Transaction >= c.Idle:
		return "End transactions that do nothing, if their clients have forgotten them: " + fmt.Sprintf(endThose, "LIKE 'idle in transaction%'", "1 minute")
	case c.Idle > working:
		return "Make the pools of your processes smaller, one after the other: their connections are idle, but none for long, so ending sessions would only have them connect again."
	}
	return "Let fewer processes run, or have them wait for their turn: nearly all of these connections are at work. If they wait, the other findings name for what."
}

const goodConnections = "Let a pooler share a few connections among many clients, and bound the pool of each process: processes times pool size must stay below max_connections."

const (
	tooMany    = "53300" // too_many_connections
	fullRounds = 5
	fullPause  = 300 * time.Millisecond
)

// Full returns the report on a server that refuses the doctor because it is full; false if the error is another one. It tries a few more times, because
// a server may be full for a moment.
func Full(ctx context.Context, url string, err error) (Report, bool) {
	refused, ok := tooManyClients(err)
	if !ok {
		return Report{}, false
	}
	config, err := sessionConfig(url)
	if err != nil {
		return Report{}, false
	}
	begin := time.Now()
	attempts, refusals := 1, 1 // the caller's
	for range fullRounds - 1 {
		select {
		case <-ctx.Done():
			return Report{}, false
		case <-time.After(fullPause):
		}
		attempts++
		conn, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			_ = conn.Close(ctx)
			continue
		}
		again, full := tooManyClients(err)
		if !full {
			break
		}
		refused, refusals = again, refusals+1
		if time.Since(begin) > connectTimeout {
			break
		}
	}
	took := time.Since(begin)
	at := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	f := Finding{Code: ConnectionsExhausted, Severity: Critical, Seen: 1, Samples: 1, Statements: []Statement{}}
	f.Summary = fmt.Sprintf("The server at %s refuses new connections because there are too many: %s.", at, refused.Message)
	f.add("", "it has refused the doctor in %d of %d attempts within %s", refusals, attempts, span(took))
	f.add(seeConnections, "run as a superuser, for whom some connections are reserved (superuser_reserved_connections), this shows who has them")
	f.Now = "As a superuser, for whom some connections are reserved: SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'idle' " +
		"AND state_change < now() - interval '" + idleMany + "'; then run weir doctor again."
	f.ForGood = goodConnections + " From PostgreSQL 16 on, reserved_connections and the role pg_use_reserved_connections keep some for those who watch the server."
	return Report{
		Version: ReportVersion, At: time.Now(), Server: Server{Database: config.Database, User: config.User, Rights: "refused"}, Findings: []Finding{f}, Well: []Well{},
		Unseen: []string{"everything else: the server lets nobody in"}, Incomplete: true, Waits: Waits{Classes: map[Class]float64{}, Top: []EventTotal{}},
	}, true
}

// tooManyClients reports whether a server has refused a connection because it is full. The limit of a role or of a database is no trouble of the server's: the doctor alone, which has
// several sessions, may use it up.
func tooManyClients(err error) (*pgconn.PgError, bool) {
	var refused *pgconn.PgError
	ok := errors.As(err, &refused) && refused.Code == tooMany && !IsLimitOfItsOwn(refused)
	return refused, ok
}

// IsLimitOfItsOwn reports whether a connection was refused because its role, or its database, has a limit of its own, and no connection left. The functions of PostgreSQL that refuse it
// tell so, because the message may be in any language.
func IsLimitOfItsOwn(refused *pgconn.PgError) bool {
	return refused.Code == tooMany && (refused.Routine == "InitializeSessionUserId" || refused.Routine == "CheckMyDatabase")
}
