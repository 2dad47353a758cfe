package work

import (
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Hubs is how the hubs of a database tell each other something: through the log of messages.
type Hubs interface {
	// Publish publishes a message.
	Publish(ctx context.Context, channel string, payload []byte) error
	// Hear calls f for each message of a channel, until ctx ends.
	Hear(ctx context.Context, channel string, f func(payload []byte)) error
}

// A worker behind a load balancer may ask another hub than the one that has given it its jobs. That hub then tells the one that has, on the channel of its worker, that these attempts are
// alive or have ended. A message that is lost costs nothing: an attempt that is thought lost ends as failed, whereupon the database says that it has ended.
const (
	opRenew byte = 1 + iota
	opEnded
)

// channelOf returns the channel on which the hub of a worker listens.
func channelOf(worker int32) string { return fmt.Sprintf("$weir.work.%d", worker) }

const (
	tellEvery     = 50 * time.Millisecond
	maxToldKeys   = 10_000 // that wait to be told; of more, hubs find out when the lease ends
	keysAtOnce    = 1000
	maxRemembered = 100_000
)

// peers tells other hubs, and hears from them.
type peers struct {
	d      *Dispatcher
	signer signer
	more   chan struct{} // signals that there is something to tell; never closed
	heard  chan hearing  // workers whose channels are to be heard

	mu      sync.Mutex
	telling map[note][]key
	count   int
	renewed map[key]time.Time // when the owner of an attempt was last told that it is alive
}

// hearing is a worker of this hub whose channel is to be heard until the context ends.
type hearing struct {
	ctx    context.Context
	worker int32
}

// note is what is to be told to the hub of a worker.
type note struct {
	worker int32
	op     byte
}

func (p *peers) init(d *Dispatcher) {
	p.d, p.signer = d, newSigner(d.Secret, "weir work hubs")
	p.more, p.heard = make(chan struct{}, 1), make(chan hearing, 64)
	p.telling, p.renewed = map[note][]key{}, map[key]time.Time{}
}

// tell tells the hub of a worker about attempts.
func (p *peers) tell(worker int32, keys []key, op byte) {
	if p.d.Hubs == nil || len(keys) == 0 {
		return
	}
	p.mu.Lock()
	if p.count += len(keys); p.count > maxToldKeys {
		p.count -= len(keys)
		p.mu.Unlock()
		return
	}
	n := note{worker, op}
	p.telling[n] = append(p.telling[n], keys...)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// hearsOf lets other hubs tell about attempts of a worker of this one, until ctx ends. A hub has a new worker when it is started, when it was fenced, and when another queue is asked for.
func (p *peers) hearsOf(ctx context.Context, worker int32) {
	select {
	case p.heard <- hearing{ctx, worker}:
	default: // others find out when the lease ends
	}
}

// run tells and hears until ctx ends.
func (p *peers) run(ctx context.Context) {
	if p.d.Hubs == nil {
		return
	}
	for {
		select {
		case h := <-p.heard:
			go func() { // ends with the worker
				_ = p.d.Hubs.Hear(h.ctx, channelOf(h.worker), func(payload []byte) { p.hear(h.worker, payload) })
			}()
		case <-p.more:
			p.flush(ctx)
			select {
			case <-time.After(tellEvery):
			case <-ctx.Done():
			}
		case <-ctx.Done():
			return
		}
	}
}

func (p *peers) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, l := range p.letters() {
		if err := p.d.Hubs.Publish(ctx, channelOf(l.to), l.payload); err != nil {
			p.d.Log.Debug("weir: jobs over HTTP: can't tell another hub", "error", err)
			return
		}
	}
}

// letter is a message to the hub of a worker.
type letter struct {
	to      int32
	payload []byte
}

// letters returns what is to be told now, by worker.
func (p *peers) letters() (all []letter) {
	p.mu.Lock()
	telling := p.telling
	p.telling, p.count = map[note][]key{}, 0
	p.mu.Unlock()
	notes := slices.SortedFunc(maps.Keys(telling), func(a, b note) int { return cmp.Or(cmp.Compare(a.worker, b.worker), cmp.Compare(a.op, b.op)) })
	for _, n := range notes {
		for some := range slices.Chunk(telling[n], keysAtOnce) {
			all = append(all, letter{n.worker, p.encode(n, some)})
		}
	}
	return all
}

// encode returns a signed message: the operation, and the attempts.
func (p *peers) encode(n note, keys []key) []byte {
	b := []byte{n.op}
	b = binary.BigEndian.AppendUint32(b, uint32(n.worker))
	for _, k := range keys {
		for _, v := range []int64{k.lane, k.seq, k.id} {
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
	}
	return append(b, p.signer.mac(b)...)
}

// decode returns what a message says; ok: it was signed by a hub of this database.
func (p *peers) decode(payload []byte) (n note, keys []key, ok bool) {
	end := len(payload) - macBytes
	if end < 5 || (end-5)%24 != 0 || !hmac.Equal(p.signer.mac(payload[:end]), payload[end:]) {
		return n, nil, false
	}
	n = note{int32(binary.BigEndian.Uint32(payload[1:])), payload[0]}
	for b := payload[5:end]; len(b) > 0; b = b[24:] {
		keys = append(keys, key{n.worker, int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])), int64(binary.BigEndian.Uint64(b[16:]))})
	}
	return n, keys, true
}

// hear is called with what another hub says about attempts of this one.
func (p *peers) hear(worker int32, payload []byte) {
	n, keys, ok := p.decode(payload)
	if !ok || n.worker != worker {
		return
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range keys {
		a := d.attempts[k]
		switch {
		case a == nil:
		case n.op == opRenew:
			a.since = d.clock().Add(d.Lease / 3) // until that hub may tell of it again: each of its answers gives the worker a whole lease
		case n.op == opEnded && a.finish(endedElsewhere()):
			a.queue.drop(a)
			d.freed(a)
		}
	}
}

// remind tells the hubs that have given out attempts that they are alive, a few times in each lease, and returns those of which it was time to do so.
func (d *Dispatcher) remind(keys []key) (due []key) {
	p, now := &d.peers, d.clock()
	p.mu.Lock()
	if len(p.renewed) > maxRemembered {
		clear(p.renewed)
	}
	for _, k := range keys {
		if now.Sub(p.renewed[k]) > d.Lease/6 {
			p.renewed[k] = now
			due = append(due, k)
		}
	}
	p.mu.Unlock()
	byWorker := map[int32][]key{}
	for _, k := range due {
		byWorker[k.worker] = append(byWorker[k.worker], k)
	}
	for worker, some := range byWorker {
		p.tell(worker, some, opRenew)
	}
	return due
}

// cancelledAmong returns the attempts whose jobs were cancelled.
func (d *Dispatcher) cancelledAmong(ctx context.Context, keys []key) (cancelled []Interrupted) {
	if len(keys) == 0 {
		return nil
	}
	ids := make([]int64, len(keys))
	for i, k := range keys {
		ids[i] = k.id
	}
	found, err := d.Calls.CancelledAmong(ctx, ids)
	if err != nil {
		return nil // the next call is soon enough
	}
	for _, k := range keys {
		if slices.Contains(found, k.id) {
			cancelled = append(cancelled, Interrupted{d.tokens.token(k), Cancelled})
		}
	}
	return cancelled
}
