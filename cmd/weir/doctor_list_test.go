package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTheDoctorReportsOnAList: a section for what is ill, a line for the rest, the worst exit code, and the same as one JSON value; never a password.
func TestTheDoctorReportsOnAList(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	list := strings.Join([]string{server.URL("postgres"), "# a comment", server.URL("template1"), "postgres://ada:secret@127.0.0.1:1/nowhere"}, "\n")
	run := func(c doctorCmd) (out, errs string, err error) {
		var o, e bytes.Buffer
		c.List, c.For = "-", time.Second
		err = c.Run(t.Context(), &streams{in: strings.NewReader(list), out: &o, err: &e}, nil)
		return o.String(), e.String(), err
	}
	out, errs, err := run(doctorCmd{})
	var f *failure
	if !errors.As(err, &f) || f.code != exitCritical || !strings.Contains(f.Error(), "database nowhere at 127.0.0.1:1: critical: it can't be examined") {
		t.Errorf("verdict: %v", err)
	}
	for _, want := range []string{"3 databases at 1 running server\n", "\n=== database nowhere at 127.0.0.1:1\n\nCRITICAL  it can't be examined: can't connect", "database template1 at 127.0.0.1:"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out+errs+err.Error(), "secret") {
		t.Errorf("it tells the password:\n%s%s%v", out, errs, err)
	}
	out, _, err = run(doctorCmd{JSON: true})
	var r doctor.ListReport
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil || !errors.As(err, &f) || f.code != exitCritical {
		t.Fatalf("%v, %v:\n%s", jsonErr, err, out)
	}
	if len(r.Servers) != 1 || len(r.Servers[0].Databases) != 2 || len(r.Unreachable) != 1 || r.Servers[0].Databases[1].Report == nil {
		t.Errorf("%s", out)
	}
	for _, c := range []doctorCmd{{Watch: true}, {Record: "x"}, {Standby: []string{"postgres://x"}}, {ListenMetrics: ":0"}} {
		if _, _, err := run(c); !errors.As(err, &f) || f.code != exitUsage {
			t.Errorf("%+v with a list: %v", c, err)
		}
	}
}

// TestAnIncompleteExaminationOfAListIsNoHealth: the worst part decides, and which it is, is said.
func TestAnIncompleteExaminationOfAListIsNoHealth(t *testing.T) {
	t.Parallel()
	report := func(of doctor.Report) doctor.ListReport {
		return doctor.ListReport{Servers: []doctor.ServerReport{{Report: &doctor.Report{}, Databases: []doctor.DatabaseReport{{Database: "shop", Address: "db:5432", Report: &of}, {Database: "b", Address: "db:5432", Report: &doctor.Report{Incomplete: true}}}}}}
	}
	for _, c := range []struct {
		of   doctor.Report
		code int
	}{
		{doctor.Report{}, exitUnseen},
		{doctor.Report{Findings: []doctor.Finding{{Code: doctor.HotRow, Severity: doctor.Warning}}}, exitWarning},
		{doctor.Report{Findings: []doctor.Finding{{Code: doctor.HotRow, Severity: doctor.Critical}}}, exitCritical},
	} {
		var f *failure
		if err := listVerdict(report(c.of)); !errors.As(err, &f) || f.code != c.code {
			t.Errorf("%+v: %v, want %d", c.of, err, c.code)
		}
	}
}

// TestAListSaysWhatWasNotCheckedAsOneDatabaseDoes: even if nobody else has a session, of which it would see too little.
func TestAListSaysWhatWasNotCheckedAsOneDatabaseDoes(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, nil)
	admin := pgtest.Pool(t, server.URL("postgres"))
	if _, err := admin.Exec(t.Context(), `CREATE ROLE app LOGIN PASSWORD 'secret'`); err != nil {
		t.Fatal(err)
	}
	admin.Close()
	as := func(name string) string {
		u, err := url.Parse(server.URL(name))
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword("app", "secret")
		return u.String()
	}
	var one, list, errs bytes.Buffer
	oneErr := (&doctorCmd{For: time.Second}).Run(t.Context(), &streams{out: &one, err: &errs}, &database{url: as("postgres"), err: &errs})
	listErr := (&doctorCmd{For: time.Second, List: "-"}).Run(t.Context(), &streams{in: strings.NewReader(as("postgres") + "\n" + as("template1")), out: &list, err: &errs}, nil)
	if exitCode(t.Context(), oneErr) != exitCode(t.Context(), listErr) {
		t.Errorf("one database ends with %v, a list with %v", oneErr, listErr)
	}
	_, unseen, found := strings.Cut(one.String(), "\nNot checked:\n")
	if !found || !strings.Contains(unseen, `GRANT pg_monitor TO "app"`) {
		t.Fatalf("one database:\n%s", one.String())
	}
	for line := range strings.Lines(unseen) {
		if !strings.Contains(list.String(), strings.TrimSuffix(line, "\n")) {
			t.Errorf("the list does not say %q:\n%s", line, list.String())
		}
	}
	if strings.Count(list.String(), "GRANT pg_monitor") != 1 {
		t.Errorf("it says the same more than once:\n%s", list.String())
	}
}
