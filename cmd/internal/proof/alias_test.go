package proof

import (
	"regexp"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

var (
	declaration = regexp.MustCompile(`(?m)^\s*([a-z_]+)\s+(?:CONSTANT\s+)?[a-z][\w.]*(?:\[\])*\s*(?::=[^\n]*|DEFAULT[^\n]*)?;`)
	alias       = regexp.MustCompile(`(?i)(?:\b(?:FROM|JOIN|LATERAL|UPDATE|INTO|ONLY)\s+[a-z_.]+|\))\s+(?:WITH ORDINALITY\s+)?(?:AS\s+)?([a-z_]+)\b`)
	comparison  = regexp.MustCompile(`(?i)\b\w+\.(\w+)\s*(?:=|<>|<=?|>=?|IS (?:NOT )?DISTINCT FROM)\s*(?:(?:ANY|ALL) \()?(\w+)(?:[^\w.(]|$)`)
	comments    = regexp.MustCompile(`--[^\n]*`)
)

// TestNoVariableHidesAnAlias: where variables take precedence over columns, t.c means the field c of a variable t, even in a query with a table t that has a column c.
func TestNoVariableHidesAnAlias(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	rows, err := conn.Query(t.Context(), `SELECT proname::text, prosrc, coalesce(proargnames, '{}') FROM pg_proc
		WHERE pronamespace = 'weir'::regnamespace AND prosrc ~ '#variable_conflict use_variable' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	functions, variables := 0, 0
	for rows.Next() {
		var name, source string
		var names []string
		if err := rows.Scan(&name, &source, &names); err != nil {
			t.Fatal(err)
		}
		source = comments.ReplaceAllString(source, "")
		for _, m := range declaration.FindAllStringSubmatch(source, -1) {
			names = append(names, m[1])
		}
		for _, m := range alias.FindAllStringSubmatch(source, -1) {
			if slices.Contains(names, m[1]) {
				t.Errorf("%s: %s is a variable, and in %q an alias: give one of them another name", name, m[1], m[0])
			}
		}
		functions, variables = functions+1, variables+len(names)
	}
	if rows.Err() != nil || functions == 0 || variables <= functions {
		t.Errorf("%d variables of %d functions were checked: %v", variables, functions, rows.Err())
	}
}

// TestNoColumnIsComparedWithItself: where columns take precedence over variables, as in functions in SQL, t.c = c means t.c = t.c, also if c was meant to be a variable.
func TestNoColumnIsComparedWithItself(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	rows, err := conn.Query(t.Context(), `SELECT proname::text, prosrc FROM pg_proc WHERE pronamespace = 'weir'::regnamespace AND prosrc !~ '#variable_conflict use_variable' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	comparisons := 0
	for rows.Next() {
		var name, source string
		if err := rows.Scan(&name, &source); err != nil {
			t.Fatal(err)
		}
		for _, m := range comparison.FindAllStringSubmatch(comments.ReplaceAllString(source, ""), -1) {
			if comparisons++; m[1] == m[2] {
				t.Errorf("%s: in %q both are the column: qualify the variable, or give it another name", name, m[0])
			}
		}
	}
	if rows.Err() != nil || comparisons < 100 {
		t.Errorf("%d comparisons were checked: %v", comparisons, rows.Err())
	}
}
