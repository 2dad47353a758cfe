package proof

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestStorageCountsEveryTableOnce: the sizes add up to those of all tables of the schema, whatever tables a later version adds, and the states of the segments
// are those by which rotation goes.
func TestStorageCountsEveryTableOnce(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	exec(t, conn, `SELECT weir.enqueue('q', 'k', jsonb_build_object('i', i)) FROM generate_series(1, 100) i`)
	exec(t, conn, `SELECT weir.publish('c', 'p')`)
	if wrong := value[int64](t, conn, `SELECT (SELECT sum(s.bytes) FROM weir.storage() s)
		- (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind = 'r')`); wrong != 0 {
		t.Errorf("the sizes differ from those of the tables by %d bytes", wrong)
	}
	for _, name := range column[string](t, conn, `SELECT format('%s %s', s.log, s.segment) FROM weir.storage() s WHERE s.index_bytes > s.bytes OR s.bytes < 0 OR s.segment IS NOT NULL AND s.max_bytes IS NULL`) {
		t.Errorf("the sizes of %s are impossible", name)
	}
	states := func() string {
		t.Helper()
		return value[string](t, conn, `SELECT string_agg(s.state, ' ' ORDER BY s.segment) FROM weir.storage() s WHERE s.log = 'job'`)
	}
	if got := states(); got != "active free free free" {
		t.Errorf("the segments are %s", got)
	}
	exec(t, conn, `SELECT weir.set('completed_retention', '1 hour')`)
	exec(t, conn, `UPDATE weir.segment SET at = at - interval '31 minutes'`)
	exec(t, conn, `SELECT weir._rotate()`)
	if got := states(); got != "closed active free free" {
		t.Errorf("after rotation, the segments are %s", got)
	}
	if !value[bool](t, conn, `SELECT s.reclaim_at BETWEEN now() + interval '59 minutes' AND now() + interval '61 minutes' AND s.opened_at < now() - interval '30 minutes' AND s.holders = '{}'
		FROM weir.storage() s WHERE s.log = 'job' AND s.state = 'closed'`) {
		t.Error("it is not said until when the closed segment is kept")
	}
	exec(t, conn, `UPDATE weir.segment SET at = at - interval '2 hours'`)
	exec(t, conn, `SELECT weir._rotate()`)
	if got := states(); got != "free active free free" {
		t.Errorf("after reclaiming, the segments are %s", got)
	}
}
