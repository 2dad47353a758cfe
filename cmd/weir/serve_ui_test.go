package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestTheGuideToTheUIIsRight: it names each flag, and its commands are parsed.
func TestTheGuideToTheUIIsRight(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/ui.md")
	if err != nil {
		t.Fatal(err)
	}
	guide := string(text)
	flags := reflect.TypeFor[uiFlags]()
	for i := range flags.NumField() {
		if name := "--" + flags.Field(i).Tag.Get("name"); !strings.Contains(guide, name) {
			t.Errorf("docs/ui.md does not name %s", name)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"users.txt", "oidc-secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commands := 0
	for line := range strings.Lines(strings.ReplaceAll(guide, "\\\n", "")) {
		line, _, _ = strings.Cut(line, " #")
		line, _, _ = strings.Cut(line, " >>")
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "weir ")
		if !ok {
			continue
		}
		commands++
		args := strings.Fields(strings.ReplaceAll(command, "'", ""))
		for i, arg := range args {
			if path := filepath.Join(dir, arg); exists(path) {
				args[i] = path
			}
		}
		var parsed cli
		parser, err := newParser(&parsed)
		if err == nil {
			_, err = parser.Parse(args)
		}
		if err == nil {
			err = parsed.Serve.UI.check()
		}
		if err != nil {
			t.Errorf("weir %s: %v", command, err)
		}
	}
	if commands < 6 {
		t.Errorf("the guide has only %d commands", commands)
	}
}
