package proof

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestFailuresAreRetriedTogetherAsOneByOne: what follows is the same, whatever the jobs' keys, priorities, earlier errors, cancellations and texts, and each is claimed once. It costs a
// fraction. One that is unique or in a flow, or was retried or deleted meanwhile, is treated as by weir.retry.
func TestFailuresAreRetriedTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	queues := []string{"together", "single"}
	worker := startWorker(t, conn, queues...)
	for _, q := range queues {
		exec(t, conn, `SELECT weir.enqueue($1, 'k' || i % 3, jsonb_build_object('i', i, 'text', repeat('x', i * 500)), priority => 1 + i % 4, meta => CASE WHEN i % 5 = 0 THEN '{"m": 1}'::jsonb END,
				key => CASE WHEN i % 2 = 0 THEN 'tenant ' || i % 4 END, max_attempts => 1 + i % 3) FROM generate_series(1, 40) i`, q)
		exec(t, conn, `SELECT weir.enqueue_unique($1, 'unique', unique_key => 'only one')`, q)
		flow := value[int64](t, conn, `SELECT weir.flow('f')`)
		exec(t, conn, `SELECT weir.enqueue($1, 'member', flow => $2), weir.seal($2)`, q, flow)
		for tries := 0; ; tries++ { // until all have failed for good
			got := claimAll(t, conn, worker, q)
			if len(got) == 0 {
				break
			}
			final := slices.DeleteFunc(slices.Clone(got), func(a attempt) bool { return tries < 2 && a.Kind != "k0" })
			again := slices.DeleteFunc(got, func(a attempt) bool { return slices.Contains(final, a) })
			for _, a := range final {
				exec(t, conn, `SELECT weir.cancel($1)`, a.ID) // which comes too late
			}
			for outcome, of := range map[string][]attempt{"failed": final, "retried": again} {
				if refused, err := record(t.Context(), conn, worker, of, outcome, nil); err != nil || len(refused) > 0 {
					t.Fatal(err, refused)
				}
			}
			exec(t, conn, `UPDATE weir.later SET run_at = now()`)
			exec(t, conn, `SELECT weir._promote()`)
		}
		// In the same order in both queues: one is retried before, and one is deleted.
		exec(t, conn, `SELECT weir.retry((SELECT min(j.id) FROM weir.jobs('failed', $1) j)), weir.delete((SELECT max(j.id) FROM weir.jobs('failed', $1) j WHERE j.kind = 'k1'))`, q)
	}
	ids := value[[]int64](t, conn, `SELECT array_agg(j.id ORDER BY j.id) FROM weir.jobs('failed', 'single') j`)
	single := blocks(t, conn, fmt.Sprintf(`SELECT weir.retry(id) FROM unnest(ARRAY[%s]::bigint[]) id`, joined(ids)))
	exec(t, conn, `CREATE TEMP TABLE step (n integer, next text)`)
	together := blocks(t, conn, `INSERT INTO step SELECT r.retried, r.next FROM weir.retry_where('together', max_rows => 1000) r`)
	if n := value[int](t, conn, `SELECT n FROM step`); n != len(ids) || value[bool](t, conn, `SELECT next IS NOT NULL FROM step`) {
		t.Errorf("%d of %d failures were retried together", n, len(ids))
	}
	if together > single/2 {
		t.Errorf("retried together, %d jobs touch %d blocks, and one by one %d", len(ids), together, single)
	}
	// What the rows of the next attempts hold, and what readers see.
	rows := func(queue string) []string {
		return column[string](t, conn, `
			SELECT concat_ws(' ', j.kind, j.args, j.meta, j.lane & 549755813887, j.attempt, j.max_attempts, j.key, j.unique_key IS NULL, j.flow IS NULL, i.state, i.cancel_requested,
				(SELECT string_agg(concat_ws('/', e->>'attempt', e->>'outcome', e->>'error'), ', ' ORDER BY nr) FROM jsonb_array_elements(j.errors) WITH ORDINALITY x(e, nr)),
				(SELECT string_agg(concat_ws('/', e->>'attempt', e->>'outcome', e->>'error'), ', ' ORDER BY nr) FROM jsonb_array_elements(i.errors) WITH ORDINALITY x(e, nr)))
			FROM weir.job j JOIN weir.queue q ON q.id = j.lane >> 39 CROSS JOIN LATERAL weir.job_info(j.id) i
			WHERE q.name = $1 AND j.attempt = i.attempt AND i.state = 'available' ORDER BY j.id`, queue)
	}
	if a, b := rows("together"), rows("single"); !slices.Equal(a, b) || len(a) != len(ids)+1 {
		t.Errorf("retried together:\n%s\none by one:\n%s", lines(a), lines(b))
	}
	for _, q := range queues {
		got := claimAll(t, conn, worker, q)
		seen := map[int64]bool{}
		for _, a := range got {
			seen[a.ID] = true
		}
		if len(got) != len(ids)+1 || len(seen) != len(got) {
			t.Errorf("%s: %d attempts of %d jobs were claimed, want %d", q, len(got), len(seen), len(ids)+1)
		}
	}
	exec(t, conn, `TRUNCATE step`)
	exec(t, conn, `INSERT INTO step SELECT r.retried, r.next FROM weir.retry_where('together') r`)
	if n := value[int](t, conn, `SELECT n FROM step`); n != 0 {
		t.Errorf("%d jobs that run are retried again", n)
	}
}

func joined(ids []int64) string {
	text := ""
	for i, id := range ids {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(id)
	}
	return text
}

func lines(all []string) string {
	text := ""
	for _, s := range all {
		if len(s) > 300 {
			s = s[:100] + " … " + s[len(s)-200:]
		}
		text += s + "\n"
	}
	return text
}
