package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestJobsOfManyQueuesInOneCallAreEachInTheirs: whatever the number of queues and their names, with keys and without, scheduled, and unique.
func TestJobsOfManyQueuesInOneCallAreEachInTheirs(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('Queue 7', 'k')`)
	for _, queues := range []int{1, 20, 21, 150} {
		names := column[string](t, conn, `SELECT (ARRAY['queue ', 'Queue ', 'QUEUE-', 'äqueue '])[1 + i % 4] || (i * 7919) % $1::int FROM generate_series(1, 300) i`, queues)
		for what, sql := range map[string]string{
			"plain": `SELECT weir.enqueue_many($1::text[], (SELECT array_agg('k'::text) FROM unnest($1::text[]) q))`,
			"with keys, scheduled": `SELECT weir.enqueue_many($1::text[], (SELECT array_agg('k'::text) FROM unnest($1::text[]) q), key => (SELECT array_agg('key'::text) FROM unnest($1::text[]) q),
				run_at => (SELECT array_agg(CASE WHEN u.nr % 2 = 0 THEN now() + interval '1 hour' END ORDER BY u.nr) FROM unnest($1::text[]) WITH ORDINALITY u(q, nr)))`,
			"unique": `SELECT weir.enqueue_many((SELECT jsonb_agg(jsonb_build_object('queue', u.q, 'kind', 'k', 'unique', jsonb_build_object('key', gen_random_uuid())) ||
				CASE WHEN u.nr % 2 = 0 THEN jsonb_build_object('run_at', now() + interval '1 hour') ELSE '{}' END ORDER BY u.nr) FROM unnest($1::text[]) WITH ORDINALITY u(q, nr)))`,
		} {
			ids := value[[]int64](t, conn, sql, names)
			if n := value[int](t, conn, `SELECT count(*)::int FROM unnest($1::bigint[], $2::text[]) u(id, queue) WHERE (SELECT i.queue FROM weir.job_info(u.id) i) IS DISTINCT FROM u.queue`, ids, names); n != 0 || len(ids) != len(names) {
				t.Errorf("%s, %d numbers: of %d jobs, %d are in another queue than asked for", what, queues, len(ids), n)
			}
		}
	}
}
