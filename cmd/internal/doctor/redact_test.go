package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestOfAStatementOnlyTheCommandAndItsTablesStay(t *testing.T) {
	t.Parallel()
	r := &redactor{map[string]bool{"orders": true, "shop": true}}
	for _, word := range strings.Fields(commands) {
		r.known[word] = true
	}
	digest := regexp.MustCompile(`\[s[0-9a-f]{8}\]`)
	for text, want := range map[string]string{
		"SELECT secret FROM shop.orders WHERE name = 'secret' AND id = 4711":            "SELECT # FROM shop.orders WHERE …",
		`INSERT INTO "orders" (secret) VALUES (E'it''s secret') ON CONFLICT DO NOTHING`: `INSERT INTO "orders" # ON CONFLICT DO NOTHING`,
		"/* secret */ COMMIT;":                                     "COMMIT",
		"LISTEN secret":                                            "LISTEN #",
		"select * from weir._claim($1, $2, $3)":                    "select # from weir._claim( …",
		"SELECT count(secret) FROM hidden -- secret\nWHERE secret": "SELECT count( # FROM … WHERE …",
		"secret":                   "#",
		"":                         "",
		"<insufficient privilege>": "<insufficient privilege>",
	} {
		got := r.statement(text)
		if plain := digest.ReplaceAllString(got, "#"); plain != want {
			t.Errorf("of %q stays %q, want %q", text, got, want)
		}
	}
	if a, b := r.statement("SELECT a FROM orders WHERE n = 1"), r.statement("SELECT a FROM orders WHERE n = 2"); a != b {
		t.Errorf("statements that differ in a value alone: %q and %q", a, b)
	}
	if a, b := r.statement("SELECT a FROM orders"), r.statement("SELECT b FROM orders"); a == b {
		t.Errorf("two statements, and what stays of both is %q", a)
	}
}

// TestEveryStatementThatIsReadIsRedacted: fields of rows that may hold a statement's text say so.
func TestEveryStatementThatIsReadIsRedacted(t *testing.T) {
	t.Parallel()
	// Not read from a server, or copied from a row that is.
	filled := map[string]bool{"Change": true, "Session": true, "Lock": true, "blocker": true, "Evidence": true, "Holder": true, "Statement": true}
	rows := 0
	for _, dir := range []string{".", "../horizon"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			p, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(p, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok || filled[spec.Name.Name] {
					return true
				}
				fields, ok := spec.Type.(*ast.StructType)
				if !ok {
					return true
				}
				for _, field := range fields.Fields.List {
					kind, isNamed := field.Type.(*ast.Ident)
					for _, name := range field.Names {
						if !isNamed || kind.Name != "string" || name.Name != "Query" && name.Name != "Text" {
							continue
						}
						rows++ // by these names Recording.WithoutStatements finds them
						if field.Tag == nil || field.Tag.Value != "`text:\"statement\"`" {
							t.Errorf("%s: %s.%s has no tag text:\"statement\"", dir, spec.Name.Name, name.Name)
						}
					}
				}
				return true
			})
		}
	}
	if rows < 8 {
		t.Errorf("only %d fields of statements were found", rows)
	}
}
