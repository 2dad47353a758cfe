// Package adverse knows which settings of a server, a database or a role are bad for Weir, and what to do about each.
//
// It reports only what Weir cannot correct itself. Weir's own sessions have the settings that they need, whatever the defaults. The
// sessions in which an application enqueues and publishes have the settings that the application gives them.
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

// Setting is a setting that is bad for Weir.
type Setting struct {
	Name, Value string
	Harm        string // its consequences
	Do          string // what to do about it
}

// Slows reports whether the setting slows Weir's own statements.
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

// Read returns the settings that are bad for Weir in new sessions of this role. It ignores what the session itself has set.
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

// Judge returns the settings in values that are bad for Weir, by name.
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
			return "nothing can be enqueued, worked or published", "set it to off for this role and database as soon as it is safe to write"
		}
	case "fsync", "full_page_writes":
		if off {
			return "a crash of the machine may corrupt the database, and jobs with it", "set it to on, unless you can afford to lose all data"
		}
	case "synchronous_commit":
		if off {
			return "jobs and messages that were logged just before a crash of the server may be lost", "set it to on if that matters; results are flushed in any case"
		}
	case "jit_above_cost":
		if cost, err := strconv.ParseFloat(value, 64); err == nil && cost >= 0 && cost < 1000 && values["jit"] != "off" {
			return "each statement is compiled before it runs, including those that enqueue and publish, which takes milliseconds", "raise it (the default is 100000), or set jit = off"
		}
	case "commit_delay":
		if value != "0" {
			return "each commit waits for others to join it, " + value + " µs", "set it to 0, unless you have measured that it helps"
		}
	case "log_statement":
		if value == "all" {
			return "the polls of each idle worker and hub are logged too, five times a second", "set it to ddl or mod, or for other roles only"
		}
	case "log_min_duration_statement":
		if value == "0" {
			return "the polls of each idle worker and hub are logged too, five times a second", "set it to a longer time: Weir's polls take up to 200 ms"
		}
	case "server_encoding":
		if value == "SQL_ASCII" {
			return "texts are stored in whatever encoding clients send: some drivers return bytes instead of texts, and JSON with \\u escapes beyond ASCII is refused", "use a database with the encoding UTF8: createdb -T template0 -E UTF8"
		}
		if value != "UTF8" {
			return "jobs and messages with characters that this encoding lacks are refused", "use a database with the encoding UTF8: createdb -T template0 -E UTF8"
		}
	case "client_encoding":
		if encoding := strings.ToUpper(value); encoding != "UTF8" && encoding != "UNICODE" && encoding != "SQL_ASCII" {
			return "the Go driver sends UTF-8 whatever this setting says, so characters beyond ASCII are stored as different ones", "set it to UTF8 for this role"
		}
	default:
		if strings.HasPrefix(name, "enable_") && off && planned[name] {
			return "Weir's query plans need it", "set it to on, at least for this role"
		}
	}
	return "", ""
}

// planned are the planner methods without which Weir's functions do not run as intended.
var planned = map[string]bool{
	"enable_indexscan": true, "enable_nestloop": true, "enable_partition_pruning": true,
}
