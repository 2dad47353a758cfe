package model

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// machine is what the explorer explores: states of type S, which contain no pointers, and small steps between them.
type machine[S comparable] struct {
	start S
	// steps appends the steps that are possible in a state.
	steps func(*S, []step) []step
	// take takes a step. An error means that the step itself breaks a promise.
	take func(*S, step) error
	// check looks for a broken promise in a state.
	check func(*S) error
	// tidy gives equivalent states the same form.
	tidy func(*S)
	// say describes a step in plain words. It is called before the step is taken.
	say func(*S, step) string
}

// step is one small step: its action, and its subjects.
type step struct {
	do   action
	a, b uint8
}

// found is the result of an exploration.
type found struct {
	states int
	deep   int    // number of steps from the start to the farthest state
	broken error  // the first broken promise; nil: none
	trace  string // the shortest way to it
	whole  bool   // all states were visited; false if the limit was reached first
}

// explore visits every state that can be reached, nearest first, until a promise is broken or limit states were visited. A state is remembered
// by 128 bits of its hash: that two of some millions share them is less likely than a fault of the machine.
func (m *machine[S]) explore(limit int) found {
	type digest struct{ a, b uint64 }
	one, two := maphash.MakeSeed(), maphash.MakeSeed()
	type origin struct {
		parent int32
		by     step
	}
	var (
		origins = []origin{{-1, step{}}}
		seen    = map[digest]struct{}{}
		level   = []S{m.start}
		first   = 0 // the number of level[0]
		steps   []step
		result  found
	)
	fail := func(parent int, by step, err error) found {
		path := []step{by}
		for i := parent; i > 0; i = int(origins[i].parent) {
			path = append(path, origins[i].by)
		}
		result.broken, result.trace, result.states = err, m.tell(path), len(origins)
		return result
	}
	m.tidy(&level[0])
	seen[digest{maphash.Comparable(one, level[0]), maphash.Comparable(two, level[0])}] = struct{}{}
	for ; len(level) > 0; result.deep++ {
		var next []S
		for i := range level {
			steps = m.steps(&level[i], steps[:0])
			for _, by := range steps {
				s := level[i]
				err := m.take(&s, by)
				if err == nil {
					m.tidy(&s)
					d := digest{maphash.Comparable(one, s), maphash.Comparable(two, s)}
					if _, known := seen[d]; known {
						continue
					}
					seen[d] = struct{}{}
					err = m.check(&s)
				}
				if err != nil {
					return fail(first+i, by, err)
				}
				origins = append(origins, origin{int32(first + i), by})
				next = append(next, s)
				if len(origins) >= limit {
					result.states = len(origins)
					return result
				}
			}
		}
		first += len(level)
		level = next
	}
	result.states, result.whole = len(origins), true
	return result
}

// tell puts a path, which begins at its end, into words.
func (m *machine[S]) tell(path []step) string {
	var b strings.Builder
	s := m.start
	m.tidy(&s)
	for i := range path {
		by := path[len(path)-1-i]
		fmt.Fprintf(&b, "%3d. %s\n", i+1, m.say(&s, by))
		if err := m.take(&s, by); err != nil {
			break
		}
		m.tidy(&s)
	}
	return b.String()
}
