package lab

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/bouncer"
	"github.com/weir-pg/weir/internal/pgtest"
)

func TestTheTreesVerdictSaysWhatWasNotReached(t *testing.T) {
	t.Parallel()
	way := func(name string, kind Kind, rate float64, multixact float64, figures ...Figure) *Way {
		waits := []Wait{{Event: "Lock:transactionid", Class: "row-lock", Share: 0.5}, {Event: "LWLock:MultiXactOffsetBuffer", Class: "multixact", Share: multixact}}
		dominant := Dominant{"row-lock", 0.5}
		if multixact > 0.5 {
			dominant = Dominant{"multixact", multixact}
		}
		return &Way{Name: name, Kind: kind, Unit: "items", Rate: rate, Waits: waits, Dominant: dominant, Figures: append(figures, Figure{"MultiXacts per item", 12, ""})}
	}
	for _, c := range []struct {
		multixact float64
		want      string
	}{{0.2, "20% of the time (foreign keys alone, many sessions): not the dominant wait. This machine has not reached"}, {0.9, "90% of the time (foreign keys alone, many sessions): the dominant wait, as in the story"}} {
		v := treeVerdict(&Result{Ways: []*Way{
			way("as it was", Collapse, 100, 0, Figure{"connections in use at 60 items/s, mean", 20, ""}),
			way(crowdWay, Collapse, 50, c.multixact),
			way("as it was, a pooler", Symptom, 110, 0),
			way(halfWay, Symptom, 80, 0),
			way("+ deltas, coalesced", Fix, 900, 0, Figure{deadPerItem, 1.5, ""}, Figure{"connections in use at 60 items/s, mean", 2, ""}),
		}})
		for _, want := range []string{c.want, "20 connections in use on average before the fixes, and 2 with them"} {
			if !strings.Contains(v.Text, want) {
				t.Errorf("the verdict does not say %q: %s", want, v.Text)
			}
		}
		all := strings.Join(v.Fixes, "\n")
		for _, want := range []string{"1.1 times the rate without it; all fixes bring 9 times", "twice the cores bring 1.25 times the items", "It leaves 1.5 dead rows behind for each item"} {
			if !strings.Contains(all, want) {
				t.Errorf("the sentences do not say %q: %s", want, all)
			}
		}
		if v.Times != 9 || len(v.Fixes) != 5 {
			t.Errorf("%+v", v)
		}
	}
}

// A way that was too short to be sampled waits for something that nobody knows, and an odd number of cores has no half.
func TestTheTreesVerdictSaysNothingThatWasNotSeen(t *testing.T) {
	t.Parallel()
	was, half := &Way{Name: "as it was", Kind: Collapse, Rate: 100, Unit: "items"}, &Way{Name: halfWay, Kind: Symptom, Rate: 40, Unit: "items", Figures: []Figure{{moreCores, 2.5, "times"}}}
	flows := &Way{Name: treeFlowsName, Kind: Fix, Unit: "nodes", Rate: 90, Figures: []Figure{{rowsPerSec, 90, "rows/s"}, {namedPerNode, 10, "names"}}}
	was.Figures = []Figure{{rowsPerSec, 180, "rows/s"}}
	v := treeVerdict(&Result{Ways: []*Way{was, half, {Name: "+ deltas, coalesced", Kind: Fix, Rate: 900, Figures: []Figure{{deadPerItem, 1.001, "rows"}}}, flows}})
	all := v.Text + "\n" + strings.Join(v.Fixes, "\n")
	for _, want := range []string{
		"the time was too short to see whether the fleet waits for them", "Dominant wait: unknown", "2.5 times the cores bring 2.5 times the items", "It leaves 1 dead row behind",
		"each of which writes a row and names 10 children: 90 rows per second, 0.5 times the 180 that the fleet writes as it was",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the verdict does not say %q: %s", want, all)
		}
	}
	if strings.Contains(all, "0% of the time") || strings.Contains(all, "twice") {
		t.Errorf("the verdict says what nobody has seen: %s", all)
	}
}

// TestStatementsThatWriteNoRowAreNotNoStatements: in a short time hardly any key is new.
func TestStatementsThatWriteNoRowAreNotNoStatements(t *testing.T) {
	t.Parallel()
	tree := &tree{}
	tree.calls.Store(700)
	if n, ok := (&Way{Figures: tree.figures(&Way{Done: 35, Seconds: 1}, 0)}).Figure(perRow); ok {
		t.Errorf("700 statements that write no row are %g for each row", n)
	}
	tree.rows.Store(2)
	if n, _ := (&Way{Figures: tree.figures(&Way{Done: 35, Seconds: 1}, 0)}).Figure(perRow); n != 350 {
		t.Errorf("700 statements for 2 rows are %g for each row", n)
	}
}

// What a worker does after the measured time is no part of its rate.
func TestRowsOfFlowsAreThoseOfTheNodesThatCount(t *testing.T) {
	t.Parallel()
	figures := flowsFigures(50, load.TreeCount{Nodes: 100, Rows: 100, Inserts: 100, Named: 1000}, load.TreeCount{Nodes: 200, Rows: 200, Inserts: 210, Named: 2200})
	w := &Way{Figures: figures}
	for name, want := range map[string]float64{rowsPerSec: 50, perRow: 1.1, namedPerNode: 12} {
		if got, _ := w.Figure(name); got != want {
			t.Errorf("%s: %g, want %g", name, got, want)
		}
	}
}

// TestTheFirstItemsHaveNoMoreNewChildrenThanLaterOnes: otherwise a slow variant, which gets through few, has more to write for each than a fast one.
func TestTheFirstItemsHaveNoMoreNewChildrenThanLaterOnes(t *testing.T) {
	t.Parallel()
	s, err := openSite(t.Context(), pgtest.Empty(t), 0, false, needs{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for _, f := range []fixes{{}, {noForeignKeys: true, remember: true}, {uncounted: true}} {
		tree, err := plantTree(t.Context(), s, TreeSize{}.withDefaults(), f)
		if err != nil {
			t.Fatal(err)
		}
		const items = 100
		fresh := 0
		for range items {
			it := tree.next(rand.Int64N)
			for _, key := range it.keys {
				if !tree.known.has(it.parent, key) {
					fresh++
				}
			}
		}
		if want := items * tree.New; fresh != want {
			t.Errorf("%+v: %d children of the first %d items are new, want %d", f, fresh, items, want)
		}
		if err := tree.work(t.Context(), s.guard); err != nil {
			t.Fatal(err)
		}
		if err := tree.check(t.Context(), s.guard); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestAWorkerOfFlowsThatFailsIsNotWaitedFor: what it failed with is the error.
func TestAWorkerOfFlowsThatFailsIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s, err := openSite(t.Context(), pgtest.Empty(t), 0, false, needs{weir: true}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	broken := errors.New("broken")
	flows := flowsOfTests()
	flows.Work = func(_ context.Context, in io.Reader, _, _ io.Writer) error {
		return errors.Join(json.NewDecoder(in).Decode(new(load.TreeWork)), broken)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := &treePlan{run: &run{Config: Config{Tree: TreeSize{Flows: flows}.withDefaults(), Progress: func(Progress) {}}, site: s, result: &Result{}}}
	if err := p.flows(ctx, s.guard); !errors.Is(err, broken) {
		t.Errorf("got %v, want what the worker failed with", err)
	}
}

// TestAPoolerThatReachesNoServerIsLeftOut: the other variants are measured all the same.
func TestAPoolerThatReachesNoServerIsLeftOut(t *testing.T) {
	t.Parallel()
	if _, err := bouncer.Find(); err != nil {
		t.Skip(err)
	}
	s, err := openSite(t.Context(), pgtest.Empty(t), 0, false, needs{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.url = "postgres:///postgres?host=/nowhere"
	p := &treePlan{run: &run{Config: Config{Duration: time.Second, Progress: func(Progress) {}}, site: s, result: &Result{}}}
	if err := p.measure(t.Context(), treeWay{treeStep: treeSteps[0], size: TreeSize{Workers: 2}.withDefaults(), pool: 1}); err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(p.result.Notes, "\n"); len(p.result.Ways) != 0 || !strings.Contains(notes, "A pooler was not measured") {
		t.Errorf("%d ways, and the notes %q", len(p.result.Ways), notes)
	}
}

// Keys that are seldom new are asked for again and again, and a fleet that remembers them asks for each once.
func TestNewChildrenAreAsSeldomAsAsked(t *testing.T) {
	t.Parallel()
	tree := &tree{TreeSize: TreeSize{Parents: 2, Children: 10, New: 2, Seldom: 5}, known: newKeySet()}
	for parent := 1; parent <= tree.Parents; parent++ {
		for key := range int64(span * tree.New) {
			tree.known.add(parent, key)
		}
	}
	const items = 1000
	fresh := 0
	for range items {
		it := tree.next(func(n int64) int64 { return n - 1 })
		for _, key := range it.keys {
			if !tree.known.has(it.parent, key) {
				fresh++
				tree.known.add(it.parent, key)
			}
		}
	}
	if want := items / 5 * 2; fresh != want {
		t.Errorf("%d children of %d items were new, want %d", fresh, items, want)
	}
}
