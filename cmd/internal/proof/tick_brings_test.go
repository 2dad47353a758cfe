package proof

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestTickBringsItsMessages: a tick returns its messages if there are few, the same ones that weir.read returns, and none otherwise; if it contains
// all that is committed, the next poll finds nothing.
func TestTickBringsItsMessages(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	exec(t, conn, `SELECT weir.publish('c', 'first')`)
	_, at := hearAll(t, conn, newest(t, conn))
	const limit = 5
	rng := rand.New(rand.NewPCG(newSeed(t), 1))
	said := 0
	say := func(q querier, n int) {
		for range n {
			exec(t, q, `SELECT weir.publish($1, $2, $3)`, fmt.Sprint("c", rng.IntN(3)), fmt.Sprint("m", said), rng.IntN(2) == 0)
			said++
		}
	}
	var open []*pgx.Conn
	brought, left, heard := 0, 0, 0
	for i := range 200 {
		switch end := i > 190; {
		case i == 100: // one that is too large, whatever the plan
			say(conn, limit+1)
		case !end && len(open) < 4 && rng.IntN(2) == 0:
			other := connect(t, url)
			exec(t, other, `BEGIN`)
			say(other, rng.IntN(4))
			open = append(open, other)
		case len(open) > 0 && (end || rng.IntN(2) == 0):
			k := rng.IntN(len(open))
			exec(t, open[k], `COMMIT`)
			_ = open[k].Close(t.Context())
			open = append(open[:k], open[k+1:]...)
		default:
			say(conn, rng.IntN(3))
		}
		if i != 100 && rng.IntN(2) == 0 {
			continue
		}
		var seqs []int64
		var counts []int32
		var ids *int64
		var seen, got *string
		err := conn.QueryRow(t.Context(), `SELECT t.seqs, t.counts, t.ids_now, t.seen_now::text,
				(SELECT string_agg(m::text, ' ' ORDER BY m.id) FROM unnest(t.message_ids, t.xids, t.channels, t.payloads, t.binaries, t.keeps) m(id, xid, channel, payload, binary_, keep))
			FROM weir._await_tick($1, most_messages => $2) t`, at, limit).Scan(&seqs, &counts, &ids, &seen, &got)
		if err != nil {
			t.Fatal(err)
		}
		if len(seqs) == 0 {
			continue
		}
		want := value[string](t, conn, `SELECT string_agg(m::text, ' ' ORDER BY m.id) FROM weir.read($1) m`, seqs[0])
		switch {
		case len(seqs) != 1 || seqs[0] != at+1:
			t.Fatalf("the ticks %v follow %d, want one", seqs, at)
		case counts[0] > limit && got == nil:
			left++
		case counts[0] <= limit && got != nil && *got == want:
			brought++
		default:
			t.Errorf("tick %d of %d messages returned %v, but reading it returned %s", seqs[0], counts[0], got, want)
		}
		at = seqs[0]
		heard += int(counts[0])
		if again := column[int64](t, conn, `SELECT unnest(seqs) FROM weir._await_tick($1, $2, $3::text::pg_snapshot)`, at, ids, seen); len(again) > 0 {
			t.Errorf("after tick %d, which contained everything, there are ticks %v", at, again)
		}
	}
	rest, _ := hearAll(t, conn, at)
	for _, tick := range rest {
		heard += len(tick)
	}
	if heard != said || brought == 0 || left == 0 {
		t.Errorf("%d of %d messages are in ticks; %d were returned with their ticks, and %d were not", heard, said, brought, left)
	}
}
