package proof

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// reference returns docs/sql.md.
func reference(t *testing.T) string { return page(t, "sql.md") }

// page returns a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryPublicFunctionIsInTheReference: docs/sql.md mentions every public function, and no others.
func TestEveryPublicFunctionIsInTheReference(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	text := reference(t)
	public := column[string](t, conn, `SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'weir'::regnamespace AND proname NOT LIKE '\_%'`)
	for _, name := range public {
		if !regexp.MustCompile(`weir\.` + name + `\(`).MatchString(text) {
			t.Errorf("docs/sql.md does not mention weir.%s", name)
		}
	}
	for _, m := range regexp.MustCompile(`weir\.([a-z][a-z_]*)\(`).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(public, m[1]) {
			t.Errorf("docs/sql.md mentions weir.%s, which does not exist", m[1])
		}
	}
}

// TestEveryColumnOfTakeIsInTheReference: what take returns is described in a table, column by column.
func TestEveryColumnOfTakeIsInTheReference(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	_, text, _ := strings.Cut(reference(t), "### weir.take(")
	_, text, _ = strings.Cut(text, "\n| column | meaning |\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for _, name := range column[string](t, conn, `SELECT u.name FROM pg_proc p, unnest(p.proargnames, p.proargmodes) u(name, mode) WHERE p.oid = 'weir.take'::regproc AND u.mode = 't'`) {
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + name + "`").MatchString(text) {
			t.Errorf("docs/sql.md does not describe the column %s of weir.take", name)
		}
	}
}

// TestExamplesOfTheReferenceRun: all examples of docs/sql.md run, one after the other, in a new database.
func TestExamplesOfTheReferenceRun(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir._cut()`)
	exec(t, conn, `SELECT weir.publish('c', 'before')`)
	exec(t, conn, `SELECT weir._cut()`)
	if n := runExamples(t, conn, reference(t)); n < 8 {
		t.Fatalf("found only %d examples in docs/sql.md", n)
	}
}

// TestExamplesOfFeaturesRun: the SQL examples of each feature's page run, in a new database.
func TestExamplesOfFeaturesRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"failures.md", "groups.md", "limits.md", "keys.md", "flows.md", "encryption.md"} {
		conn := connect(t, pgtest.Database(t))
		if runExamples(t, conn, page(t, name)) == 0 {
			t.Errorf("docs/%s has no examples in SQL", name)
		}
	}
}

// ofWorker finds where a page has 1 as the id of a worker, which it says weir.start returns, for example.
var ofWorker = regexp.MustCompile(`\b(take|record|progress|stop)\(1\b`)

// runExamples runs the SQL of a page, and returns the number of its examples.
func runExamples(t *testing.T, conn *pgx.Conn, text string) int {
	t.Helper()
	examples := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(text, -1)
	for _, example := range examples {
		for statement := range strings.SplitSeq(regexp.MustCompile(`(?m)[ \t]*--.*$`).ReplaceAllString(example[1], ""), ";\n") {
			if statement = strings.TrimSuffix(strings.TrimSpace(statement), ";"); statement != "" {
				exec(t, conn, ofWorker.ReplaceAllString(statement, `$1((SELECT max(id) FROM weir.worker)`))
			}
		}
	}
	return len(examples)
}
