package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryTestRunsInParallelOrSaysWhyNot checks that each test of this repository calls t.Parallel, or pgtest.Alone with the reason, and that
// the stage "alone" runs the latter. A test that calls t.Setenv or t.Chdir says by that why it is not parallel. Only statements of the test
// itself count, not those of its subtests.
func TestEveryTestRunsInParallelOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	var alone []string // directory and name, as the stage lists them
	// The files whose tests need do neither.
	excepted := map[string]string{
		"weirtest/guide_test.go": "it shows users' tests, word for word as docs/testing.md does",
	}
	tests := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (entry.Name() == "testdata" || strings.ContainsAny(entry.Name()[:1], "._")):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		if _, ok := excepted[path]; ok {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declared := range file.Decls {
			test, ok := declared.(*ast.FuncDecl)
			if !ok || !isTest(test) {
				continue
			}
			tests++
			switch placed(test) {
			case "":
				t.Errorf("%s: %s calls neither t.Parallel() nor pgtest.Alone(t, why)", files.Position(test.Pos()), test.Name.Name)
			case "pgtest.Alone":
				alone = append(alone, strings.TrimSuffix("./"+filepath.ToSlash(filepath.Dir(path)), "/.")+" "+test.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if tests < 100 {
		t.Fatalf("only %d tests were found: this must run at the root of the repository", tests)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed, so the tests of the stage are not compared")
	}
	listed, err := exec.CommandContext(t.Context(), bash, ".ci/run", "--alone").Output()
	if err != nil {
		t.Fatal(err)
	}
	runs := strings.Split(strings.TrimSpace(string(listed)), "\n")
	for _, test := range alone {
		if !slices.Contains(runs, test) {
			t.Errorf("%s calls pgtest.Alone, but the stage alone does not run it", test)
		}
	}
	for _, test := range runs {
		if !slices.Contains(alone, test) {
			t.Errorf("the stage alone runs %s, which is not a test that calls pgtest.Alone", test)
		}
	}
}

// isTest reports whether a function is TestXxx(t *testing.T).
func isTest(f *ast.FuncDecl) bool {
	if f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || len(f.Type.Params.List) != 1 {
		return false
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	return ok && called(pointer.X) == "testing.T"
}

// placed returns the call by which a test says how it runs: in parallel, or alone.
func placed(test *ast.FuncDecl) string {
	for _, statement := range test.Body.List {
		expression, ok := statement.(*ast.ExprStmt)
		if !ok {
			continue
		}
		if call, ok := expression.X.(*ast.CallExpr); ok {
			switch call := called(call.Fun); call {
			case "t.Parallel", "t.Setenv", "t.Chdir", "pgtest.Alone":
				return call
			}
		}
	}
	return ""
}

// called returns the name of what is called: "t.Parallel" for t.Parallel().
func called(f ast.Expr) string {
	selector, ok := f.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if of, ok := selector.X.(*ast.Ident); ok {
		return of.Name + "." + selector.Sel.Name
	}
	return ""
}
