package work

import (
	"container/heap"
	"slices"
)

// line is who has handlers for a kind in a queue, or for all kinds: those that may be free, in their turn. A session of many kinds is in many lines, and its turn changes with each job.
// So its places are only corrected when they come first: a place never says a later turn than is the session's, so the first place that says the right one is the first in turn.
type line struct {
	wanting int     // sessions that have a handler
	takers  []place // a heap
	gone    int     // how many wants have gone since it was last rid of them
}

// place is a place in a line.
type place struct {
	turn int64
	w    *want
}

// Len implements heap.Interface.
func (l *line) Len() int { return len(l.takers) }

// Less implements heap.Interface.
func (l *line) Less(i, j int) bool { return l.takers[i].turn < l.takers[j].turn }

// Swap implements heap.Interface.
func (l *line) Swap(i, j int) { l.takers[i], l.takers[j] = l.takers[j], l.takers[i] }

// Push implements heap.Interface.
func (l *line) Push(p any) { l.takers = append(l.takers, p.(place)) }

// Pop implements heap.Interface.
func (l *line) Pop() any {
	last := len(l.takers) - 1
	p := l.takers[last]
	l.takers[last] = place{}
	l.takers = l.takers[:last]
	return p
}

// first returns whose turn it is; nil: nobody is free.
func (l *line) first() *want {
	if l == nil {
		return nil
	}
	for len(l.takers) > 0 {
		p := &l.takers[0]
		switch w := p.w; {
		case w.gone:
			heap.Pop(l)
		case w.credit <= 0:
			heap.Pop(l)
			w.unlisted = append(w.unlisted, l)
		case p.turn != w.turn:
			p.turn = w.turn
			heap.Fix(l, 0)
		default:
			return w
		}
	}
	return nil
}

// leave notices that a want has gone. Its place stays until it comes first, or too many have gone.
func (l *line) leave() {
	if l.gone++; l.gone > 16 && l.gone > len(l.takers)/2 {
		l.takers = slices.DeleteFunc(l.takers, func(p place) bool { return p.w.gone })
		heap.Init(l)
		l.gone = 0
	}
}
