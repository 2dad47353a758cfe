package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// Probe is one answer of the postmaster to an SSLRequest: a byte, before any authentication, that no log mentions.
// The postmaster accepts, forks, and the child answers: so the time is that of the way every new connection takes.
type Probe struct {
	At     time.Time
	Took   time.Duration // up to the answer or to giving up, without the network's part
	Failed string        // why there was no answer
}

const (
	probeEvery   = time.Second
	probeTimeout = 10 * time.Second
	protocolSize = 8        // of an SSLRequest
	sslRequest   = 80877103 // 1234 in the upper half, 5679 in the lower: no version of the protocol
)

// prober probes one server.
type prober struct {
	network, address string
	window           *window
	// roundTrip is the shortest time that the kernel took to connect: that of the network. An answer takes two.
	roundTrip time.Duration
}

// run probes until ctx ends, one after the other: a postmaster in trouble is asked less.
func (p *prober) run(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		begin := time.Now()
		probe, done := p.probe(ctx)
		if !done {
			// Given up because the look ends: that it took so long already is known.
			if probe.Took > time.Second {
				p.window.addProbe(probe)
			}
			return
		}
		p.window.addProbe(probe)
		next.Reset(max(probeEvery-time.Since(begin), probeEvery/4))
	}
}

// probe asks once; false when ctx ended before the answer.
func (p *prober) probe(ctx context.Context) (Probe, bool) {
	begin := time.Now()
	bounded, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialled, err := askSSL(bounded, p.network, p.address)
	now := time.Now()
	if dialled > 0 && (p.roundTrip == 0 || dialled < p.roundTrip) {
		p.roundTrip = dialled
	}
	probe := Probe{At: now, Took: max(0, now.Sub(begin)-2*p.roundTrip)}
	if err != nil {
		probe.Failed = err.Error()
	}
	return probe, err == nil || ctx.Err() == nil
}

// askSSL asks, and says how long it took to connect.
func askSSL(ctx context.Context, network, address string) (dialled time.Duration, err error) {
	var dialer net.Dialer
	begin := time.Now()
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return 0, fmt.Errorf("dial: %w", err)
	}
	defer conn.Close()
	dialled = time.Since(begin)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	request := [protocolSize]byte{3: protocolSize, 4: sslRequest >> 24, 5: sslRequest >> 16 & 0xff, 6: sslRequest >> 8 & 0xff, 7: sslRequest & 0xff}
	if _, err := conn.Write(request[:]); err != nil {
		return dialled, fmt.Errorf("ask: %w", err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return dialled, fmt.Errorf("read the answer: %w", err)
	}
	// S or N. E begins the error of a server that cannot fork, or is not ready: an answer, and no trouble of the probe's.
	return dialled, nil
}
