package presence

import "github.com/weir-pg/weir/internal/hub"

// freshness tells new frames from those that somebody has published again: whoever may read the log and publish can't sign, but repeat. The zero value knows no beats yet.
//
// A hub's frames are numbered, which is enough while it is known. A frame of a hub that is not known any more, or not yet, was made at a position in the log: that must not lie
// before the oldest of the own last beats, of which there are as many as make a hub dead that has sent nothing in between.
type freshness struct {
	number int64          // of the own last beat
	beats  []hub.Position // of the own last beats, the newest last
}

// heard notes an own beat at a position, and reports whether it is a new one.
func (f *freshness) heard(number int64, at hub.Position) bool {
	if number <= f.number {
		return false
	}
	f.number = number
	if f.beats = append(f.beats, at); len(f.beats) > maxSilent+1 {
		f.beats = f.beats[1:]
	}
	return true
}

// isNew reports whether a frame may have been made now.
func (f *freshness) isNew(of frame) bool {
	if f.number == 0 {
		return false // the own first beat comes right after the question to which the others answer
	}
	at, err := hub.ParsePosition(of.At)
	return err == nil && (len(f.beats) == 0 || !at.Before(f.beats[0]))
}

// forget is for positions that are no longer those of the log.
func (f *freshness) forget() { f.beats = nil }
