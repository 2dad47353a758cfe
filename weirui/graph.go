package weirui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-pg/weir"
)

// Up to so much is drawn; beyond, tasks are counted by layer.
const (
	mostDrawn  = 300  // tasks
	mostEdges  = 2000 // between them
	mostBends  = 3000 // places where edges pass a layer
	mostLayers = 300  // listed
)

// Sizes in the drawing.
const (
	boxWidth, boxHeight = 180, 44
	bendHeight          = 4
	gapX, gapY          = 60, 16
	margin              = 8
	labelRunes          = 24
)

// graph is a drawing of tasks: from left to right, each after those that it comes after.
type graph struct {
	Width, Height int
	Boxes         []box
	Edges         []edge
}

// box is a task in the drawing.
type box struct {
	weir.TaskInfo
	X, Y int
}

// Label is the task's name, as far as it fits.
func (b box) Label() string {
	runes := []rune(b.Name)
	if len(runes) <= labelRunes {
		return b.Name
	}
	return string(runes[:labelRunes-1]) + "…"
}

// Says describes the task in a sentence.
func (b box) Says() string { return sayTask(b.TaskInfo) }

// Width and Height are those of each box, and TextX and so on where its text is.
func (b box) Width() int  { return boxWidth }
func (b box) Height() int { return boxHeight }
func (b box) TextX() int  { return b.X + 10 }
func (b box) NameY() int  { return b.Y + 18 }
func (b box) StateY() int { return b.Y + 35 }

// edge is a curve from a task to one that comes after it.
type edge struct {
	Path         string
	IgnoreFailed bool
}

// sayTask describes a task in a sentence.
func sayTask(t weir.TaskInfo) string {
	text := fmt.Sprintf("%s: %s", t.Name, t.State)
	if len(t.After) > 0 {
		text += ", comes after " + strings.Join(t.After, ", ")
	}
	if len(t.WaitsFor) > 0 {
		text += ", waits for " + strings.Join(t.WaitsFor, ", ")
	}
	return text
}

// before returns, for each task, the places of those that it comes after. Those that are not among the tasks are left out.
func before(tasks []weir.TaskInfo) (all [][]int, edges int) {
	place := make(map[string]int, len(tasks))
	for i, t := range tasks {
		place[t.Name] = i
	}
	all = make([][]int, len(tasks))
	for i, t := range tasks {
		for _, name := range t.After {
			if at, known := place[name]; known && at != i {
				all[i] = append(all[i], at)
				edges++
			}
		}
	}
	return all, edges
}

// layersOf puts each task into the layer after the last of those that it comes after: the length of the longest path to it.
func layersOf(preds [][]int) (layers [][]int) {
	next := make([][]int, len(preds))
	missing := make([]int, len(preds)) // of those that it comes after, how many have no layer yet
	layer := make([]int, len(preds))
	var ready []int
	for i, before := range preds {
		missing[i] = len(before)
		for _, p := range before {
			next[p] = append(next[p], i)
		}
		if len(before) == 0 {
			ready = append(ready, i)
		}
	}
	for len(ready) > 0 {
		at := ready[0]
		ready = ready[1:]
		for _, n := range next[at] {
			layer[n] = max(layer[n], layer[at]+1)
			if missing[n]--; missing[n] == 0 {
				ready = append(ready, n)
			}
		}
	}
	for i, l := range layer {
		for len(layers) <= l {
			layers = append(layers, nil)
		}
		layers[l] = append(layers[l], i)
	}
	return layers
}

// draw draws tasks; nil: there are none, or too many.
func draw(tasks []weir.TaskInfo) *graph {
	if len(tasks) == 0 || len(tasks) > mostDrawn {
		return nil
	}
	preds, edges := before(tasks)
	if edges > mostEdges {
		return nil
	}
	layers := layersOf(preds)
	links := bend(layers, preds)
	if links == nil {
		return nil
	}
	arrange(layers, links)
	heightOf := func(at int) int {
		if at < len(tasks) {
			return boxHeight
		}
		return bendHeight
	}
	heights, tallest := make([]int, len(layers)), 0
	for x, l := range layers {
		for _, at := range l {
			heights[x] += heightOf(at) + gapY
		}
		tallest = max(tallest, heights[x])
	}
	g := &graph{Width: len(layers)*(boxWidth+gapX) - gapX + 2*margin, Height: tallest - gapY + 2*margin, Boxes: make([]box, len(tasks))}
	xs, ys := make([]int, len(links)), make([]int, len(links)) // the left end of each, and its middle
	for x, l := range layers {
		y := margin + (tallest-heights[x])/2
		for _, at := range l {
			xs[at], ys[at] = margin+x*(boxWidth+gapX), y+heightOf(at)/2
			if at < len(tasks) {
				g.Boxes[at] = box{tasks[at], xs[at], y}
			}
			y += heightOf(at) + gapY
		}
	}
	for to, before := range links {
		for _, from := range before {
			x := xs[from] + boxWidth
			e := edge{Path: fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x, ys[from], x+gapX/2, ys[from], xs[to]-gapX/2, ys[to], xs[to], ys[to])}
			if to < len(tasks) {
				e.IgnoreFailed = tasks[to].IgnoreFailed
			} else {
				e.Path += fmt.Sprintf(" H%d", xs[to]+boxWidth)
			}
			g.Edges = append(g.Edges, e)
		}
	}
	return g
}

// bend lets edges that pass layers go between the boxes there: in each of these, it adds a place to the layer, with the next number after those of the tasks.
// It returns, for each task and each place, which it is linked to on its left, all in the layer before; nil: there would be too many. The edges of a task that
// pass the same layer share one place.
func bend(layers, preds [][]int) (links [][]int) {
	layer, reaches := make([]int, len(preds)), make([]int, len(preds))
	for x, l := range layers {
		for _, at := range l {
			layer[at] = x
		}
	}
	for i, before := range preds {
		for _, p := range before {
			reaches[p] = max(reaches[p], layer[i])
		}
	}
	links = make([][]int, len(preds))
	first := make([]int, len(preds)) // the place in the layer after the task's; the others follow
	for p := range preds {
		first[p] = len(links)
		for x, from := layer[p]+1, p; x < reaches[p]; x++ {
			if len(links)-len(preds) >= mostBends {
				return nil
			}
			layers[x] = append(layers[x], len(links))
			links = append(links, []int{from})
			from = len(links) - 1
		}
	}
	for i, before := range preds {
		for _, p := range before {
			if passed := layer[i] - layer[p] - 1; passed > 0 {
				p = first[p] + passed - 1
			}
			links[i] = append(links[i], p)
		}
	}
	return links
}

// arrange sorts each layer so that tasks are near their neighbours in other layers, and edges cross less: by the mean place of these, forwards and
// backwards, a few times.
func arrange(layers, preds [][]int) {
	place := map[int]float64{} // from 0 to 1, so that layers of different sizes compare
	settle := func(l []int) {
		for y, at := range l {
			place[at] = (float64(y) + 0.5) / float64(len(l))
		}
	}
	succs := make([][]int, len(preds))
	for i, before := range preds {
		for _, p := range before {
			succs[p] = append(succs[p], i)
		}
	}
	sort := func(l []int, neighbours [][]int) {
		mean := func(at int) float64 {
			if len(neighbours[at]) == 0 {
				return place[at]
			}
			sum := 0.0
			for _, n := range neighbours[at] {
				sum += place[n]
			}
			return sum / float64(len(neighbours[at]))
		}
		slices.SortStableFunc(l, func(a, b int) int { return cmp.Compare(mean(a), mean(b)) })
		settle(l)
	}
	for _, l := range layers {
		settle(l)
	}
	for range 4 {
		for _, l := range layers {
			sort(l, preds)
		}
		for _, l := range slices.Backward(layers) {
			sort(l, succs)
		}
	}
}

// layer counts the tasks of a layer.
type layer struct {
	Number int                    `json:"number"` // from 1
	Tasks  int                    `json:"tasks"`
	States map[weir.FlowState]int `json:"states"`
}

// Says counts the layer's tasks by state: what needs attention first.
func (l layer) Says() string {
	var parts []string
	for _, s := range []weir.FlowState{weir.FlowFailed, weir.FlowAbandoned, weir.FlowCancelled, weir.FlowCancelling, weir.FlowRunning, taskStarted, taskWaiting, taskScheduled, weir.FlowOpen, weir.FlowBlocked, weir.FlowSucceeded} {
		if n := l.States[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", number(n), s))
		}
	}
	return strings.Join(parts, ", ")
}

// summarize counts tasks by layer and state, up to mostLayers: the last entry counts all layers from there on.
func summarize(tasks []weir.TaskInfo) (all []layer) {
	if len(tasks) == 0 {
		return nil
	}
	preds, _ := before(tasks)
	for i, members := range layersOf(preds) {
		if i < mostLayers {
			all = append(all, layer{Number: i + 1, States: map[weir.FlowState]int{}})
		}
		l := &all[len(all)-1]
		l.Tasks += len(members)
		for _, at := range members {
			l.States[tasks[at].State]++
		}
	}
	return all
}
