package presence

import (
	"fmt"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestRepeatedFramesChangeNothing: who may read and publish with SQL can publish again what hubs have signed. Neither do the members of a hub that has died come back,
// at hubs old and new, nor does a hub take another for dead because it hears its own beats too often.
func TestRepeatedFramesChangeNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	a, b := start(t, url, "secret"), start(t, url, "secret")
	a.Enter("room.1", "ada", nil)
	b.Enter("room.1", "bob", nil)
	a.until(t, "room.1", "ada bob")
	b.kill()
	a.until(t, "room.1", "ada")
	replay := func(of string) {
		t.Helper()
		tag, err := pool.Exec(t.Context(), `SELECT weir.publish('$weir.presence', payload, keep => true) FROM
			(SELECT convert_from(payload, 'UTF8') AS payload FROM weir.message WHERE channel = '$weir.presence') m WHERE payload LIKE '%' || $1 || '%'`, of)
		if err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("nothing of %s is published again: %v %v", of, tag, err)
		}
	}
	late := start(t, url, "secret")
	late.Enter("room.1", "carl", nil)
	for _, n := range []node{a, late} {
		n.until(t, "room.1", "ada carl")
	}
	for i := range 5 {
		replay(b.id)
		replay(a.id) // its beats too, many times
		user := fmt.Sprintf("dan %d", i)
		late.Enter("room.2", user, nil) // what is known at a now was published after the replay
		pgtest.Until(t, "the replay has arrived", func() bool { return a.List("room.2", "", 0).Count == i+1 })
		for _, n := range []node{a, late} {
			if got := n.names("room.1"); got != "ada carl" {
				t.Fatalf("after what hubs have said was published again, the members are %s", got)
			}
		}
	}
}
