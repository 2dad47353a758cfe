package weirui_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/weirui"
)

func task(name string, after ...string) weir.TaskInfo {
	return weir.TaskInfo{ID: 1, Name: name, After: after, State: weir.FlowBlocked}
}

func TestTasksAreDrawnAfterAllThatTheyComeAfter(t *testing.T) {
	t.Parallel()
	// d comes after b, c and, directly, a; e is on its own; the order in which they are listed doesn't matter.
	diamond := []weir.TaskInfo{task("d", "b", "c", "a"), task("c", "b"), task("b", "a"), task("a"), task("e"), task("f", "a", "gone")}
	if got, want := weirui.Columns(diamond), [][]string{{"a", "e"}, {"b", "f"}, {"c"}, {"d"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the layers are %v, want %v", got, want)
	}
	d := weirui.Draw(diamond)
	if d == nil || len(d.Edges) != 9 || len(d.X) != 6 { // two of the edges pass layers: in two and in three parts
		t.Fatalf("the drawing is %+v", d)
	}
	taken := map[[2]int]string{}
	for name, x := range d.X {
		at := [2]int{x, d.Y[name]}
		if other := taken[at]; other != "" || x < 0 || x >= d.Width || d.Y[name] < 0 || d.Y[name] >= d.Height {
			t.Errorf("%s is at %v, as %q is, in a drawing of %d x %d", name, at, other, d.Width, d.Height)
		}
		taken[at] = name
	}
	for _, k := range diamond {
		for _, before := range k.After {
			if x, there := d.X[before]; there && x >= d.X[k.Name] {
				t.Errorf("%s is drawn at %d, and %s, which comes after it, at %d", before, x, k.Name, d.X[k.Name])
			}
		}
	}
}

func TestEdgesPassBetweenTheBoxes(t *testing.T) {
	t.Parallel()
	tasks := []weir.TaskInfo{task("0")}
	for i := range 5 { // a chain, each of which comes after the first, too
		tasks = append(tasks, task(fmt.Sprint(i+1), fmt.Sprint(i), "0"))
	}
	d, passing := weirui.Draw(tasks), 0
	for _, path := range d.Edges {
		var x, y, end int
		curve, across, passes := strings.Cut(path, " H")
		if !passes {
			continue
		}
		passing++
		points := strings.Fields(curve)
		if _, err := fmt.Sscan(points[len(points)-2], &x); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(points[len(points)-1], &y); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(across, &end); err != nil || end != x+weirui.BoxWidth {
			t.Errorf("%s does not pass the layer, %v", path, err)
		}
		for name := range d.X {
			if d.X[name] == x && y >= d.Y[name] && y <= d.Y[name]+weirui.BoxHeight {
				t.Errorf("%s passes behind %s, at %d, %d", path, name, d.X[name], d.Y[name])
			}
		}
	}
	if passing != 4 {
		t.Errorf("%d parts of edges pass a layer, want 4: %v", passing, d.Edges)
	}
}

func TestEdgesCrossLittle(t *testing.T) {
	t.Parallel()
	// Ten chains that are listed in opposite orders: each is drawn straight.
	var tasks []weir.TaskInfo
	for i := range 10 {
		tasks = append(tasks, task(fmt.Sprint("first", i)))
	}
	for i := range 10 {
		tasks = append(tasks, task(fmt.Sprint("second", 9-i), fmt.Sprint("first", 9-i)))
	}
	d := weirui.Draw(tasks)
	for i := range 10 {
		if a, b := d.Y[fmt.Sprint("first", i)], d.Y[fmt.Sprint("second", i)]; a != b {
			t.Errorf("chain %d goes from %d to %d", i, a, b)
		}
	}
}

func TestWhatIsDrawnIsBounded(t *testing.T) {
	t.Parallel()
	if weirui.Draw(nil) != nil {
		t.Error("nothing is drawn")
	}
	var wide []weir.TaskInfo
	for i := range weirui.MostDrawn {
		wide = append(wide, task(fmt.Sprint(i)))
	}
	if weirui.Draw(wide) == nil || weirui.Draw(append(wide, task("more"))) != nil {
		t.Errorf("%d tasks are to be drawn, and no more", weirui.MostDrawn)
	}
	var dense []weir.TaskInfo
	var names []string
	for i := range 100 {
		dense = append(dense, task(fmt.Sprint(i), names...))
		names = append(names, fmt.Sprint(i))
	}
	if weirui.Draw(dense) != nil {
		t.Error("100 tasks with an edge between any two are drawn")
	}
	// Tasks that come after each other in a circle can't be, but do no harm.
	if got := weirui.Columns([]weir.TaskInfo{task("a", "b"), task("b", "a"), task("c", "c")}); len(got) != 1 {
		t.Errorf("a circle has the layers %v", got)
	}
}
