package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/doctor"
	"github.com/weir-pg/weir/internal/pgtest"
)

// connect opens a session that is closed at the end of the test.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// runSessions repeats f in n sessions until the test ends or stop is called.
func runSessions(t *testing.T, url string, n int, f func(ctx context.Context, conn *pgx.Conn, i int) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range n {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		all.Go(func() {
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				if err := f(ctx, conn, i); err != nil && ctx.Err() == nil {
					t.Errorf("session %d: %v", i, err)
					return
				}
			}
		})
	}
	stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// alone returns the URL of a server of the test's own, because a doctor sees the whole server. Then the test can run in parallel.
func alone(t *testing.T) string {
	t.Helper()
	return pgtest.Server(t, nil).URL("postgres")
}

// repeat returns a function for runSessions that runs statements, whose only parameter, if any, is the session's number.
func repeat(statements ...string) func(context.Context, *pgx.Conn, int) error {
	return func(ctx context.Context, conn *pgx.Conn, i int) error {
		for _, sql := range statements {
			var args []any
			if strings.Contains(sql, "$1") {
				args = []any{i}
			}
			if _, err := conn.Exec(ctx, sql, args...); err != nil {
				return err
			}
		}
		return nil
	}
}

// examine runs the doctor for a while.
func examine(t *testing.T, url string, duration time.Duration) doctor.Report {
	t.Helper()
	d, err := doctor.Open(t.Context(), doctor.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	report, err := d.Run(t.Context(), duration)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// pasted matches the end of a statement or command that a dot follows, which whoever copies it pastes as well.
var pasted = regexp.MustCompile(`(SELECT pg_\w+\([^)]*\)|FROM pg_prepared_xacts|NO MAXVALUE|interval '[^']*'|WHERE pid = \d+|weir \w+ (set|--queue) \S*\w|--to-queue NAME)\.(\s|$)`)

// expect fails unless the report has the finding with at least this severity, and no other critical finding.
func expect(t *testing.T, r doctor.Report, code doctor.Code, least doctor.Severity) doctor.Finding {
	t.Helper()
	f, ok := r.Find(code)
	if !ok || rank(f.Severity) < rank(least) {
		t.Fatalf("want %s, at least %s; got:\n%s", code, least, describe(r))
	}
	if f.Summary == "" || f.Now == "" || f.ForGood == "" || len(f.Evidence) == 0 || f.Samples == 0 {
		t.Errorf("%s is incomplete: %+v", code, f)
	}
	if at := pasted.FindString(f.Now + " " + f.ForGood); at != "" {
		t.Errorf("%s: a dot after what is to be pasted, %q: %s", code, at, f.Now)
	}
	for _, other := range r.Findings {
		if other.Code != code && other.Severity == doctor.Critical {
			t.Errorf("%s is critical too: %s", other.Code, other.Summary)
		}
	}
	return f
}

// expectFact fails unless the summary or a piece of evidence contains all of the texts.
func expectFact(t *testing.T, f doctor.Finding, texts ...string) {
	t.Helper()
	facts := []string{f.Summary}
	for _, e := range f.Evidence {
		facts = append(facts, e.Fact)
	}
search:
	for _, fact := range facts {
		for _, text := range texts {
			if !strings.Contains(fact, text) {
				continue search
			}
		}
		return
	}
	t.Errorf("%s: no evidence has %q:\n%s", f.Code, texts, strings.Join(facts, "\n"))
}

// expectCalm fails if anything is above info.
func expectCalm(t *testing.T, r doctor.Report) {
	t.Helper()
	if r.Worst() != doctor.Info {
		t.Errorf("a false alarm:\n%s", describe(r))
	}
}

func rank(s doctor.Severity) int {
	for i, known := range []doctor.Severity{doctor.Info, doctor.Warning, doctor.Critical} {
		if s == known {
			return i
		}
	}
	return -1
}

func describe(r doctor.Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s %s (downstream of %q): %s\n", f.Severity, f.Code, f.DownstreamOf, f.Summary)
		for _, e := range f.Evidence {
			fmt.Fprintf(&b, "    %s\n", e.Fact)
		}
	}
	for _, w := range r.Well {
		fmt.Fprintf(&b, "well: %s\n", w.Fact)
	}
	for _, u := range r.Unseen {
		fmt.Fprintf(&b, "unseen: %s\n", u)
	}
	return b.String()
}

// until polls a condition that no event announces.
func until(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	pgtest.Until(t, sql, func() (done bool) {
		if err := conn.QueryRow(t.Context(), sql).Scan(&done); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
		return done
	})
}
