package weir_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readDoc returns a package's documentation, without its tests.
func readDoc(t *testing.T, dir string) *doc.Package {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(set, files, module+"/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestEveryExportedNameIsDocumented: each exported name has a comment that starts with it, as readers of go doc and pkg.go.dev expect. For
// constants and variables, a comment on the group is enough.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{".", "schema", "weircrypt", "weirotel", "weirtest", "weirui"} {
		p := readDoc(t, dir)
		if p.Doc == "" {
			t.Errorf("package %s has no documentation", p.Name)
		}
		named := func(name, text string) {
			t.Helper()
			words := strings.Fields(text)
			for _, article := range []string{"A", "An", "The"} {
				if len(words) > 1 && words[0] == article {
					words = words[1:]
				}
			}
			short := name[strings.LastIndex(name, ".")+1:]
			if len(words) == 0 || strings.TrimRight(words[0], ":,'s") != strings.TrimRight(short, "s") && !strings.HasPrefix(words[0], short) {
				t.Errorf("%s.%s is documented as %q: begin with its name", p.Name, name, text)
			}
		}
		values := func(all []*doc.Value) {
			t.Helper()
			for _, v := range all {
				for _, spec := range v.Decl.Specs {
					s := spec.(*ast.ValueSpec)
					if v.Doc == "" && s.Doc.Text() == "" && s.Comment.Text() == "" && slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
						t.Errorf("%s.%s is not documented", p.Name, s.Names[0])
					}
				}
			}
		}
		functions := func(prefix string, all []*doc.Func) {
			t.Helper()
			for _, f := range all {
				if f.Level == 0 { // not promoted
					named(prefix+f.Name, f.Doc)
				}
			}
		}
		values(p.Consts)
		values(p.Vars)
		functions("", p.Funcs)
		for _, typ := range p.Types {
			named(typ.Name, typ.Doc)
			functions("", typ.Funcs)
			functions(typ.Name+".", typ.Methods)
		}
	}
}
