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
	if err == nil || !strings.HasPrefix(err.Error(), "1 of 3 databases failed") || !strings.Contains(errs, "database 2 of 3, nowhere at 127.0.0.1:1: ") || !strings.Contains(errs, "check the list, and that PostgreSQL is running there") {
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

// TestMigrateGoesThroughAListInSteps: so many a time, those that are behind, and the next time the next; one that can't be reached is passed over, one that can't be
// upgraded ends the step. The status shows how far it is.
func TestMigrateGoesThroughAListInSteps(t *testing.T) {
	t.Parallel()
	first, foreign, last := pgtest.Empty(t), pgtest.Empty(t), pgtest.Empty(t)
	nowhere := "postgres://ada:secret@127.0.0.1:1/nowhere?connect_timeout=5"
	if _, err := pgtest.Pool(t, foreign).Exec(t.Context(), "CREATE SCHEMA weir; CREATE TABLE weir.mine (n int)"); err != nil {
		t.Fatal(err)
	}
	step := func(urls ...string) (out string, err error) {
		var b bytes.Buffer
		err = (&migrateUpCmd{List: "-", AtMost: 1}).Run(t.Context(), &streams{in: strings.NewReader(strings.Join(urls, "\n")), out: &b, err: &b}, nil)
		return b.String(), err
	}
	out, err := step(nowhere, first, last)
	if err == nil || !strings.HasPrefix(err.Error(), "1 of 3 databases failed") || strings.Count(out, "applied 0001 jobs") != 1 || !strings.Contains(out, "stopped before database 3 of 3") {
		t.Errorf("the first step: %v\n%s", err, out)
	}
	var status bytes.Buffer
	err = (&migrateStatusCmd{List: "-"}).Run(t.Context(), &streams{in: strings.NewReader(strings.Join([]string{nowhere, first, last, "mysql://ada:secret@h/d"}, "\n")), out: &status, err: &status}, nil)
	var f *failure
	if !errors.As(err, &f) || f.code != exitUnreachable || !strings.Contains(status.String(), "up to date") || !strings.Contains(status.String(), "not installed") || !strings.Contains(status.String(), "nowhere at 127.0.0.1:1") ||
		!strings.Contains(status.String(), "check the list, and that") || !strings.Contains(status.String(), "number 4 of the list") || strings.Contains(status.String(), "secret") {
		t.Errorf("the status: %v\n%s", err, status.String())
	}
	if out, err = step(first, foreign, last); err == nil || !strings.HasPrefix(err.Error(), "stopped at database 2 of 3") || strings.Contains(out, "applied") || !strings.Contains(out, "weir is up to date") || strings.Contains(out, "stopped") {
		t.Errorf("a step with one that can't be upgraded: %v\n%s", err, out)
	}
	if out, err = step(first, last); err != nil || strings.Count(out, "applied 0001 jobs") != 1 || strings.Contains(out, "stopped") {
		t.Errorf("the last step: %v\n%s", err, out)
	}
	// All migrations are applied, but the functions are those of another build.
	if _, err := pgtest.Pool(t, last).Exec(t.Context(), "UPDATE weir.setting SET value = 'another' WHERE name = 'functions'"); err != nil {
		t.Fatal(err)
	}
	status.Reset()
	err = (&migrateStatusCmd{List: "-", jsonFlag: jsonFlag{JSON: true}}).Run(t.Context(), &streams{in: strings.NewReader(first + "\n" + last), out: &status, err: &status}, nil)
	if text := status.String(); err != nil || !strings.Contains(text, `"current": true`) || !strings.Contains(text, `"current": false`) {
		t.Errorf("the status of older functions: %v\n%s", err, text)
	}
}
