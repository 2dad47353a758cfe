package weir_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTheGuideForContributorsNamesWhatThereIs: the files, tests, stages and variables named in CONTRIBUTING.md exist, and it names all
// stages and variables.
func TestTheGuideForContributorsNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	guide := string(read(t, "CONTRIBUTING.md"))
	tests, variables := map[string]bool{}, map[string]bool{}
	declared, asked := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile(`(?:Getenv|LookupEnv)\("(WEIR_(?:TEST_|POSTGRES|SCORE_)\w*)"\)`)
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range declared.FindAllSubmatch(text, -1) {
			tests[string(found[1])] = true
		}
		for _, found := range asked.FindAllSubmatch(text, -1) {
			variables[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`\$\{(WEIR_\w+):-\}`).FindAllSubmatch(read(t, ".ci/run"), -1) {
		variables[string(found[1])] = true
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(guide, -1) {
		if !tests[name] {
			t.Errorf("CONTRIBUTING.md names the test %s, which does not exist", name)
		}
	}
	for _, path := range regexp.MustCompile("`([a-z.][\\w./-]*(?:/|\\.(?:go|sql|md|ya?ml)))`").FindAllStringSubmatch(guide, -1) {
		if _, err := os.Stat(path[1]); err != nil {
			t.Error(err)
		}
	}
	for name := range variables {
		if !strings.Contains(guide, "`"+name+"=") {
			t.Errorf("tests or stages read the variable %s, which CONTRIBUTING.md does not mention", name)
		}
	}
	for _, name := range regexp.MustCompile("`(WEIR_\\w+)=").FindAllStringSubmatch(guide, -1) {
		if !variables[name[1]] {
			t.Errorf("CONTRIBUTING.md names the variable %s, which no test or stage reads", name[1])
		}
	}

	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed, so the stages are not compared")
	}
	out, err := exec.CommandContext(t.Context(), bash, ".ci/run", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\|").FindAllStringSubmatch(guide, -1) {
		listed = append(listed, row[1])
	}
	if stages := strings.Fields(string(bytes.TrimSpace(out))); !slices.Equal(stages, listed) {
		t.Errorf(".ci/run has the stages %v, CONTRIBUTING.md has %v", stages, listed)
	}
}
