package lab

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/weir-pg/weir/cmd/internal/guard"
	"github.com/weir-pg/weir/internal/sleep"
)

const guardName = "with the guard"

// guardQueue is a queue beside which the guard runs.
func guardQueue(q queueKind) queueKind {
	q.name, q.kind, q.guard, q.what = guardName, Fix, true, q.name+": "+q.what
	q.what += "; and weir guard ends the transaction, by a policy: one that has been open for a tenth of the time and holds back a table with dead rows"
	return q
}

// guardAfter returns how old a transaction must be for the guard to end it.
func guardAfter(p phases) time.Duration { return max(p.total/10, 200*time.Millisecond) }

// newGuard returns a guard of the lab's database, and of its standby.
func (s *site) newGuard(ctx context.Context, after time.Duration) (g *guard.Guard, interval time.Duration, closeAll func(), err error) {
	interval = min(max(after/4, 100*time.Millisecond), time.Second)
	policy := guard.DefaultPolicy()
	policy.Interval = guard.Duration{Duration: interval}
	policy.Protect = guard.Protect{Tables: []string{"weir_lab.queue"}, DeadRows: 100}
	var role string
	if err = s.guard.QueryRow(ctx, `SELECT current_user`).Scan(&role); err != nil {
		return nil, 0, nil, err
	}
	policy.Default.Action, policy.Default.Limit = guard.Ignore, guard.Duration{}
	// A rule that names its role exactly may end a superuser's session.
	policy.Rules = []guard.Rule{{
		Name: "the long transaction", Roles: []string{role}, Applications: []string{watcherName}, Action: guard.Terminate,
		After: &guard.Duration{Duration: after}, Patience: &guard.Duration{Duration: interval}, Limit: &guard.Duration{},
	}}
	var closes []func()
	closeAll = func() {
		for _, f := range closes {
			f()
		}
	}
	server := func(name, url string) (guard.Server, error) {
		conn, err := connect(ctx, url, guard.ApplicationName, nil)
		if err != nil {
			return guard.Server{}, err
		}
		closes = append(closes, func() { closeConn(conn) })
		return guard.Server{Name: name, DB: conn}, nil
	}
	config := guard.Config{Policy: policy, Act: true, Logger: slog.New(slog.DiscardHandler)}
	if config.Primary, err = server("the primary", s.url); err == nil && s.follower != nil {
		var standby guard.Server
		standby, err = server("the standby", s.follower.URL("postgres"))
		config.Standbys = []guard.Server{standby}
	}
	if err == nil {
		g, err = guard.New(config)
	}
	if err == nil {
		err = g.Check(ctx)
	}
	if err != nil {
		closeAll()
		return nil, 0, nil, err
	}
	return g, interval, closeAll, nil
}

// guardable returns why the guard can't act here, or "".
func guardable(ctx context.Context, s *site) string {
	_, _, closeAll, err := s.newGuard(ctx, time.Second)
	if err != nil {
		return err.Error()
	}
	closeAll()
	return ""
}

// guardIt runs the guard until the time is over, and notes when it has ended the long transaction.
func (t *trial) guardIt(until context.Context) error {
	ctx := context.WithoutCancel(until) // a poll is finished
	g, interval, closeAll, err := t.site.newGuard(ctx, guardAfter(t.phases))
	if err != nil {
		return err
	}
	defer closeAll()
	for sleep.For(until, interval) {
		found, err := g.Poll(ctx)
		if err != nil {
			return fmt.Errorf("guard: %w", err)
		}
		if slices.ContainsFunc(found.Actions, func(d guard.Done) bool { return d.Action == guard.Terminate && d.Outcome == "signalled" }) {
			t.guarded.CompareAndSwap(0, int64(time.Since(t.begun)))
		}
	}
	return nil
}
