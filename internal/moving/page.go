// Package moving tests the pages about moving to Weir from other queues: it runs the commands and programs of the pages against the queues that
// they move from.
package moving

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Page is a page of the documentation.
type Page struct{ text string }

// Read reads a page.
func Read(t testing.TB, path string) Page {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Page{string(text)}
}

// Block returns the first block of code in a language below a heading, up to the next heading.
func (p Page) Block(t testing.TB, heading, language string) string {
	t.Helper()
	section := regexp.MustCompile(`(?s)\n#+ ` + regexp.QuoteMeta(heading) + `\n(.*?)(\n#+ |$)`).FindStringSubmatch(p.text)
	if section == nil {
		t.Fatalf("the page has no heading %q", heading)
	}
	blocks := blocks(section[1], language)
	if len(blocks) == 0 {
		t.Fatalf("the page has no block of %s under %q", language, heading)
	}
	return blocks[0]
}

// IsIn checks that a source file contains all blocks of the page in a language, so that readers get code that was compiled and run.
func (p Page) IsIn(t testing.TB, language, source string) {
	t.Helper()
	all := blocks(p.text, language)
	if len(all) == 0 {
		t.Fatalf("the page has no block of %s", language)
	}
	for _, block := range all {
		if !strings.Contains(source, strings.Trim(block, "\n")) {
			t.Errorf("the test does not run this block of the page:\n%s", block)
		}
	}
}

func blocks(text, language string) (all []string) {
	for _, found := range regexp.MustCompile("(?s)```"+regexp.QuoteMeta(language)+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}
