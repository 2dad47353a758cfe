package hub

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// gate is a sink that waits in its nth Deliver until it is opened.
type gate struct {
	*box
	calls int
	at    int
	here  chan struct{} // closed when it waits
	open  chan struct{}
}

func (g *gate) Deliver(events []Event) error {
	if g.calls++; g.calls == g.at {
		close(g.here)
		<-g.open
	}
	return g.box.Deliver(events)
}

// TestReplayOverALogThatIsSetBackEndsInAGap: the log is set back, and reuses the same numbers, while subscribers replay it from
// memory and from the database. Those that received messages of the lost part receive a gap; nobody misses a message of the new log.
func TestReplayOverALogThatIsSetBackEndsInAGap(t *testing.T) {
	t.Parallel()
	const old, common, added = 40, 25, 30
	for name, ring := range map[string]int{"from the database": 1, "from memory": 0} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.Database(t)
			pool := pgtest.Pool(t, url)
			h, _ := run(t, Config{Source: NewLog(store.New(pgtest.Pool(t, url), 0), nil), RingBytes: ring})
			_, witness := join(t, h, "c")
			say := func(text string) string {
				exec(t, pool, `SELECT weir.publish('c', $1)`, text)
				witness.until(t, text) // so that each is a tick of its own
				return text
			}
			was := h.Position()
			say("the first, with which an epoch begins")
			begin := was
			for ; begin == was; begin = h.Position() {
				<-time.After(time.Millisecond)
			}
			var before, after []string
			for i := range old {
				before = append(before, say(fmt.Sprint("old ", i)))
			}
			var gates []*gate
			open := sync.OnceFunc(func() {
				for _, g := range gates {
					close(g.open)
				}
			})
			defer open() // otherwise the hub would wait for them
			for i := 1; i <= old+1; i += 4 {
				g := &gate{box: newBox(), at: i, here: make(chan struct{}), open: make(chan struct{})}
				s, err := h.Join(g, Options{})
				if err != nil {
					t.Fatal(err)
				}
				// From any position, so that some wait in the middle of a part they have read, and others in the next.
				at := begin
				at.Tick += int64(i / 2)
				if err := s.Resume(t.Context(), at, Channel("c")); err != nil {
					t.Fatal(err)
				}
				gates = append(gates, g)
			}
			for _, g := range gates {
				if name == "from the database" && g.at+g.at/2 <= old {
					<-g.here
				}
			}
			// In one transaction, or the hub would find the messages again, which are lost too.
			exec(t, pool, `WITH gone AS (DELETE FROM weir.tick WHERE seq > $1), old AS (UPDATE weir.epoch SET started_at = started_at - interval '1 hour'),
				lost AS (DELETE FROM weir.message WHERE convert_from(payload, 'UTF8') = ANY ($2))
				SELECT setval('weir.tick_seq', $1)`, begin.Tick-1+common, before[common:])
			for i := range added {
				after = append(after, say(fmt.Sprint("new ", i)))
			}
			open()
			for _, g := range gates {
				var got []string
				gap := -1
				for i, e := range g.until(t, after[added-1]) {
					if e.Message != nil {
						got = append(got, string(e.Message.Payload))
					} else if gap = i; e.Gap.Reason != Unknown {
						t.Errorf("gate %d: a gap because of %s", g.at, e.Gap.Reason)
					}
				}
				first := g.at / 2
				n := len(got) - added // of the old log
				if n < 0 || !slices.Equal(got[n:], after) || !slices.Equal(got[:n], before[first:first+n]) {
					t.Errorf("gate %d: got %s", g.at, strings.Join(texts(g.snapshot()), ", "))
				}
				if first+n > common != (gap >= 0) || gap >= 0 && gap != n {
					t.Errorf("gate %d: had %d messages of the old log, both have %d, and the gap came after %d", g.at, first+n, common, gap)
				}
			}
		})
	}
}

// TestAPositionBeyondALogThatWasSetBackGoesOnWhereBothParted: in the middle of a tick, too, while the new log is still shorter than the old one was.
func TestAPositionBeyondALogThatWasSetBackGoesOnWhereBothParted(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	say := func(text string) (newest, epoch int64) {
		exec(t, pool, `SELECT weir.publish('c', $1)`, text)
		exec(t, pool, `SELECT weir._await_tick(weir.newest_tick())`)
		return scan[int64](t, pool, `SELECT weir.newest_tick()`), scan[int64](t, pool, `SELECT weir._epoch_of(weir.newest_tick())`)
	}
	newest, epoch := say("of both")
	exec(t, pool, `UPDATE weir.epoch SET started_at = started_at - interval '1 hour'`)
	if _, other := say("new 1"); other == epoch {
		t.Fatal("no epoch begins")
	}
	say("new 2")
	h := start(t, url)
	for _, index := range []int32{0, 1} {
		lost := Position{Epoch: epoch, Tick: newest + 100, Index: index}
		parted := Position{Epoch: epoch, Tick: newest + 1}
		if got, want := resume(t, h, lost, "c").texts(t, 3), []string{fmt.Sprintf("gap unknown %s %s", lost, parted), "c=new 1", "c=new 2"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
