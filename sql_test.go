package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// holdSQL lists the packages other than internal/store that may contain SQL, and for each whether that may be Weir's own, which names objects of its
// schema. Packages that run jobs, publish or serve are not listed: they use internal/store.
var holdSQL = map[string]struct {
	weirs bool
	why   string
}{
	"internal/store": {true, "contains the typed calls"},
	"schema":         {true, "installs the schema"},

	"internal/adverse":     {false, "reads the server's settings"},
	"cmd/internal/horizon": {false, "reads who holds the vacuum horizon, from the catalogs"},
	"cmd/internal/guard":   {false, "reads table statistics, and ends sessions"},
	"cmd/internal/doctor":  {true, "reads the catalogs, and Weir's views if they exist"},
	"cmd/weir":             {false, "creates the database of weir dev, and checks who owns a schema"},

	"cmd/internal/load":       {false, "reads a server's statistics, and holds back its vacuum horizon"},
	"cmd/internal/bench":      {false, "inserts into a plain table, for comparison"},
	"cmd/internal/engine":     {true, "enqueues as programs in other languages do"},
	"cmd/internal/lab":        {true, "runs the loads that collapse, and their fixes"},
	"cmd/bench":               {false, "counts River's unfinished jobs"},
	"cmd/bench/internal/hub":  {true, "publishes as programs in other languages do"},
	"cmd/bench/internal/jobs": {true, "measures each call"},
	"examples":                {true, "are programs as users write them"},
	"internal/embedded":       {false, "sets up standbys"},
	"internal/pgtest":         {false, "sets up servers for tests"},
	"internal/testdb":         {false, "creates databases for tests"},
	"internal/workertest":     {true, "checks workers in any language"},
}

// TestStoreAloneHoldsSQL: every other package with SQL is listed, with its reason.
func TestStoreAloneHoldsSQL(t *testing.T) {
	t.Parallel()
	statement := regexp.MustCompile(`^(?:\s|--[^\n]*\n)*(WITH\s|SELECT\s+[^\d\s]|INSERT INTO\s|UPDATE \S+ SET\s|DELETE FROM\s|TRUNCATE\s|CALL\s|DO \$|LOCK TABLE\s|COPY\s|` +
		`(CREATE|ALTER|DROP) (OR REPLACE |UNLOGGED |TEMP )?(TABLE|SCHEMA|DATABASE|ROLE|FUNCTION|VIEW|INDEX|EXTENSION|SEQUENCE|SUBSCRIPTION|PUBLICATION)\s)`)
	weirs := regexp.MustCompile(`\bweir\.\w`)
	own, _ := list(t)
	held := map[string]bool{}
	for path, p := range own {
		note := func(text, where string) {
			in := place(path)
			held[in] = true
			switch rule, ok := holdSQL[in]; {
			case !ok:
				t.Errorf("%s contains SQL: move it to internal/store, or add %s to holdSQL with a reason", where, in)
			case weirs.MatchString(text) && !rule.weirs:
				t.Errorf("%s contains SQL that uses Weir's schema: move it to internal/store", where)
			}
		}
		for _, name := range p.EmbedFiles {
			if strings.HasSuffix(name, ".sql") {
				note(string(read(t, filepath.Join(p.Dir, name))), filepath.Join(path, name))
			}
		}
		files := token.NewFileSet()
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil && statement.MatchString(text) {
						note(text, files.Position(literal.Pos()).String())
					}
				}
				return true
			})
		}
	}
	for _, in := range slices.Sorted(maps.Keys(holdSQL)) {
		if !held[in] {
			t.Errorf("%s no longer contains SQL (%s): remove it from holdSQL", in, holdSQL[in].why)
		}
	}
}

// place returns the package of a file, or the tree of examples.
func place(path string) string {
	if within(path, "examples") {
		return "examples"
	}
	return path
}
