package weirui

import "github.com/weir-pg/weir"

// Tails returns how many tails of the first database are open, and how many hubs read its messages.
func (u *UI) Tails() (open, hubs int) {
	t := &u.list()[0].tails
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open, t.hubs
}

// Limits of what is shown.
const (
	MostTails  = mostTails
	TailsEach  = mostTailsOfUser
	TailRate   = tailRate
	ShownBytes = shownBytes
	MostDrawn  = mostDrawn
	BoxWidth   = boxWidth
	BoxHeight  = boxHeight
)

// Columns returns the names of the tasks in each layer.
func Columns(tasks []weir.TaskInfo) (all [][]string) {
	preds, _ := before(tasks)
	for _, l := range layersOf(preds) {
		var names []string
		for _, at := range l {
			names = append(names, tasks[at].Name)
		}
		all = append(all, names)
	}
	return all
}

// Drawing describes a drawing.
type Drawing struct {
	Width, Height int
	X, Y          map[string]int
	Edges         []string // paths
}

// Draw draws tasks; nil: there are none, or too many.
func Draw(tasks []weir.TaskInfo) *Drawing {
	g := draw(tasks)
	if g == nil {
		return nil
	}
	d := &Drawing{Width: g.Width, Height: g.Height, X: map[string]int{}, Y: map[string]int{}}
	for _, e := range g.Edges {
		d.Edges = append(d.Edges, e.Path)
	}
	for _, b := range g.Boxes {
		d.X[b.Name], d.Y[b.Name] = b.X, b.Y
	}
	return d
}
