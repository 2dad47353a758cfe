package guard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// faulty is a database whose queries fail with err, or wait for hold.
type faulty struct {
	DB
	err  error
	hold chan struct{}
}

func (f *faulty) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if f.hold != nil {
		<-f.hold // whatever ctx says
	}
	if f.err != nil {
		return nil, f.err
	}
	return f.DB.Query(ctx, sql, args...)
}

// TestAGuardIsReadyWhileItPolls: a poll that fails does not change it at once; a poll that never ends is reported as what needs a restart.
func TestAGuardIsReadyWhileItPolls(t *testing.T) {
	t.Parallel()
	db := &faulty{DB: pgtest.Pool(t, pgtest.Database(t))}
	g, err := New(Config{Primary: Server{Name: "primary", DB: db}})
	if err != nil {
		t.Fatal(err)
	}
	poll := func() error {
		_, err := g.Poll(t.Context())
		return err
	}
	unready := func(now time.Time, want string) {
		t.Helper()
		if err := g.ready(now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ready is %v, want %q", err, want)
		}
	}
	unready(time.Now(), "no poll has succeeded yet")
	db.err = errors.New("the moon is full")
	if err := poll(); err == nil {
		t.Fatal("the poll did not fail")
	}
	unready(time.Now(), "no poll has succeeded yet: ")
	unready(time.Now(), "the moon is full")
	db.err = nil
	if err := poll(); err != nil {
		t.Fatal(err)
	}
	if err := g.Ready(); err != nil {
		t.Errorf("after a poll it is not ready: %v", err)
	}
	db.err = errors.New("the moon is full again")
	_ = poll()
	if err := g.Ready(); err != nil {
		t.Errorf("one failure makes it not ready: %v", err)
	}
	unready(time.Now().Add(time.Hour), "no poll has succeeded for 1h0m0s: ")
	unready(time.Now().Add(time.Hour), "full again")
	if err := g.Stuck(); err != nil {
		t.Errorf("failures need no restart: %v", err)
	}

	db.err, db.hold = nil, make(chan struct{})
	done := make(chan error)
	go func() { done <- poll() }()
	pgtest.Until(t, "the poll is seen to take long", func() bool { return g.health.polling.Stuck("polling", time.Millisecond) != nil })
	if err := g.Stuck(); err != nil {
		t.Errorf("a poll of a moment is called stuck: %v", err)
	}
	close(db.hold)
	if err := pgtest.Receive(t, done, "the poll has ended"); err != nil {
		t.Error(err)
	}
	if err := g.health.polling.Stuck("polling", time.Millisecond); err != nil {
		t.Errorf("between polls it is called stuck: %v", err)
	}
}
