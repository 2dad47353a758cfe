package proof

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// reference returns docs/sql.md.
func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "sql.md"))
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

// TestExamplesOfTheReferenceRun: all examples of docs/sql.md run, one after the other, in a new database.
func TestExamplesOfTheReferenceRun(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir._cut()`)
	exec(t, conn, `SELECT weir.publish('c', 'before')`)
	exec(t, conn, `SELECT weir._cut()`)
	examples := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(reference(t), -1)
	if len(examples) < 8 {
		t.Fatalf("found only %d examples in docs/sql.md", len(examples))
	}
	for _, example := range examples {
		for statement := range strings.SplitSeq(regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(example[1], ""), ";\n") {
			if statement = strings.TrimSuffix(strings.TrimSpace(statement), ";"); statement != "" {
				exec(t, conn, statement)
			}
		}
	}
}
