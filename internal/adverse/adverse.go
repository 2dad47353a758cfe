// Package adverse knows which settings of a server, a database or a role work against Weir, and what to do about each.
//
// It names what Weir cannot put right by itself. Its own sessions have what they need, whatever the defaults; those of the application, which
// enqueue and publish, have what the application gives them.
package adverse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Setting is one that works against Weir.
type Setting struct {
	Name, Value string
	Harm        string // what comes of it
	Do          string // what to do about it
}

// Slows tells whether it makes Weir's own statements slow.
func (s Setting) Slows() bool {
	switch s.Name {
	case "jit_above_cost", "commit_delay":
		return true
	}
	return strings.HasPrefix(s.Name, "enable_")
}

func (s Setting) String() string {
	return fmt.Sprintf("%s = %s: %s: %s", s.Name, s.Value, s.Harm, s.Do)
}

// Querier is a connection or a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Read returns what works against Weir in new sessions of this role. What the session itself has been set to does not count.
func Read(ctx context.Context, q Querier) ([]Setting, error) {
	rows, err := q.Query(ctx, `SELECT s.name::text, s.reset_val::text FROM pg_catalog.pg_settings s WHERE s.reset_val IS NOT NULL`, pgx.QueryExecModeExec)
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	values := map[string]string{}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		values[name] = value
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	return Judge(values), nil
}

// Judge returns those settings that work against Weir, by name.
func Judge(values map[string]string) []Setting {
	var found []Setting
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if harm, do := judge(name, values[name], values); harm != "" {
			found = append(found, Setting{name, values[name], harm, do})
		}
	}
	return found
}

func judge(name, value string, values map[string]string) (harm, do string) {
	off := value == "off"
	switch name {
	case "default_transaction_read_only":
		if value == "on" {
			return "nothing can be enqueued, worked or published", "set it off for this role and database as soon as it is safe to write"
		}
	case "fsync", "full_page_writes":
		if off {
			return "a crash of the machine may corrupt the database, and jobs with it", "set it on, unless all of this may be lost"
		}
	case "synchronous_commit":
		if off {
			return "jobs and messages that were logged a moment before a crash of the server may be lost", "set it on where that matters; results are flushed all the same"
		}
	case "jit_above_cost":
		if cost, err := strconv.ParseFloat(value, 64); err == nil && cost >= 0 && cost < 1000 && values["jit"] != "off" {
			return "each statement is compiled before it runs, those that enqueue and publish too, which takes it milliseconds", "raise it (the default is 100000), or set jit = off"
		}
	case "commit_delay":
		if value != "0" {
			return "each commit waits for company, " + value + " µs", "set it to 0 unless it was measured to help"
		}
	case "log_statement":
		if value == "all" {
			return "an idle worker's or hub's looks for work are logged too, five times a second each", "set it to ddl or mod, or for other roles only"
		}
	case "log_min_duration_statement":
		if value == "0" {
			return "an idle worker's or hub's looks for work are logged too, five times a second each", "set it to what is long: Weir's looks take up to 200 ms"
		}
	case "client_encoding":
		if encoding := strings.ToUpper(value); encoding != "UTF8" && encoding != "UNICODE" && encoding != "SQL_ASCII" {
			return "Go's driver sends UTF-8 whatever it says, so letters beyond ASCII are stored as others", "set it to UTF8 for this role"
		}
	default:
		if strings.HasPrefix(name, "enable_") && off && planned[name] {
			return "Weir's plans rely on it", "set it on, at least for this role"
		}
	}
	return "", ""
}

// planned are the ways to run a plan without which Weir's functions can't run as they are meant to.
var planned = map[string]bool{
	"enable_indexscan": true, "enable_nestloop": true, "enable_partition_pruning": true,
}
