package bench

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir/cmd/internal/engine"
	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestFairMeasuresEachPhase: what others wait for, and claims, before the onset and with each backlog; and how many jobs of the large tenant run.
func TestFairMeasuresEachPhase(t *testing.T) {
	t.Parallel()
	r := fairly(t, engine.Engine{Log: t.Output()}, FairConfig{Tenants: 20, Jobs: 1000, Rate: 50, PerTenant: 2, Window: time.Second})
	var phases []string
	for _, p := range r.Phases {
		phases = append(phases, p.What)
		if quiet := strings.HasPrefix(p.What, "while "); !quiet && (p.Waits == nil || p.Claims == nil) {
			t.Errorf("%s: %+v %+v", p.What, p.Waits, p.Claims)
		}
	}
	if want := []string{"before", "while 1000 of one are enqueued", "first second with 1000", "then, with 1000", "while 500 of one are enqueued", "first second with 500",
		"then, with 500", "while 10 of one are enqueued", "first second with 10", "then, with 10"}; !slices.Equal(phases, want) {
		t.Errorf("%q, want %q", phases, want)
	}
	for _, target := range r.Targets {
		if strings.Contains(target.What, "run at a time") && (target.Got < 1 || target.Got > 2) {
			t.Errorf("%+v", target)
		}
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), "then, with 1000 ") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestFairNoticesThatOthersWait: if the queue does not know whose job it is, others wait for the whole backlog.
func TestFairNoticesThatOthersWait(t *testing.T) {
	t.Parallel()
	r := fairly(t, forgetful{engine.Engine{Log: t.Output()}}, FairConfig{Tenants: 20, Jobs: 5000, Rate: 50, Window: 2 * time.Second})
	for _, target := range r.Targets {
		if strings.HasPrefix(target.What, "ms that others wait in the first second") && !target.Met {
			return
		}
	}
	t.Errorf("it met the target: %+v", r.Targets)
}

// forgetful enqueues jobs without tenants.
type forgetful struct{ engine.Engine }

func (e forgetful) Client(pool *pgxpool.Pool) (load.Client, error) {
	c, err := e.Engine.Client(pool)
	return forgetfulClient{c.(tenantClient)}, err
}

type tenantClient interface {
	load.Client
	load.TenantClient
}

type forgetfulClient struct{ tenantClient }

func (c forgetfulClient) EnqueueFor(ctx context.Context, queue, _ string, number int64) error {
	return c.Enqueue(ctx, nil, queue, number)
}

func (c forgetfulClient) FillFor(ctx context.Context, queue, _ string, n int, commits func() error) error {
	if commits != nil {
		if err := commits(); err != nil {
			return err
		}
	}
	return c.Fill(ctx, queue, n)
}

func fairly(t *testing.T, e load.Engine, c FairConfig) *load.Report {
	t.Helper()
	var r *load.Report
	err := load.Run(t.Context(), load.Config{URL: pgtest.Database(t), Progress: t.Output()}, "", func(d *load.Database) (err error) {
		r, err = Fair(t.Context(), d, e, c)
		return err
	}, e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
