package lab

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/pgtest"
)

// private returns a private server for scenario pinned.
func private(t *testing.T) *site {
	t.Helper()
	c := tiny("pinned", "")
	s, err := openSite(t.Context(), "", 0, false, pinnedScenario.needs(&c), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestEachPinHoldsTheHorizonAndLetsItGo(t *testing.T) {
	t.Parallel()
	s := private(t)
	for _, pin := range pinKinds() {
		t.Run(pin.name, func(t *testing.T) {
			if why := pin.unable(t.Context(), s); why != "" {
				t.Fatal(why)
			}
			conn, err := connect(t.Context(), s.url, watcherName, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer closeConn(conn)
			trial := &trial{site: s, pin: pin}
			if err := pin.prepare(t.Context(), trial); err != nil {
				t.Fatal(err)
			}
			if trial.holder != nil {
				defer closeConn(trial.holder)
			}
			if _, err := conn.Exec(t.Context(), `CREATE TABLE weir_lab.row (n int); INSERT INTO weir_lab.row SELECT generate_series(1, 100)`); err != nil {
				t.Fatal(err)
			}
			defer conn.Exec(context.Background(), `DROP TABLE weir_lab.row`)
			if err := pin.open(t.Context(), trial); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), `DELETE FROM weir_lab.row`); err != nil {
				t.Fatal(err)
			}
			vacuumed := func() bool { // a table without rows is truncated
				_, err := conn.Exec(t.Context(), `VACUUM weir_lab.row`)
				var bytes int64
				if err == nil {
					err = conn.QueryRow(t.Context(), `SELECT pg_relation_size('weir_lab.row')`).Scan(&bytes)
				}
				if err != nil {
					t.Fatal(err)
				}
				return bytes == 0
			}
			if vacuumed() {
				t.Error("the rows were removed in spite of the pin")
			}
			age := oldestTransaction(conn)
			pgtest.Until(t, "the oldest transaction ages", func() bool {
				seconds, err := age.read(t.Context())
				return err == nil && seconds > 0.1
			})
			if err := pin.end(t.Context(), trial); err != nil {
				t.Fatal(err)
			}
			pgtest.Until(t, "the rows can be removed", vacuumed)
		})
	}
}

func TestTheGuardEndsThePin(t *testing.T) {
	t.Parallel()
	s := private(t)
	trial := &trial{PinnedSize: PinnedSize{Rate: 500, Workers: 2}, site: s, queue: guardQueue(queueNamed("SKIP LOCKED, DELETE")), pin: pinKinds()[0]}
	if err := trial.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	until, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- trial.run(t.Context(), until, load.NewTally()) }()
	pgtest.Until(t, "the guard ends the transaction", func() bool { return trial.guarded.Load() > 0 })
	cancel()
	if err := trial.end(t.Context(), pgtest.Receive(t, ended, "the queue stops")); err != nil {
		t.Error(err)
	}
}

// A lab that was killed leaves what no session belongs to.
func TestWhatAKilledLabHasPinnedIsReleased(t *testing.T) {
	t.Parallel()
	s := private(t)
	trial := &trial{site: s}
	for _, name := range []string{"slot", "prepared"} {
		pin, err := pinNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := pin.prepare(t.Context(), trial); err != nil {
			t.Fatal(err)
		}
		if err := pin.open(t.Context(), trial); err != nil {
			t.Fatal(err)
		}
	}
	closeConn(trial.holder)
	pgtest.Until(t, "nothing is left", func() bool {
		var left int
		if err := unpin(t.Context(), s.guard); err != nil {
			t.Fatal(err)
		}
		err := s.guard.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_prepared_xacts) + (SELECT count(*) FROM pg_replication_slots)`).Scan(&left)
		return err == nil && left == 0
	})
}

func TestPinnedSaysHowTheBacklogEnds(t *testing.T) {
	t.Parallel()
	p := phasesOf(10 * time.Second) // pinned from 2 s to 7 s
	k := &track{at: []float64{1, 2, 3, 5, 7, 8, 9, 10}}
	for _, c := range []struct {
		backlogs []float64
		after    float64
		gone     bool
	}{
		{[]float64{0, 0, 100, 500, 900, 400, 20, 10}, 2, true},
		{[]float64{0, 0, 100, 500, 900, 900, 900, 900}, 0, false},
		{[]float64{0, 0, 0, 0, 10, 900, 0, 0}, 0, true}, // there was none when the pin ended
	} {
		k.gauges = map[string][]float64{backlog: c.backlogs}
		if after, gone := k.goneAfter(p, 50); after != c.after || gone != c.gone {
			t.Errorf("%v: gone is %v after %g s, want %v after %g s", c.backlogs, gone, after, c.gone, c.after)
		}
	}
	way := func(name string, kind Kind, figures ...Figure) *Way {
		return &Way{Name: name, Kind: kind, Figures: figures}
	}
	v := pinnedVerdict(&Result{Ways: []*Way{
		way("SKIP LOCKED, DELETE, read pin", Collapse, Figure{claimBefore, 0.1, ""}, Figure{claimLate, 2, ""}, Figure{backlogAtRelease, 5000, ""}, Figure{goneAfter, 1.5, ""}, Figure{waitBefore, 4, ""}),
		way("100 at once, read pin", Fix, Figure{claimBefore, 0.1, ""}, Figure{claimLate, 0.5, ""}, Figure{goneAfter, 0, ""}, Figure{waitBefore, 290, ""}),
		way("recursive CTE, last id, read pin", Fix, Figure{goneAfter, 0, ""}, Figure{leftBehind, 7, ""}),
	}}, PinnedSize{Rate: 1000})
	if !v.Shown || v.Times != 20 || !strings.Contains(v.Text, "backlog of 5,000, which was gone 1.5 s after the pin had ended") || len(v.Fixes) != 2 ||
		!strings.Contains(v.Fixes[0], "a job waited for 290 ms") || !strings.Contains(v.Fixes[1], "7 jobs that committed late were never found") {
		t.Errorf("the verdict is %+v", v)
	}
}
