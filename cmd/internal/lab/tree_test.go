package lab

import (
	"strings"
	"testing"
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
