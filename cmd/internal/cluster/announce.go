package cluster

import (
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

const (
	pieceBytes = 256 << 10 // bytes of a bucket in one frame
	partBytes  = 16 << 20  // a larger part is not sent: the other hubs read it from the database
)

// announce sends parts and heartbeats until Close.
func (c *Cluster) announce() {
	every := time.NewTicker(beatEvery)
	defer every.Stop()
	a := announcer{Cluster: c}
	for {
		select {
		case one := <-c.outbox:
			a.sendPart(one)
		case <-c.beats:
			a.beat()
		case now := <-every.C:
			if a.due(now) {
				a.beat()
			}
		case <-c.closing:
			a.sendBeat(left)
			return
		}
	}
}

// announcer is the state of the goroutine announce.
type announcer struct {
	*Cluster
	filled [buckets][]byte
	beaten time.Time
}

// due reports whether it is time for a heartbeat. A reader whose database does not answer sends none.
func (a *announcer) due(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.role == Reading {
		return now.Sub(a.polling) < stuckAfter
	}
	less := crowd(len(a.peers))
	if a.greets && less == 1 && now.Sub(a.beaten) > beatEvery { // among many, somebody always comes, and hears of the others soon
		return true
	}
	return now.Sub(a.beaten) > presentEvery*less
}

// crowd is by how much less often each hub of so many says that it is there: every hub hears every other, so in a large cluster they would be busy with little else.
func crowd(hubs int) time.Duration { return time.Duration(max(1, hubs/50)) }

// beat sends a heartbeat, after the parts up to its position.
func (a *announcer) beat() {
	for range len(a.outbox) {
		a.sendPart(<-a.outbox) // no other goroutine receives from it
	}
	a.mu.Lock()
	role := a.role
	a.mu.Unlock()
	a.sendBeat(role)
}

func (a *announcer) sendBeat(role Role) {
	a.mu.Lock()
	at := a.at
	a.greets = false
	a.mu.Unlock()
	a.beaten = a.now()
	// An error needs no handling: hubs that don't receive the heartbeat act on its absence.
	_ = a.send(a.subjects.beat, beat{role: role, at: at, name: a.name}.append(newFrame(kindBeat, a.id, 32+len(a.name))))
}

// sendPart sends a part's messages, bucket by bucket, and then its head. Without other hubs, it doesn't even encode them.
func (a *announcer) sendPart(p *hub.Part) {
	a.mu.Lock()
	alone := len(a.peers) == 0 || !a.connected
	a.mu.Unlock()
	if alone {
		return
	}
	h := headOf(p)
	bytes := 0
	for _, m := range p.Messages {
		bytes += len(m.Channel) + len(m.Payload)
	}
	if h.absent = bytes > partBytes; !h.absent {
		if err := a.sendMessages(h, p.Messages); err != nil {
			a.counters.dropped.Add(1)
			return
		}
	}
	if err := a.send(a.subjects.head, h.append(newFrame(kindHead, a.id, 1024))); err != nil {
		a.counters.dropped.Add(1)
		return
	}
	a.counters.partsSent.Add(1)
}

// sendMessages sends messages and counts them in the part's head.
func (a *announcer) sendMessages(h *head, messages []*hub.Message) (err error) {
	for _, m := range messages {
		b := bucketOf(m.Channel)
		if !h.filled.has(b) {
			h.filled.add(b)
			a.filled[b] = a.filled[b][:0]
		}
		h.contents[b].messages++
		a.filled[b] = appendMessage(a.filled[b], m)
	}
	room := pieceBytes
	if limit := int(a.largest()); limit > 0 {
		room = min(room, limit-64)
	}
	h.filled.each(func(b byte) {
		all := a.filled[b]
		for err == nil && len(all) > 0 {
			n := min(len(all), room)
			d := data{at: h.from(), bucket: b, piece: h.contents[b].pieces, bytes: all[:n]}
			err = a.send(a.subjects.bucket[b], d.append(newFrame(kindData, a.id, 32+n)))
			h.contents[b].pieces++
			all = all[n:]
		}
		if cap(a.filled[b]) > pieceBytes {
			a.filled[b] = nil // release the memory that a large message needed
		}
	})
	return err
}

func headOf(p *hub.Part) *head {
	return &head{tick: p.Tick, epoch: p.Epoch, prior: max(p.Prior, 0), cut: p.At.UnixMicro(), first: p.First, last: p.Last, end: p.End}
}

// send sends a frame to the hubs that are connected now; NATS stores nothing.
func (c *Cluster) send(subject string, frame []byte) error {
	if err := c.publish(subject, frame); err != nil {
		return err
	}
	c.counters.bytesSent.Add(int64(len(frame)))
	return nil
}
