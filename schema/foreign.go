package schema

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

var (
	createsRelation = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:UNLOGGED )?(?:TABLE|SEQUENCE|TYPE|VIEW) (?:IF NOT EXISTS )?weir\.(\w+)`)
	createsFunction = regexp.MustCompile(`CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) weir\.(\w+)`)
)

// isOurs is a condition for a row p of pg_proc: this build has a function of that name, or it has the settings of those that another build has, or had.
const isOurs = `(p.proname = ANY (ARRAY['%s']) OR coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp', 'jit=off'], false))`

// ourFunctions returns the condition for a row p of pg_proc to be one of Weir's functions.
func ourFunctions() (string, error) {
	text, err := functions()
	return fmt.Sprintf(isOurs, strings.Join(named(createsFunction, text), "', '")), err
}

// named lists the names of what a text creates.
func named(creates *regexp.Regexp, text string) (names []string) {
	for _, m := range creates.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// foreign lists what the schema has beside the relations and functions of Weir; if nothing is installed, beside its empty list of migrations.
func foreign(ctx context.Context, tx pgx.Tx, all []Migration, installed bool) ([]string, error) {
	relations, ours := []string{"migration"}, `false`
	if installed {
		text, err := functions()
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			text += m.up
		}
		relations = append(relations, named(createsRelation, text)...)
		if ours, err = ourFunctions(); err != nil {
			return nil, err
		}
	}
	// Everything that was created in a schema depends on it, but for parts of something else, such as indexes. Weir's partitions are parts of its tables.
	rows, _ := tx.Query(ctx, `
		SELECT pg_catalog.pg_describe_object(d.classid, d.objid, 0)
		FROM pg_catalog.pg_depend d
		LEFT JOIN pg_catalog.pg_class c ON d.classid = 'pg_catalog.pg_class'::regclass AND c.oid = d.objid
		LEFT JOIN pg_catalog.pg_proc p ON d.classid = 'pg_catalog.pg_proc'::regclass AND p.oid = d.objid
		LEFT JOIN pg_catalog.pg_type t ON d.classid = 'pg_catalog.pg_type'::regclass AND t.oid = d.objid
		WHERE d.refclassid = 'pg_catalog.pg_namespace'::regclass AND d.refobjid = to_regnamespace('weir') AND d.deptype = 'n'
		  AND (coalesce(c.relname, t.typname) = ANY ($1::text[])) IS NOT TRUE AND c.relispartition IS NOT TRUE AND NOT (p.oid IS NOT NULL AND `+ours+`)
		ORDER BY 1 LIMIT 6`, unprepared, relations) // rows report the error
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list what the schema weir contains: %w", err)
	}
	if len(names) > 5 {
		names[5] = "and others"
	}
	return names, nil
}
