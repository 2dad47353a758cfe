package weir_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinksInTheDocumentsLeadSomewhere: relative links lead to existing files and headings.
func TestLinksInTheDocumentsLeadSomewhere(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "clients/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	if len(pages) < 10 {
		t.Fatalf("found only these pages: %v", pages)
	}
	for _, page := range pages {
		text := code.ReplaceAllString(string(read(t, page)), "")
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if anchor != "" && !anchors(t, path)[anchor] {
				t.Errorf("%s: %s has no heading #%s", page, path, anchor)
			}
		}
	}
}

// TestTestsThatTheDocumentsNameExist: whoever looks for the proof of a promise finds it.
func TestTestsThatTheDocumentsNameExist(t *testing.T) {
	t.Parallel()
	exist := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, name := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(read(t, path)), -1) {
				exist[name[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"ARCHITECTURE.md", "docs/comparison.md"} {
		named := regexp.MustCompile("`(Test[A-Z]\\w+)[`/]").FindAllStringSubmatch(string(read(t, page)), -1)
		if len(named) < 10 {
			t.Errorf("%s: found only %d names of tests", page, len(named))
		}
		for _, name := range named {
			if !exist[name[1]] {
				t.Errorf("%s: there is no test %s", page, name[1])
			}
		}
	}
}

var code = regexp.MustCompile("(?ms)^```.*?^```")

// anchors returns the headings of a page, in the form in which links refer to them.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(code.ReplaceAllString(string(read(t, page)), ""), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}
