package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// StormConfig configures Storm.
type StormConfig struct {
	HubConfig
	Clients  int // number of clients of the hub; default 10,000
	Postgres int // number of clients of PostgreSQL itself; default 1,000
	Rounds   int // default 3
}

// StormConnections returns how many connections of PostgreSQL it needs.
func StormConnections(c StormConfig) int { return cmp.Or(c.Postgres, 1000) + 40 }

// stormWay specifies where clients connect, and how many, with the results.
type stormWay struct {
	name    string
	hub     bool
	clients int

	seconds []float64 // for each round: until the last client was served
	served  int
	refused int
	refusal error // the first
	h       load.Histogram
}

// Storm lets clients connect, log in with SCRAM and listen, all at the same signal. The time is measured from the signal until a client's LISTEN is
// confirmed.
func Storm(ctx context.Context, d *load.Database, e load.Engine, c StormConfig) (r *load.Report, err error) {
	c.Clients = cmp.Or(c.Clients, 10_000)
	c.Postgres = cmp.Or(c.Postgres, 1000)
	c.Rounds = cmp.Or(c.Rounds, 3)
	if err := mayOpen(max(c.Clients, c.Postgres) + spare); err != nil {
		return nil, err
	}
	if r, err = d.Begin(ctx, "storm", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("all clients wait for one signal, then connect, log in with SCRAM-SHA-256 and LISTEN on a channel of their own, and stay; latencies are from the signal until that is confirmed; %d rounds, in turn",
		c.Rounds)
	r.Hub = &load.HubFigures{}
	c.LoggingIn = max(c.Clients, c.Postgres) + spare // all from one address, which hubs limit by default
	ways := []*stormWay{
		{name: "hub", hub: true, clients: c.Clients},
		{name: "hub, as many as PostgreSQL", hub: true, clients: c.Postgres},
		{name: "PostgreSQL", clients: c.Postgres},
	}
	for round := range c.Rounds {
		for _, w := range ways {
			if err := w.turn(ctx, d, c); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", w.name, err)
			}
			d.Say("storm, round %d of %d, %s: %d clients, the last served after %.2f s", round+1, c.Rounds, w.name, w.clients, w.seconds[round])
			if w.refused > 0 {
				d.Say("storm, %s: %d clients were refused, the first by: %v", w.name, w.refused, w.refusal)
			}
		}
	}
	for _, w := range ways {
		r.Hub.Ways = append(r.Hub.Ways, load.Way{
			Way: w.name, Clients: w.clients, Unit: "clients", Done: int64(w.clients), Seconds: load.SpreadOf(w.seconds), Refused: &w.refused,
			P50: w.h.At(50), P99: w.h.At(99), Longest: w.h.At(100),
		})
	}
	r.Hub.Compare("seconds of PostgreSQL to seconds of the hub, both with as many clients", "", ways[2].seconds, ways[1].seconds)
	r.AtMost("clients that the hub refused", float64(ways[0].refused), 0)
	r.AtMost("last client's time to the median client's, hub", *ways[0].h.At(100)/(*ways[0].h.At(50)), 4)
	return r, nil
}

// stormPatience limits the time of one storm.
const stormPatience = 3 * time.Minute

func (w *stormWay) turn(ctx context.Context, d *load.Database, c StormConfig) (err error) {
	a, err := accountOf(d.URL)
	if err != nil {
		return err
	}
	address := a.home
	if w.hub {
		h, err := startHub(ctx, d, c.HubConfig, d.URL, false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.close()) }()
		address = h.at.PG
	}
	// One client that connects before it causes PBKDF2 and the hub's query of the user's verifier.
	first, err := a.login(ctx, address, w.clients)
	if err != nil {
		return err
	}
	defer first.hangUp()
	s := &storm{account: a, address: address, clients: make([]stormClient, w.clients)}
	defer s.close()
	last, err := s.blow(ctx)
	if err != nil {
		return err
	}
	if w.h.IsZero() {
		w.h = load.NewHistogram()
	}
	for i := range s.clients {
		switch k := &s.clients[i]; {
		case k.err == nil:
			w.h.Add(k.took)
			w.served++
		case refusedBy(k.err):
			w.refused++
			w.refusal = cmp.Or(w.refusal, k.err)
		default:
			return fmt.Errorf("client %d: %w", i+1, k.err)
		}
	}
	if w.served == 0 {
		return fmt.Errorf("no client was served: %w", s.clients[0].err)
	}
	w.seconds = append(w.seconds, last.Seconds())
	return nil
}

type storm struct {
	account *account
	address string
	clients []stormClient
}

type stormClient struct {
	conn *wire
	took time.Duration // time from the signal until the client was served
	err  error
}

// blow returns how long it took until the last client was served.
func (s *storm) blow(ctx context.Context) (last time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, stormPatience)
	defer cancel()
	var waiting, running sync.WaitGroup
	signal := make(chan struct{})
	var began time.Time
	waiting.Add(len(s.clients))
	for i := range s.clients {
		running.Go(func() { // ends when the client is served, or after stormPatience
			k := &s.clients[i]
			waiting.Done()
			<-signal
			if k.conn, k.err = s.account.login(ctx, s.address, i); k.err != nil {
				return
			}
			defer k.conn.bound(ctx)()
			k.err = k.conn.listen(fmt.Sprintf("weir_bench_storm_%d", i))
			k.took = time.Since(began)
		})
	}
	waiting.Wait()
	runtime.GC() // so that it does not run during the storm
	began = time.Now()
	close(signal)
	running.Wait()
	for i := range s.clients {
		if s.clients[i].err == nil {
			last = max(last, s.clients[i].took)
		}
	}
	return last, context.Cause(ctx)
}

func (s *storm) close() {
	for i := range s.clients {
		if conn := s.clients[i].conn; conn != nil {
			conn.hangUp()
		}
	}
}
