package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestMigrateUpgradesAListOfDatabases: one that fails keeps no other from it, and is named without its password; run again, the command does what is left.
func TestMigrateUpgradesAListOfDatabases(t *testing.T) {
	t.Parallel()
	first, last := pgtest.Empty(t), pgtest.Empty(t)
	broken := "postgres://ada:secret@127.0.0.1:1/nowhere?connect_timeout=5"
	list := "# tenants\n\n" + first + "\n" + broken + "\n" + last + "\n" + first + "\n"
	run := func(list string) (out, errs string, err error) {
		var o, e bytes.Buffer
		err = (&migrateUpCmd{List: "-"}).Run(t.Context(), &streams{in: strings.NewReader(list), out: &o, err: &e}, nil)
		return o.String(), e.String(), err
	}
	out, errs, err := run(list)
	if err == nil || !strings.HasPrefix(err.Error(), "1 of 3 databases failed") || !strings.Contains(errs, "database 2 of 3, nowhere at 127.0.0.1:1: ") {
		t.Errorf("%v\n%s", err, errs)
	}
	if strings.Contains(out+errs+err.Error(), "secret") {
		t.Errorf("it tells the password:\n%s%s%v", out, errs, err)
	}
	if n := strings.Count(out, "applied 0001 jobs"); n != 2 {
		t.Errorf("%d databases were upgraded, want 2:\n%s", n, out)
	}
	if out, _, err = run(first + "\n" + last); err != nil || strings.Contains(out, "applied") || strings.Count(out, "weir is installed") != 2 {
		t.Errorf("again: %v\n%s", err, out)
	}
	var usage *failure
	if _, _, err = run("# none\n"); !errors.As(err, &usage) || usage.code != exitUsage {
		t.Errorf("an empty list: %v", err)
	}
}
