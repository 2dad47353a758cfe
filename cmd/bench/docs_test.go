package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestCommandsOfTheBenchmarksExist: every command on the page of benchmarks can be run, and the page names every command.
func TestCommandsOfTheBenchmarksExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)(?:^|`)go run ./cmd/bench ([^\n#`]+)").FindAllStringSubmatch(string(page), -1) {
		args := strings.Fields(m[1])
		named[args[0]] = true
		parser, err := kong.New(&command{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(args); err != nil {
			t.Errorf("go run ./cmd/bench %s: %v", m[1], err)
		}
	}
	parser, err := kong.New(&command{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range parser.Model.Children {
		if !c.Hidden && !named[c.Name] {
			t.Errorf("docs/benchmarks.md does not name go run ./cmd/bench %s", c.Name)
		}
	}
}
