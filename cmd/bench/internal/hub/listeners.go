package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// ListenersConfig configures Listeners.
type ListenersConfig struct {
	HubConfig
	Subscribers int           // default 50,000
	Transports  []Transport   // default all
	Backends    int           // number of sessions of PostgreSQL, for comparison; default 100
	Settle      time.Duration // time between the arrival of the last subscriber and the measurement; default 10 s
}

// ListenersConnections returns how many connections of PostgreSQL it needs.
func ListenersConnections(c ListenersConfig) int { return cmp.Or(c.Backends, 100) + 60 }

// Listeners measures the memory of idle subscribers, each with its own channel, in the hub's process, and the memory of a PostgreSQL session.
// If a process may not open that many files, several hubs share the subscribers.
func Listeners(ctx context.Context, d *load.Database, e load.Engine, c ListenersConfig) (r *load.Report, err error) {
	c.Subscribers = cmp.Or(c.Subscribers, 50_000)
	c.Backends = cmp.Or(c.Backends, 100)
	c.Settle = cmp.Or(c.Settle, 10*time.Second)
	if len(c.Transports) == 0 {
		c.Transports = []Transport{PG, WS, SSE}
	}
	for _, t := range c.Transports {
		if err := t.check(); err != nil {
			return nil, err
		}
	}
	if _, ok := load.OwnRSS(); !ok {
		return nil, errors.New("bench: this system does not report the memory of a process: run the bench on Linux or macOS")
	}
	if r, err = d.Begin(ctx, "listeners", e); err != nil {
		return nil, err
	}
	shares := shareOut(c.Subscribers)
	r.Note = fmt.Sprintf("idle subscribers, each on a channel of its own, logged in with a password over pg; the growth of the resident memory of %d hub(s), %s after the last has subscribed, by the number of subscribers; the kernel's memory for sockets is not in it",
		len(shares), c.Settle)
	r.Hub = &load.HubFigures{}
	for _, t := range c.Transports {
		l := &listeners{Database: d, config: c, transport: t}
		way, err := l.measure(ctx, shares)
		if err != nil {
			return nil, fmt.Errorf("bench: %s: %w", t, err)
		}
		r.Hub.Ways = append(r.Hub.Ways, *way)
		r.AtMost("bytes of resident memory of one idle subscriber over "+string(t), float64(way.Each.RSS), 12_000)
	}
	way, err := backends(ctx, d, c.Backends)
	if err != nil {
		return nil, fmt.Errorf("bench: backends of PostgreSQL: %w", err)
	}
	if way != nil {
		r.Hub.Ways = append(r.Hub.Ways, *way)
	}
	return r, nil
}

// shareOut divides subscribers among as few hubs as possible, given how many files each may open.
func shareOut(n int) (shares []int) {
	hubs := 1
	if limit := openFiles() - spare; limit > 0 {
		hubs = (n + limit - 1) / limit
	}
	for i := range hubs {
		shares = append(shares, (n+i)/hubs)
	}
	return shares
}

// listeners measures one transport.
type listeners struct {
	*load.Database
	config    ListenersConfig
	transport Transport
}

func (l *listeners) measure(ctx context.Context, shares []int) (way *load.Way, err error) {
	var hubs []*hubProcess
	var crowds []*process
	defer func() {
		for _, p := range crowds {
			err = errors.Join(err, p.close())
		}
		for _, h := range hubs {
			err = errors.Join(err, h.close())
		}
	}()
	for range shares {
		h, err := startHub(ctx, l.Database, l.config.HubConfig, l.URL, false)
		if err != nil {
			return nil, err
		}
		hubs = append(hubs, h)
		p, err := spawn(ctx, l.Database, l.config.Spawn)
		if err != nil {
			return nil, err
		}
		crowds = append(crowds, p)
		// The first subscriber causes the allocations that all share.
		if err := l.join(ctx, h, p, 0, 1); err != nil {
			return nil, err
		}
	}
	before, err := footprints(ctx, hubs)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for i, n := range shares {
		if err := l.join(ctx, hubs[i], crowds[i], 1, n); err != nil {
			return nil, err
		}
		l.Say("listeners over %s: hub %d of %d has its %d subscribers", l.transport, i+1, len(shares), n)
	}
	took := time.Since(began).Seconds()
	if !sleep.For(ctx, l.config.Settle) {
		return nil, ctx.Err()
	}
	after, err := footprints(ctx, hubs)
	if err != nil {
		return nil, err
	}
	for _, p := range crowds {
		if err := p.ask(ctx, "Leave", struct{}{}, &struct{}{}); err != nil {
			return nil, err
		}
	}
	n := int64(l.config.Subscribers - len(shares))
	each := load.Footprint{
		RSS: (after.RSS - before.RSS) / n, Trimmed: (after.Trimmed - before.Trimmed) / n,
		Heap: (after.Heap - before.Heap) / n, Stack: (after.Stack - before.Stack) / n,
	}
	return &load.Way{
		Way: "hub, over " + string(l.transport), Clients: l.config.Subscribers, Unit: "subscribers", Done: n,
		Seconds: load.SpreadOf([]float64{took}), Each: &each,
	}, nil
}

// join connects the subscribers from number from up to number to with a hub.
func (l *listeners) join(ctx context.Context, h *hubProcess, p *process, from, to int) error {
	if from >= to {
		return nil
	}
	spec := CrowdSpec{
		Transport: l.transport, Address: h.address(l.transport), Database: l.URL, First: from, Count: to - from, Channel: "weir_bench_idle_", Own: true,
	}
	if err := p.ask(ctx, "Gather", spec, &struct{}{}); err != nil {
		return err
	}
	return h.serves(ctx, to)
}

// footprints returns the sum of the hubs' memory.
func footprints(ctx context.Context, hubs []*hubProcess) (sum load.Footprint, err error) {
	for _, h := range hubs {
		asIs, err := h.usage(ctx, false)
		if err != nil {
			return sum, err
		}
		trimmed, err := h.usage(ctx, true)
		if err != nil {
			return sum, err
		}
		sum.RSS += asIs.RSS
		sum.Trimmed += trimmed.RSS
		sum.Heap += trimmed.Heap
		sum.Stack += trimmed.Stack
	}
	return sum, nil
}

// backends measures the memory of sessions that listen on PostgreSQL itself; nil: the system does not report it.
func backends(ctx context.Context, d *load.Database, n int) (*load.Way, error) {
	before, ok := serverPSS(d)
	if !ok {
		return nil, nil
	}
	a, err := accountOf(d.URL)
	if err != nil {
		return nil, err
	}
	crowd, err := gather(ctx, CrowdSpec{Transport: PG, Address: a.home, Database: d.URL, Count: n, Channel: "weir_bench_idle_", Own: true}, nil)
	if err != nil {
		return nil, err
	}
	defer crowd.leave()
	after, ok := serverPSS(d)
	if !ok {
		return nil, nil
	}
	return &load.Way{Way: "PostgreSQL, a backend each", Clients: n, Unit: "subscribers", Done: int64(n), Each: &load.Footprint{PSS: (after - before) / int64(n)}}, nil
}

// serverPSS returns the memory of all processes of a private server, with shared memory counted once; false: the system does not report it.
func serverPSS(d *load.Database) (bytes int64, ok bool) {
	if d.Server == nil {
		return 0, false
	}
	postmaster := strconv.Itoa(d.Server.PID())
	files, err := filepath.Glob("/proc/[0-9]*/smaps_rollup")
	if err != nil {
		return 0, false
	}
	for _, file := range files {
		pid := filepath.Base(filepath.Dir(file))
		if pid != postmaster && parentOf(pid) != postmaster {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		for line := range strings.Lines(string(text)) {
			if kilobytes, found := strings.CutPrefix(line, "Pss:"); found {
				n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kilobytes), "kB")), 10, 64)
				bytes, ok = bytes+n<<10, ok || err == nil
			}
		}
	}
	return bytes, ok
}

func parentOf(pid string) string {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	// pid (name) state ppid …; the name may contain any character.
	if fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(fields) > 1 {
		return string(fields[1])
	}
	return ""
}
