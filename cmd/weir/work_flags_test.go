package main

import (
	"strings"
	"testing"
)

// TestAFlagOfWorkThatIsMistypedIsNoCommand: what stands before -- is for weir work, and what follows is the command's.
func TestAFlagOfWorkThatIsMistypedIsNoCommand(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	code := run([]string{"work", "--database", "postgres://nobody@127.0.0.1:1/nowhere", "--queue", "q", "--concurency", "8", "--", "true"}, strings.NewReader(""), &out, &errs)
	if said := errs.String(); code != exitUsage || !strings.Contains(said, "unknown flag --concurency") {
		t.Errorf("exit code %d: %s", code, said)
	}
}
