package guard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// limited is a server that checks that each call has a time limit.
type limited struct {
	DB
	t     *testing.T
	calls *atomic.Int32
}

func (l limited) check(ctx context.Context, what string) {
	l.calls.Add(1)
	if at, ok := ctx.Deadline(); !ok || time.Until(at) > pollTimeout {
		l.t.Errorf("a call may last until %v (%v), want at most %v: %.200s", at, ok, pollTimeout, what)
	}
}

func (l limited) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	l.check(ctx, sql)
	return l.DB.Query(ctx, sql, args...)
}

func (l limited) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	l.check(ctx, sql)
	return l.DB.QueryRow(ctx, sql, args...)
}

func (l limited) Begin(ctx context.Context) (pgx.Tx, error) {
	l.check(ctx, "BEGIN")
	return l.DB.Begin(ctx)
}

// timeLimited checks every call that a guard makes until it has ended a session: a server that does not answer never keeps it.
func timeLimited(t *testing.T, s *servers) {
	c := connect(t, as(t, s.primary, "app", "postgres")).exec(readOnly, "SELECT count(*) FROM harmed")
	p := hasty()
	p.Protect.Probes = []Probe{{Name: "next job", SQL: "SELECT 1", SlowerThan: Duration{time.Second}}}
	g := s.guard(t, p, true)
	var calls atomic.Int32
	g.config.Primary.DB = limited{g.config.Primary.DB, t, &calls}
	for i := range g.config.Standbys {
		g.config.Standbys[i].DB = limited{g.config.Standbys[i].DB, t, &calls}
	}
	s.watch(t, g, func(r *Findings) bool {
		return r.outcome("primary", fmt.Sprintf("pid %d", c.pid()), Terminate, outcomeMoved)
	})
	if calls.Load() == 0 {
		t.Error("no call was seen")
	}
}
