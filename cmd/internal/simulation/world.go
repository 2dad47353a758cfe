package simulation

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// World is the virtual time, and what is to happen in it.
type World struct {
	*rand.Rand // the only source of random numbers

	now    time.Duration
	queue  []event // a heap
	ids    uint64
	events uint64
	hash   uint64
	about  map[int64]bool // what notes are kept of
	notes  []string
	broken *Broken
}

// event is something that happens at a time; of those at the same time, the one that was planned first is first.
type event struct {
	at time.Duration
	id uint64
	do func()
}

// New returns a world at time 0. Worlds of the same seed are the same.
func New(seed uint64) *World {
	return &World{Rand: rand.New(rand.NewPCG(seed, 0)), hash: 14695981039346656037}
}

// Seeds parses seeds, separated by commas; "random" stands for a new one.
func Seeds(text string) (seeds []uint64, err error) {
	for one := range strings.SplitSeq(text, ",") {
		seed := rand.Uint64()
		if one != "random" {
			if seed, err = strconv.ParseUint(one, 10, 64); err != nil {
				return nil, err
			}
		}
		seeds = append(seeds, seed)
	}
	return seeds, nil
}

// Now returns the time since the beginning.
func (w *World) Now() time.Duration { return w.now }

// Events returns how many events have happened.
func (w *World) Events() uint64 { return w.events }

// After plans an event.
func (w *World) After(d time.Duration, do func()) { w.At(w.now+max(d, 0), do) }

// At plans an event for a time, or for now if that has passed.
func (w *World) At(at time.Duration, do func()) {
	w.ids++
	w.queue = append(w.queue, event{max(at, w.now), w.ids, do})
	for i := len(w.queue) - 1; i > 0; {
		up := (i - 1) / 4
		if !w.queue[i].before(&w.queue[up]) {
			return
		}
		w.queue[i], w.queue[up] = w.queue[up], w.queue[i]
		i = up
	}
}

func (e *event) before(other *event) bool {
	return e.at < other.at || e.at == other.at && e.id < other.id
}

// Run lets happen what is planned until a time, or until a promise is broken.
func (w *World) Run(until time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= until && w.broken == nil {
		e := w.queue[0]
		w.drop()
		w.now = e.at
		w.events++
		e.do()
	}
	if w.broken == nil {
		w.now = max(w.now, until)
	}
}

// drop takes the first event out of the heap, whose nodes have four children each: it is as deep as half of a binary one, and its children are next to each other.
func (w *World) drop() {
	last := len(w.queue) - 1
	moved := w.queue[last]
	w.queue[last] = event{}
	w.queue = w.queue[:last]
	if last == 0 {
		return
	}
	i := 0
	for {
		least := i*4 + 1
		if least >= last {
			break
		}
		for c := least + 1; c < min(i*4+5, last); c++ {
			if w.queue[c].before(&w.queue[least]) {
				least = c
			}
		}
		if !w.queue[least].before(&moved) {
			break
		}
		w.queue[i] = w.queue[least]
		i = least
	}
	w.queue[i] = moved
}

// Between returns a random time.
func (w *World) Between(from, to time.Duration) time.Duration {
	if to <= from {
		return from
	}
	return from + time.Duration(w.Int64N(int64(to-from)))
}

// Chance returns true with a probability.
func (w *World) Chance(p float64) bool { return w.Float64() < p }

// Follow keeps notes of what happens to some things, in a run that repeats another: what is noted of others is dropped.
func (w *World) Follow(about []int64) {
	w.about = map[int64]bool{}
	for _, id := range about {
		w.about[id] = true
	}
}

// Note says what has happened to something.
func (w *World) Note(about int64, format string, args ...any) {
	w.Mark(about)
	if w.about[about] {
		w.notes = append(w.notes, fmt.Sprintf("%12.6f  ", w.now.Seconds())+fmt.Sprintf(format, args...))
	}
}

// Mark makes a number part of the hash of this run.
func (w *World) Mark(n int64) {
	w.hash = (w.hash ^ uint64(n) ^ uint64(w.now)<<20) * 1099511628211
}

// Hash depends on all that was noted and marked, and when.
func (w *World) Hash() uint64 { return w.hash }

// Broken is a promise that was broken.
type Broken struct {
	About []int64 // follow them to learn how
	Text  string
}

func (b *Broken) Error() string { return b.Text }

// Break ends the run: a promise about some things is broken.
func (w *World) Break(about []int64, format string, args ...any) {
	if w.broken == nil {
		w.broken = &Broken{about, fmt.Sprintf("after %.6f s: ", w.now.Seconds()) + fmt.Sprintf(format, args...)}
	}
}

// Err returns the first promise that was broken; nil: none was.
func (w *World) Err() *Broken { return w.broken }

// Trace returns what was noted, a line each: the last of it, if it is long.
func (w *World) Trace() string {
	const most = 60
	notes := w.notes
	if len(notes) > most {
		notes = append([]string{fmt.Sprintf("  … %d lines before", len(notes)-most)}, notes[len(notes)-most:]...)
	}
	return strings.Join(notes, "\n")
}

// InOrder returns the values of a map in the order of their keys.
func InOrder[K cmp.Ordered, V any](all map[K]V) []V {
	values := make([]V, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		values = append(values, all[k])
	}
	return values
}
