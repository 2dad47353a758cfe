package weirrelay

import (
	"context"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/store"
)

// forgetting is a target that keeps no position.
type forgetting struct{}

func (forgetting) Begin(_ context.Context, recorded weir.Position) (weir.Position, error) {
	return recorded, nil
}

func (forgetting) Send(context.Context, []Record) error { return nil }

// TestWhatTheDatabaseHasLostIsSaidIfTheTargetKeepsNoPosition: by a relay that lived through the failover, and knows what it has sent. It says it once.
func TestWhatTheDatabaseHasLostIsSaidIfTheTargetKeepsNoPosition(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	log := hub.NewLog(store.New(pool, 0), nil)
	var ends []hub.Position
	for range 2 {
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('c', 'x')`); err != nil {
			t.Fatal(err)
		}
		at, err := log.Newest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, at)
	}
	var gaps []weir.Gap
	r, err := newRelay(Config{Name: "r", Pool: pool, Target: forgetting{}, Routes: []Route{{Channels: "c"}}, Observe: func(p Progress) {
		if p.Gap != nil {
			gaps = append(gaps, *p.Gap)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	recorded, lost := weir.Position(ends[0].String()), hub.Position{Epoch: ends[1].Epoch, Tick: ends[1].Tick + 5, Index: 1}
	if err := r.record(t.Context(), recorded, ""); err != nil {
		t.Fatal(err)
	}
	r.had = weir.Position(lost.String())
	for range 2 {
		if at, _, err := r.begin(t.Context()); err != nil || at != recorded {
			t.Errorf("it begins at %q, %v; want %q", at, err, recorded)
		}
	}
	if len(gaps) != 1 || gaps[0].From != weir.Position(lost.String()) || gaps[0].To != weir.Position(ends[1].String()) {
		t.Errorf("gaps: %+v, want one from %s to %s", gaps, lost, ends[1])
	}
}

// TestAPositionThatWasLostIsNotTheEnd: before the subscription has said where it goes on, it is at a position whose number may be greater than that of the end.
func TestAPositionThatWasLostIsNotTheEnd(t *testing.T) {
	t.Parallel()
	r := &relay{Config: Config{Until: "2.5.0"}, astray: "1.1000.1"}
	b := batch{relay: r, ahead: newAhead(1, 1)}
	for _, c := range []struct {
		mark, want weir.Position
		reached    bool
	}{{"1.1000.1", "", false}, {"2.4.0", "2.4.0", false}, {"2.6.0", "2.5.0", true}} {
		if b.add(item{mark: c.mark}); b.next != c.want || r.isReached(b.next) != c.reached {
			t.Errorf("at %s it has come to %q, reached: %t; want %q", c.mark, b.next, r.isReached(b.next), c.want)
		}
	}
}
