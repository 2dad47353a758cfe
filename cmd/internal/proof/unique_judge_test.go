package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestUniqueJobsKeepTheirPromisesUnderEveryInterleaving: many connections enqueue few keys, with all rules, in all isolation levels, with rollbacks,
// savepoints and long transactions, while jobs are retried, snoozed, handed back, cancelled, promoted and carried, and workers die. According to
// what the clients saw, no job is lost to one that does not stand for it, runs until finished do not overlap, and no key stays held.
func TestUniqueJobsKeepTheirPromisesUnderEveryInterleaving(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	smallSegments(t, conn)
	// Segments with the reasons are reclaimed while the test runs, so they are copied.
	for _, sql := range []string{
		`CREATE TABLE public.dropped (no serial, id bigint, reason text)`,
		`CREATE FUNCTION public.note_dropped() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			INSERT INTO public.dropped (id, reason) SELECT * FROM unnest(NEW.ids, NEW.errors); RETURN NULL; END'`,
		`CREATE TRIGGER note_dropped AFTER INSERT ON weir.result FOR EACH ROW WHEN (NEW.outcome = 'cancelled') EXECUTE FUNCTION public.note_dropped()`,
	} {
		exec(t, conn, sql)
	}
	l := &uniqueLoad{t: t, url: url, seed: newSeed(t), queues: []string{"a", "b"}, stop: make(chan struct{}), drained: make(chan struct{}),
		jobs: map[int64]*uniqueJob{}, runs: map[string][]*uniqueRun{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var busy, others sync.WaitGroup
	start := func(wg *sync.WaitGroup, n uint64, upto chan struct{}, do func(ctx context.Context, conn *pgx.Conn, r *rand.Rand) error) {
		c, r := connect(t, url), rand.New(rand.NewPCG(l.seed, n))
		wg.Go(func() {
			for ctx.Err() == nil && !closed(upto) {
				if err := do(ctx, c, r); err != nil {
					cancel(err)
				}
			}
		})
	}
	for n := range uint64(10) {
		start(&busy, n, l.stop, l.enqueue)
	}
	start(&busy, 10, l.stop, l.touch)
	var workers []*uniqueWorker
	for n := range uint64(3) {
		w := &uniqueWorker{uniqueLoad: l, conn: connect(t, url), r: rand.New(rand.NewPCG(l.seed, 20+n))}
		workers = append(workers, w)
		start(&busy, 20+n, l.stop, func(ctx context.Context, beat *pgx.Conn, _ *rand.Rand) error {
			if w.id != 0 && w.r.IntN(20) == 0 {
				if _, err := beat.Exec(ctx, `SELECT weir.heartbeat($1)`, w.id); err != nil {
					return err
				}
			}
			_, err := w.step(ctx, true)
			return err
		})
	}
	start(&others, 30, l.drained, l.maintain)
	select {
	case <-time.After(loadTime(3 * time.Second)):
	case <-ctx.Done():
	}
	close(l.stop)
	busy.Wait()
	until(t, "all jobs have ended", func() bool {
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		for _, w := range workers {
			for n := 1; n > 0; {
				var err error
				if n, err = w.step(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
		}
		return value[int64](t, conn, `SELECT sum(available + running + scheduled)::bigint FROM weir.queues() WHERE name IN ('a', 'b')`) == 0
	})
	close(l.drained)
	others.Wait()
	if ctx.Err() != nil {
		t.Fatal(context.Cause(ctx))
	}
	l.judge(conn)
	l.wantNoneHeld(conn, workers[0])
}

// maintain does what a maintainer does, and fills segments, so that they are reclaimed.
func (l *uniqueLoad) maintain(ctx context.Context, conn *pgx.Conn, r *rand.Rand) error {
	var filler int32
	if err := conn.QueryRow(ctx, `SELECT weir._start('filler', '{filler}')`).Scan(&filler); err != nil {
		return err
	}
	for _, chore := range []string{
		`SELECT 'promoted' FROM weir._promote(1000) WHERE promoted > 0`,
		`SELECT split_part(weir._rotate(), ' ', 1)`,
		`SELECT 'promoted' FROM weir._promote(3) WHERE promoted > 0`,
		`SELECT split_part(weir._rotate_later(65536), ' ', 1) || ' later'`,
		`SELECT CASE WHEN sum(r.relogged) > 0 THEN 'rescued' END FROM weir._rescue() r`,
		`SELECT split_part(weir._tidy(), ' ', 1)`,
		`SELECT NULL::text FROM (SELECT weir.enqueue_many(array_fill('filler'::text, ARRAY[100]), array_fill('k'::text, ARRAY[100]), array_fill(jsonb_build_object('pad', repeat('x', 800)), ARRAY[100]))) e`,
	} {
		var did *string
		if err := conn.QueryRow(ctx, chore).Scan(&did); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%s: %w", chore, err)
		}
		if did != nil {
			l.count(*did)
		}
		time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
	}
	got, err := claim(ctx, conn, filler, []string{"filler"}, []int32{960})
	if err == nil {
		err = complete(ctx, conn, filler, got)
	}
	return err
}

// judge compares what the clients saw with what docs/unique.md promises.
func (l *uniqueLoad) judge(conn *pgx.Conn) {
	t := l.t
	reasons := map[int64]string{} // the last of each job
	rows, err := conn.Query(t.Context(), `SELECT id, coalesce(reason, '') FROM public.dropped ORDER BY no`)
	if err != nil {
		t.Fatal(err)
	}
	var id int64
	var reason string
	if _, err := pgx.ForEachRow(rows, []any{&id, &reason}, func() error { reasons[id] = reason; return nil }); err != nil {
		t.Fatal(err)
	}
	// standsFor returns the job that a dropped one was dropped for, or nil.
	standsFor := func(j *uniqueJob) *uniqueJob {
		_, no, _ := strings.Cut(reasons[j.id], " job ")
		n, _ := strconv.ParseInt(no, 10, 64)
		return l.jobs[n]
	}
	ran := map[int64]int{}
	for key, runs := range l.runs {
		runs = slices.DeleteFunc(runs, func(r *uniqueRun) bool { return r.from == 0 })
		slices.SortFunc(runs, func(a, b *uniqueRun) int { return cmp.Compare(a.from, b.from) })
		l.runs[key] = runs
		var last *uniqueRun
		for _, r := range runs {
			ran[r.ID]++
			j := l.jobs[r.ID]
			if j.fate == rolledBack {
				t.Errorf("job %d of %q ran, though it was rolled back", r.ID, key)
			}
			if uniqueRules[j.rule].name == "finished" && last != nil && r.from < last.to {
				t.Errorf("%q: job %d ran from %d on, while job %d ran from %d to %d", key, r.ID, r.from, last.ID, last.from, last.to)
			}
			if last == nil || r.to > last.to {
				last = r
			}
		}
	}
	logged, dropped := 0, 0
	for _, j := range l.jobs {
		if j.fate != committed {
			continue
		}
		logged++
		reason, isDropped := reasons[j.id]
		if !isDropped && (ran[j.id] == 0 || j.final == 0 && !j.touched) {
			t.Errorf("job %d of %q (%s) is lost: it ran %d times, and neither ended nor was dropped", j.id, j.key, uniqueRules[j.rule].name, ran[j.id])
		}
		if j.final > 0 || !isDropped || j.touched {
			continue
		}
		dropped++
		isCovered := slices.ContainsFunc(l.runs[j.key], func(r *uniqueRun) bool { return r.from > j.since })
		for other, depth := standsFor(j), 0; !isCovered && other != nil && depth < 100; other, depth = standsFor(other), depth+1 {
			isCovered = other.touched // so was what it stood for
			switch rule := uniqueRules[j.rule]; {
			case depth > 0:
			case rule.name == "finished":
				isCovered = isCovered || other.final == 0 || other.final > j.since
			case rule.window > 0:
				isCovered = isCovered || j.at.Sub(other.at).Abs() < rule.window
			}
		}
		if !isCovered {
			t.Errorf("job %d of %q (%s), logged at %d, was dropped (%q), though no run of its key began afterwards", j.id, j.key, uniqueRules[j.rule].name, j.since, reason)
		}
	}
	for _, a := range l.asked {
		isCovered := slices.ContainsFunc(l.runs[a.key], func(r *uniqueRun) bool { return r.from > a.since })
		for j, depth := l.jobs[a.id], 0; !isCovered && j != nil && depth < 100; j, depth = standsFor(j), depth+1 {
			isCovered = j.touched || j.fate != committed
		}
		if !isCovered {
			t.Errorf("a call for %q, at %d, was told of job %d, and no run of its key began afterwards", a.key, a.since, a.id)
		}
	}
	var did []string
	l.did.Range(func(what, n any) bool {
		did = append(did, fmt.Sprint(what, ": ", n.(*atomic.Int64).Load()))
		return true
	})
	slices.Sort(did)
	t.Logf("%d jobs were committed, %d of them ran, %d were dropped without a run of their last attempt; %s", logged, len(ran), dropped, strings.Join(did, ", "))
	if dropped == 0 || len(ran) == 0 {
		t.Error("the load has not tested anything")
	}
}

// wantNoneHeld checks that a job of each key is new, and runs.
func (l *uniqueLoad) wantNoneHeld(conn *pgx.Conn, w *uniqueWorker) {
	t := l.t
	var want []int64
	for n := range 2 * len(uniqueRules) {
		rule := uniqueRules[n%len(uniqueRules)]
		var id int64
		duplicate := true
		enqueue := func() bool {
			if err := conn.QueryRow(t.Context(), `SELECT id, duplicate FROM weir.enqueue_unique($1, 'k', unique_key => $2`+rule.args+`)`,
				l.queues[n%len(l.queues)], fmt.Sprint("key ", n)).Scan(&id, &duplicate); err != nil {
				t.Fatal(err)
			}
			return !duplicate
		}
		if rule.window > 0 {
			until(t, "the time within which a key is used once is over", enqueue)
		} else if !enqueue() {
			t.Errorf("key %d (%s) is held by job %d, though all jobs have ended", n, rule.name, id)
		}
		want = append(want, id)
	}
	var got []int64
	for _, queue := range l.queues {
		got = append(got, idsOf(claimAll(t, conn, w.id, queue))...)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("jobs %v run, want %v", got, want)
	}
}
