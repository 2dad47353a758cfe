package hub

import (
	"slices"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// TestAHubThatStartsDeliversNothingOlder: what was committed while no hub ran, and is in no tick yet, is no news for subscribers of the hub that starts then; what a
// transaction that was still open commits later is.
func TestAHubThatStartsDeliversNothingOlder(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	exec(t, pool, `SELECT weir.publish('a', 'first')`)
	before := scan[int64](t, pool, `SELECT weir.newest_tick()`)
	for range 3 { // more than one tick
		exec(t, pool, `SELECT weir.publish_many(array_fill('a'::text, ARRAY[6000]), array_fill('old'::text, ARRAY[6000]), keep => true)`)
	}
	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(t.Context(), `SELECT weir.publish('a', 'late')`); err != nil {
		t.Fatal(err)
	}
	h := start(t, url)
	_, box := join(t, h, "a")
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT weir.publish('a', 'new')`)
	if got, want := box.texts(t, 2), []string{"a=late", "a=new"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// They are in the log for those who resume.
	resumed := resume(t, h, Behind(store.Place{Tick: before, Epoch: anyEpoch}), "a")
	if got := resumed.texts(t, 18003); got[0] != "a=first" || got[18000] != "a=old" || got[18001] != "a=late" {
		t.Errorf("resumed: got %q first, then %q and %q, want first, old and late", got[0], got[18000], got[18001])
	}
}
