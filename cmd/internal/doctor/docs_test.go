package doctor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/doctor"
)

func TestEachFindingHasAPage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "..", "docs", "findings")
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range doctor.Codes() {
		text, err := os.ReadFile(filepath.Join(dir, string(code)+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, heading := range []string{"# " + string(code), "## What it means", "## How the doctor detects it", "## What to do", "## Sources"} {
			if !strings.Contains(string(text), heading+"\n") {
				t.Errorf("%s.md has no %q", code, heading)
			}
		}
		if !strings.Contains(string(index), "("+string(code)+".md)") {
			t.Errorf("README.md has no link to %s", code)
		}
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) != len(doctor.Codes())+1 {
		t.Errorf("%d pages for %d codes", len(pages)-1, len(doctor.Codes()))
	}
}
