package weir_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir"
)

// TestManyJobsAreEnqueuedInADatabaseAtOnce: those of each database in one transaction, and where their keys are, although some have moved since the router looked.
func TestManyJobsAreEnqueuedInADatabaseAtOnce(t *testing.T) {
	t.Parallel()
	r, clients := spread(t, 3)
	slices.SortFunc(clients, byFirstSlot(t, r))
	stale := routerOf(t, clients...)
	high := owners(t, r)[0].High
	if err := r.Move(t.Context(), 0, high/2, clients[1], nil); err != nil {
		t.Fatal(err)
	}
	var jobs []weir.NewJob
	for n := range 60 {
		key := fmt.Sprint("tenant ", n)
		jobs = append(jobs, weir.NewJob{Args: step{key, n}, Options: &weir.Options{Key: key}})
	}
	for n, router := range []*weir.Router{r, stale} {
		done, err := router.EnqueueMany(t.Context(), jobs)
		if err != nil || len(done) != len(jobs) {
			t.Fatalf("%d, %v", len(done), err)
		}
		for i, job := range done {
			if owner, err := r.Client(t.Context(), jobs[i].Options.Key); err != nil || owner != job.Client {
				t.Errorf("job %d is in another database than its key (%v)", i, err)
			}
			if got := unfinished(t, job.Client, jobs[i].Options.Key); len(got) != n+1 {
				t.Errorf("job %d: %v", i, got)
			}
		}
		found := 0
		for _, c := range clients {
			found += answer[int](t, c, `SELECT count(*) FROM weir.job`)
			if n := answer[int](t, c, `SELECT count(DISTINCT xid) FROM weir.job`); router == r && n != 1 {
				t.Errorf("a database got its jobs in %d transactions", n)
			}
		}
		if found != len(jobs)*(n+1) {
			t.Errorf("there are %d jobs, want %d", found, len(jobs)*(n+1))
		}
	}
	if done, err := stale.EnqueueMany(t.Context(), nil); err != nil || len(done) != 0 {
		t.Errorf("no jobs: %v, %v", done, err)
	}
	if _, err := stale.EnqueueMany(t.Context(), append(slices.Clone(jobs[:1]), weir.NewJob{Args: step{}})); err == nil || !strings.Contains(err.Error(), "job 2 of 2") {
		t.Errorf("one without a key: %v", err)
	}
}

// TestOfManyJobsItIsSaidWhichAreEnqueued: when a database refuses its part, the parts of others are there, and say so.
func TestOfManyJobsItIsSaidWhichAreEnqueued(t *testing.T) {
	t.Parallel()
	r, from, to, key := half(t)
	other := keyOf(1, 1)
	if err := pgx.BeginFunc(t.Context(), to.Pool(), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `CREATE FUNCTION public.never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `CREATE TRIGGER never BEFORE INSERT ON weir.job FOR EACH ROW EXECUTE FUNCTION public.never()`)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	jobs := []weir.NewJob{{Args: step{key, 1}, Options: &weir.Options{Key: key}}, {Args: step{other, 2}, Options: &weir.Options{Key: other}}, {Args: step{key, 3}, Options: &weir.Options{Key: key}}}
	done, err := r.EnqueueMany(t.Context(), jobs)
	if err == nil || len(done) != 3 || done[0].Client != from || done[1].Client != nil || done[2].Client != from {
		t.Errorf("%+v, %v", done, err)
	}
	if got := unfinished(t, from, key); len(got) != 2 {
		t.Errorf("the one database has %v", got)
	}
}
