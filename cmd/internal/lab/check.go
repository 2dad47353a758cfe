package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Check tells what the database given lacks for scenarios that are to be run there, all of it at once, before anything is started.
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
			lacks = append(lacks, fmt.Sprintf("%s needs %d connections and the server has %d left of max_connections: ask for fewer clients", c.Scenario, n.connections, left))
		}
		installs = installs || n.weir
	}
	if installs {
		roles, err := rolesMissing(ctx, conn)
		if err != nil {
			return err
		}
		if len(roles) > 0 {
			lacks = append(lacks, fmt.Sprintf("the cures that use Weir need the roles %s, which the user may not create: let an administrator create them, or make the user a superuser for the time of the lab",
				enumerated(roles)))
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("lab: nothing was measured, for this database does not do: %s; or measure on a private server, without --database", strings.Join(lacks, "; "))
}

// connectionsLeft is how many more clients the server takes.
func connectionsLeft(ctx context.Context, conn *pgx.Conn) (left int, err error) {
	err = conn.QueryRow(ctx, `SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int -
		(SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend')`).Scan(&left)
	if err != nil {
		return 0, fmt.Errorf("lab: ask the server for its connections: %w", err)
	}
	return left, nil
}

// rolesMissing lists the roles of Weir's that are missing, where the user may not create them.
func rolesMissing(ctx context.Context, conn *pgx.Conn) (roles []string, err error) {
	rows, _ := conn.Query(ctx, `SELECT r FROM unnest(ARRAY['weir_enqueue', 'weir_work', 'weir_operate', 'weir_publish', 'weir_subscribe', 'weir_hub']) r
		WHERE NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = r)
		  AND NOT (SELECT p.rolsuper OR p.rolcreaterole FROM pg_roles p WHERE p.rolname = current_user)`) // rows report the error
	if roles, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, fmt.Errorf("lab: ask the server for its roles: %w", err)
	}
	return roles, nil
}

func enumerated(names []string) string {
	slices.Sort(names)
	text := ""
	for i, name := range names {
		switch {
		case i == 0:
		case i == len(names)-1:
			text += " and "
		default:
			text += ", "
		}
		text += name
	}
	return text
}
