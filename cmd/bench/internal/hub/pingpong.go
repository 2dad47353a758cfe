package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// PingPongConfig configures PingPong.
type PingPongConfig struct {
	HubConfig
	Idle         int           // maximum number of idle listeners on the hub; default 10,000
	IdlePostgres int           // maximum number of idle listeners on PostgreSQL; default 1,000
	Rounds       int           // default 3
	Slice        time.Duration // time with each number of idle listeners in each round; default 3 s
}

// PingPongConnections returns how many connections of PostgreSQL it needs.
func PingPongConnections(c PingPongConfig) int { return cmp.Or(c.IdlePostgres, 1000) + 40 }

// pingPongWay is one way to play, with its results by number of idle listeners.
type pingPongWay struct {
	name    string
	hub     bool
	durable bool
	sql     bool // messages are published in the database, not through the hub
	sizes   []int
	rates   [][]float64
	h       []load.Histogram
	done    []int64
}

// PingPong lets two connections notify each other, one reply per notification, with more and more idle listeners on other channels.
func PingPong(ctx context.Context, d *load.Database, e load.Engine, c PingPongConfig) (r *load.Report, err error) {
	c.Idle = cmp.Or(c.Idle, 10_000)
	c.IdlePostgres = cmp.Or(c.IdlePostgres, 1000)
	c.Rounds = cmp.Or(c.Rounds, 3)
	c.Slice = cmp.Or(c.Slice, 3*time.Second)
	if err := mayOpen(max(c.Idle, c.IdlePostgres) + spare); err != nil {
		return nil, err
	}
	if r, err = d.Begin(ctx, "pingpong", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("two connections of the wire protocol, a NOTIFY for each notification; a round trip is one there and one back; %d rounds of %s with each number of idle listeners, which grows and then goes back to none",
		c.Rounds, c.Slice)
	r.Hub = &load.HubFigures{}
	ways := []*pingPongWay{
		{name: "hub, passed on at once", hub: true, sizes: upTo(c.Idle)},
		{name: "hub, logged first", hub: true, durable: true, sizes: upTo(c.Idle)},
		{name: "hub, published by SQL", hub: true, durable: true, sql: true, sizes: []int{0}},
		{name: "PostgreSQL", sizes: upTo(c.IdlePostgres)},
	}
	for round := range c.Rounds {
		for _, w := range ways {
			if err := w.turn(ctx, d, c); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", w.name, err)
			}
			d.Say("pingpong, round %d of %d, %s: %s", round+1, c.Rounds, w.name, w.latest())
		}
	}
	for _, w := range ways {
		w.report(r)
	}
	for _, w := range ways[:2] {
		for i := range w.sizes[1:] {
			ratio := r.Hub.Compare(fmt.Sprintf("round trips with %d idle listeners to none", w.sizes[i+1]), w.name, w.rates[i+1], w.rates[0])
			r.AtLeast(fmt.Sprintf("ratio of round trips with %d idle listeners to none, %s", w.sizes[i+1], w.name), ratio.Median, 0.85)
		}
		if at, ok := crossing(w, ways[3]); ok {
			r.Hub.Crossings = append(r.Hub.Crossings, load.Crossing{Way: w.name, Idle: at})
		}
	}
	return r, nil
}

// upTo returns 0, 10, 100 and so on, and n.
func upTo(n int) []int {
	sizes := []int{0}
	for size := 10; size < n; size *= 10 {
		sizes = append(sizes, size)
	}
	return append(sizes, n)
}

// turn measures once with each number of idle listeners.
func (w *pingPongWay) turn(ctx context.Context, d *load.Database, c PingPongConfig) (err error) {
	a, err := accountOf(d.URL)
	if err != nil {
		return err
	}
	address := a.home
	if w.hub {
		h, err := startHub(ctx, d, c.HubConfig, d.URL, w.durable)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, h.close()) }()
		address = h.at.PG
	}
	var pair [2]player
	for i := range pair {
		if err := pair[i].join(ctx, w, a, address, i); err != nil {
			return err
		}
		defer pair[i].leave()
	}
	if _, _, err := playFor(pair, min(c.Slice/5, 500*time.Millisecond)); err != nil {
		return err
	}
	for i, size := range w.sizes {
		if i == len(w.rates) {
			w.rates, w.h, w.done = append(w.rates, nil), append(w.h, load.NewHistogram()), append(w.done, 0)
		}
		if i > 0 {
			before := w.sizes[i-1]
			crowd, err := gather(ctx, CrowdSpec{
				Transport: PG, Address: address, Database: d.URL, First: before, Count: size - before, Channel: "weir_bench_idle_", Own: true,
			}, nil)
			if err != nil {
				return err
			}
			defer crowd.leave()
		}
		began := time.Now()
		h, n, err := playFor(pair, c.Slice)
		if err != nil {
			return err
		}
		w.done[i] += n
		w.h[i].Merge(h)
		w.rates[i] = append(w.rates[i], float64(n)/time.Since(began).Seconds())
	}
	return nil
}

// player is one of the two connections.
type player struct {
	hears, says *wire // the same connection, unless messages are published in the database
	hit         []byte
	unbound     []func()
}

func (p *player) join(ctx context.Context, w *pingPongWay, a *account, address string, i int) (err error) {
	defer func() {
		if err != nil {
			p.leave()
		}
	}()
	if p.hears, err = a.login(ctx, address, i); err != nil {
		return err
	}
	p.unbound = append(p.unbound, p.hears.bound(ctx))
	if err := p.hears.listen(fmt.Sprintf("weir_bench_%d", i)); err != nil {
		return err
	}
	if !w.sql {
		p.says = p.hears
		p.hit, err = encodeAll(&pgproto3.Query{String: fmt.Sprintf("NOTIFY weir_bench_%d, 'ball'", 1-i)})
		return err
	}
	if p.says, err = a.login(ctx, a.home, i); err != nil {
		return err
	}
	p.unbound = append(p.unbound, p.says.bound(ctx))
	if err := p.says.prepare("hit", fmt.Sprintf("SELECT weir.publish('weir_bench_%d', 'ball')", 1-i)); err != nil {
		return err
	}
	p.hit, err = pipeline("hit")
	return err
}

func (p *player) leave() {
	for _, unbound := range p.unbound {
		unbound()
	}
	if p.says != nil && p.says != p.hears {
		p.says.hangUp()
	}
	if p.hears != nil {
		p.hears.hangUp()
	}
}

// playFor plays for the given time.
func playFor(pair [2]player, d time.Duration) (h load.Histogram, n int64, err error) {
	h = load.NewHistogram()
	began := time.Now()
	for now := began; now.Sub(began) < d; n++ {
		for i, p := range pair {
			if _, err := p.says.conn.Write(p.hit); err != nil {
				return h, n, err
			}
			if _, err := pair[1-i].hears.until('A'); err != nil {
				return h, n, err
			}
			if p.says != p.hears { // otherwise the answer is read with the next message
				if err := p.says.ready(); err != nil {
					return h, n, err
				}
			}
		}
		next := time.Now()
		h.Add(next.Sub(now))
		now = next
	}
	return h, n, nil
}

func (w *pingPongWay) latest() (text string) {
	for i, size := range w.sizes {
		text += fmt.Sprintf("%d idle %.0f/s; ", size, w.rates[i][len(w.rates[i])-1])
	}
	return text[:len(text)-2]
}

func (w *pingPongWay) report(r *load.Report) {
	for i, size := range w.sizes {
		r.Hub.Ways = append(r.Hub.Ways, load.Way{
			Way: w.name, Idle: &size, Unit: "round trips", Done: w.done[i], PerSecond: load.SpreadOf(w.rates[i]), P50: w.h[i].At(50), P99: w.h[i].At(99),
		})
	}
}

// crossing returns the number of idle listeners from which on the hub is faster than PostgreSQL; false: it is not, as far as was measured. Between
// two measured numbers, it interpolates linearly in logarithms.
func crossing(hub, postgres *pingPongWay) (int, bool) {
	median := func(w *pingPongWay, i int) float64 { return math.Log(load.SpreadOf(w.rates[i]).Median) }
	lead := func(i int) (lead float64, ok bool) { // of the hub over PostgreSQL, with the same number of listeners
		at := slices.Index(hub.sizes, postgres.sizes[i])
		if at < 0 {
			return 0, false
		}
		return median(hub, at) - median(postgres, i), true
	}
	last, lastSize := 0.0, 0
	for i, size := range postgres.sizes {
		now, ok := lead(i)
		if !ok {
			continue
		}
		if now >= 0 {
			if i == 0 {
				return 0, true
			}
			from, to := math.Log1p(float64(lastSize)), math.Log1p(float64(size))
			return int(math.Round(math.Expm1(from + (to-from)*last/(last-now)))), true
		}
		last, lastSize = now, size
	}
	return 0, false
}
