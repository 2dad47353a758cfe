package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Check returns an error that lists everything that the given database lacks for the scenarios to run, before anything is started.
func Check(ctx context.Context, url string, configs ...Config) error {
	conn, err := connect(ctx, url, watcherName, nil)
	if err != nil {
		return fmt.Errorf("lab: connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var lacks []string
	installs := false
	for _, c := range configs {
		s, ok := scenarios[c.Scenario]
		if !ok {
			return unknownScenario(c.Scenario)
		}
		n := s.needs(&c)
		left, err := connectionsLeft(ctx, conn)
		if err != nil {
			return err
		}
		if n.connections > left {
			lacks = append(lacks, fmt.Sprintf("%s needs %d connections, and the server has %d left of max_connections: use fewer clients", c.Scenario, n.connections, left))
		}
		installs = installs || n.weir
	}
	statements, err := forAdministrator(ctx, conn, installs)
	if err != nil {
		return err
	}
	if len(statements) > 0 {
		lacks = append(lacks, fmt.Sprintf("the user may not do all that the lab does: have an administrator run `%s`", strings.Join(statements, "; ")))
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("lab: nothing was measured, because this database is not suitable: %s; or measure on a private server, without --database", strings.Join(lacks, "; "))
}

// connectionsLeft returns the number of further clients that the server accepts.
func connectionsLeft(ctx context.Context, conn *pgx.Conn) (left int, err error) {
	err = conn.QueryRow(ctx, `SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int -
		(SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend')`).Scan(&left)
	if err != nil {
		return 0, fmt.Errorf("lab: read the number of connections: %w", err)
	}
	return left, nil
}

// forAdministrator returns the statements that someone must run first who may do more than the user.
func forAdministrator(ctx context.Context, conn *pgx.Conn, installs bool) (statements []string, err error) {
	privileges, roles := []string{"CREATE"}, []string{}
	if installs {
		privileges = append(privileges, "TEMPORARY")
		if roles, err = rolesMissing(ctx, conn); err != nil {
			return nil, err
		}
	}
	rows, _ := conn.Query(ctx, `
		SELECT format('GRANT %s ON DATABASE %I TO %I', p, current_database(), current_user) FROM unnest($1::text[]) p
		WHERE NOT has_database_privilege(current_database(), p)
		UNION ALL
		SELECT format('CREATE ROLE %I NOLOGIN', r) FROM unnest($2::text[]) r
		WHERE NOT (SELECT p.rolsuper OR p.rolcreaterole FROM pg_roles p WHERE p.rolname = current_user)`, privileges, roles) // rows report the error
	if statements, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, fmt.Errorf("lab: read the user's privileges: %w", err)
	}
	return statements, nil
}

// rolesMissing lists Weir's roles that the server does not have.
func rolesMissing(ctx context.Context, conn *pgx.Conn) (roles []string, err error) {
	rows, _ := conn.Query(ctx, `SELECT r FROM unnest(ARRAY['weir_enqueue', 'weir_work', 'weir_operate', 'weir_publish', 'weir_subscribe', 'weir_hub']) WITH ORDINALITY u(r, place)
		WHERE NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = r) ORDER BY place`) // rows report the error
	if roles, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, fmt.Errorf("lab: read the roles: %w", err)
	}
	return roles, nil
}
