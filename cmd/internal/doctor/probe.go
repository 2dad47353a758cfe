package doctor

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// Probe is one answer of the postmaster to an SSLRequest: one byte, before any authentication, not logged.
// The postmaster accepts and forks, and the child answers, so the probe takes as long as any new connection.
type Probe struct {
	At     time.Time
	Took   time.Duration // until the answer or the timeout, without the network's round trips
	Trip   time.Duration // of the network, the shortest so far
	Failed string        // why there was no answer
}

const (
	probeEvery   = time.Second
	probeTimeout = 10 * time.Second
	protocolSize = 8        // bytes of an SSLRequest
	sslRequest   = 80877103 // 1234 in the upper half, 5679 in the lower: never a protocol version
)

// prober probes one server.
type prober struct {
	network, address string
	window           *window
	clock            *clock
	// roundTrip is the shortest time to connect, taken as the network's latency. An answer takes two round trips.
	roundTrip time.Duration
}

// run sends probes until ctx ends, one after the other, so a slow postmaster receives fewer.
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
			// The run ended before the answer: record how long it has taken so far.
			if probe.Took > time.Second {
				p.window.addProbe(probe)
			}
			return
		}
		p.window.addProbe(probe)
		next.Reset(max(probeEvery-time.Since(begin), probeEvery/4))
	}
}

// probe sends one request; false if ctx ended before the answer.
func (p *prober) probe(ctx context.Context) (Probe, bool) {
	begin := p.clock.now()
	bounded, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	dialled, err := askSSL(bounded, p.network, p.address)
	now := p.clock.now()
	if dialled > 0 && (p.roundTrip == 0 || dialled < p.roundTrip) {
		p.roundTrip = dialled
	}
	probe := Probe{At: now, Took: max(0, now.Sub(begin)-2*p.roundTrip), Trip: p.roundTrip}
	if err != nil {
		probe.Failed = err.Error()
	}
	return probe, err == nil || ctx.Err() == nil
}

// askSSL sends an SSLRequest, and returns how long connecting took.
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
	// S or N. E starts the error of a server that cannot fork or is not ready, which is an answer as well.
	return dialled, nil
}
