package cluster

import (
	"cmp"
	"slices"

	"github.com/weir-pg/weir/internal/hub"
)

// inbox collects heads and pieces of parts as they arrive. Cluster.mu guards it.
type inbox struct {
	parts map[hub.Position][]*arriving // by the position before them, including the epoch; one for each sender
	bytes int
}

// Anything beyond these limits is dropped, and read from the database when its turn comes.
const (
	inboxBytes   = 64 << 20
	inboxParts   = 4096
	inboxSenders = 4
)

// arriving is a part of which at least one frame has arrived.
type arriving struct {
	sender ident
	head   *head
	pieces map[byte][][]byte
	bytes  int
}

func newInbox() inbox { return inbox{parts: map[hub.Position][]*arriving{}} }

// of returns the entry of a sender's part; nil if there is no room for bytes more.
func (x *inbox) of(at hub.Position, sender ident, bytes int) *arriving {
	if x.bytes+bytes > inboxBytes {
		return nil
	}
	all := x.parts[at]
	for _, a := range all {
		if a.sender == sender {
			return a
		}
	}
	if len(x.parts) >= inboxParts || len(all) >= inboxSenders {
		return nil
	}
	a := &arriving{sender: sender, pieces: map[byte][][]byte{}}
	x.parts[at] = append(all, a)
	return a
}

// addHead reports whether there was room for the head.
func (x *inbox) addHead(sender ident, h *head) bool {
	a := x.of(h.from(), sender, 0)
	if a == nil {
		return false
	}
	a.head = h
	return true
}

// addData reports whether the piece was added: it is useless if an earlier piece is missing.
func (x *inbox) addData(sender ident, d data) bool {
	a := x.of(d.at, sender, len(d.bytes))
	if a == nil || int(d.piece) != len(a.pieces[d.bucket]) {
		return false
	}
	a.pieces[d.bucket] = append(a.pieces[d.bucket], d.bytes)
	a.bytes += len(d.bytes)
	x.bytes += len(d.bytes)
	return true
}

// find returns a part that is complete for the wanted buckets, or nil.
func (x *inbox) find(at hub.Position, wanted *set) *arriving {
	for _, a := range x.parts[at] {
		if a.whole(wanted) {
			return a
		}
	}
	return nil
}

func (x *inbox) hasHead(at hub.Position) bool {
	return slices.ContainsFunc(x.parts[at], func(a *arriving) bool { return a.head != nil })
}

// parted reports whether a head has arrived that begins at the same tick and index as at, but in another epoch.
func (x *inbox) parted(at hub.Position) bool {
	for other, all := range x.parts {
		if other.Tick == at.Tick && other.Index == at.Index && other.Epoch != at.Epoch {
			return slices.ContainsFunc(all, func(a *arriving) bool { return a.head != nil })
		}
	}
	return false
}

// drop deletes the parts before a position.
func (x *inbox) drop(before hub.Position) {
	for at, all := range x.parts {
		if at.Before(before) {
			for _, a := range all {
				x.bytes -= a.bytes
			}
			delete(x.parts, at)
		}
	}
}

// whole reports whether everything has arrived that the head lists for the wanted buckets.
func (a *arriving) whole(wanted *set) bool {
	if a.head == nil || a.head.absent {
		return false
	}
	whole := true
	filled := a.head.filled.and(wanted)
	filled.each(func(b byte) { whole = whole && len(a.pieces[b]) == int(a.head.contents[b].pieces) })
	return whole
}

// part returns the part with the messages of the wanted buckets, all of which have arrived.
func (a *arriving) part(wanted *set) (p *hub.Part, err error) {
	h := a.head
	p = h.part()
	p.Covers = coverage{*wanted}
	filled := h.filled.and(wanted)
	filled.each(func(b byte) {
		if err != nil {
			return
		}
		var bytes []byte
		if pieces := a.pieces[b]; len(pieces) == 1 {
			bytes = pieces[0] // messages share its memory
		} else {
			bytes = slices.Concat(pieces...)
		}
		p.Messages, err = readMessages(p.Messages, bytes, hub.Position{Epoch: h.epoch, Tick: h.tick}, h.contents[b].messages)
	})
	slices.SortFunc(p.Messages, func(a, b *hub.Message) int { return cmp.Compare(a.Position.Index, b.Position.Index) })
	return p, err
}
