package relay_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/pgtest"
)

func dyingDatabase(t *testing.T, _ *pgxpool.Pool) *dying {
	pg := pgtest.Installed(t, nil)
	to := pgtest.Pool(t, pg.URL("postgres"))
	at := func(relay, settings, target string, arrived func() int, all func() []string) *end {
		return &end{relay, settings + fmt.Sprintf("database = { url = %q%s }", pg.URL("postgres"), target), arrived, func(n int) []string {
			arrive(t, n, "by the relay "+relay, arrived)
			return all()
		}}
	}
	return &dying{
		kill: func() {
			if err := pg.Kill(); err != nil {
				t.Fatal(err)
			}
		},
		start: func() {
			if err := pg.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		messages: []*end{
			at("messages", messagesTo("copies"), "", func() int { return counted(t, to, `SELECT count(*) FROM weir.message`) }, func() []string {
				return texts(t, to, `SELECT convert_from(payload, 'UTF8') FROM weir.message ORDER BY id`)
			}),
			at("jobs-of-messages", messagesTo("made"), `, kind = "made"`, jobsIn(t, to, "made"), func() []string { return argsIn(t, to, "made") }),
		},
		jobs: at("jobs", jobsTo("moved"), "", jobsIn(t, to, "order"), func() []string { return argsIn(t, to, "moved") }),
	}
}

// jobsFrom is the end of a relay from a broker.
func jobsFrom(t *testing.T, pool *pgxpool.Pool, from string) *end {
	t.Helper()
	arrived := jobsIn(t, pool, "arrived")
	return &end{"arrived", "since = \"oldest\"\nqueue = \"arrived\"\nkind = \"arrived\"\n" + from, arrived, func(n int) []string {
		arrive(t, n, "as jobs", arrived)
		return argsIn(t, pool, "arrived")
	}}
}

// counted returns what a query counts; -1: the server does not answer.
func counted(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if pool.QueryRow(ctx, sql, args...).Scan(&n) != nil {
		return -1
	}
	return n
}

// jobsIn returns what counts the jobs of a kind, of which nobody works any.
func jobsIn(t *testing.T, pool *pgxpool.Pool, kind string) func() int {
	return func() int { return counted(t, pool, `SELECT count(*) FROM weir.job WHERE kind = $1`, kind) }
}

// argsIn returns the args of the jobs in a queue, of which nobody works any, in the order in which they were enqueued.
func argsIn(t *testing.T, pool *pgxpool.Pool, queue string) []string {
	t.Helper()
	var jobs []weir.JobInfo
	for after, more := "", true; more; more = after != "" {
		page, err := weir.NewClient(pool).Jobs(t.Context(), weir.JobsParams{States: []weir.State{weir.StateAvailable}, Queue: queue, Limit: 1000, After: after})
		if err != nil {
			t.Fatal(err)
		}
		jobs, after = append(jobs, page.Jobs...), page.Next
	}
	slices.SortFunc(jobs, func(a, b weir.JobInfo) int { return cmp.Compare(a.ID, b.ID) })
	all := make([]string, len(jobs))
	for i := range jobs {
		all[i] = string(jobs[i].Args)
	}
	return all
}
