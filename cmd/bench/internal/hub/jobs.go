package hub

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-pg/weir/cmd/internal/load"
	"github.com/weir-pg/weir/internal/sleep"
)

// JobsConfig configures Jobs.
type JobsConfig struct {
	HubConfig
	Jobs   int           // of each way in each round; default 100,000
	Rounds int           // default 3
	Slots  int           // default 1000
	Takers int           // calls of take at once, each for Slots / Takers jobs; default 20
	Slow   time.Duration // how long a job takes in the second part; default 10 ms
	Looks  int           // jobs whose latency is measured; default 200
	Idle   int           // sessions that wait; default 10,000
	Slice  time.Duration // how long each way to enqueue is measured in each round; default 3 s
}

// Jobs measures jobs worked over HTTP, next to a worker with a connection to the database: no-op jobs, jobs that take a while, the time from commit to handler, and what
// idle sessions cost the hub. The hub is a process of its own; the workers share this one.
func Jobs(ctx context.Context, d *load.Database, e load.Engine, c JobsConfig) (r *load.Report, err error) {
	c.Jobs, c.Rounds, c.Slots, c.Takers = cmp.Or(c.Jobs, 100_000), cmp.Or(c.Rounds, 3), cmp.Or(c.Slots, 1000), cmp.Or(c.Takers, 20)
	c.Slow, c.Looks, c.Idle = cmp.Or(c.Slow, 10*time.Millisecond), cmp.Or(c.Looks, 200), cmp.Or(c.Idle, 10_000)
	c.Slice = cmp.Or(c.Slice, 3*time.Second)
	if err := mayOpen(c.Idle + spare); err != nil {
		return nil, err
	}
	if r, err = d.Begin(ctx, "http", e); err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("jobs over HTTP, from a hub in a process of its own, next to a worker with a connection to the database; each with %d slots", c.Slots)
	r.Hub = &load.HubFigures{}
	h, err := startHub(ctx, d, c.HubConfig, d.URL, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	b := &jobsBench{Database: d, engine: e, JobsConfig: c, url: "http://" + h.at.HTTP, hub: h}
	ways := []jobsWay{{"a connection to the database", b.native}, {"WebSocket", b.socket}, {fmt.Sprintf("take, %d calls at once", c.Takers), b.takes}}
	for _, part := range []struct {
		what string
		jobs int
		took time.Duration
	}{{"no-op jobs", c.Jobs, 0}, {fmt.Sprintf("jobs of %s", c.Slow), min(c.Jobs, 20_000), c.Slow}} {
		rates := make([][]float64, len(ways))
		for round := range c.Rounds {
			for i, way := range ways {
				d.Say("round %d: %s, %s", round+1, part.what, way.name)
				rate, err := b.drain(ctx, way, part.jobs, part.took)
				if err != nil {
					return nil, fmt.Errorf("bench: %s: %w", way.name, err)
				}
				rates[i] = append(rates[i], rate)
			}
		}
		for i, way := range ways {
			r.Hub.Ways = append(r.Hub.Ways, load.Way{Way: way.name, Under: part.what, Unit: "jobs", Done: int64(part.jobs * c.Rounds), PerSecond: load.SpreadOf(rates[i])})
			if i > 0 {
				ratio := r.Hub.Compare(way.name+" to a connection", part.what, rates[i], rates[0])
				if part.took > 0 && i == 1 {
					r.AtLeast("ratio of "+way.name+" to a connection, "+part.what, ratio.Median, 0.95)
				}
			}
		}
		if part.took == 0 {
			r.AtLeast("no-op jobs per second over a WebSocket", load.SpreadOf(rates[1]).Median, 10_000)
			r.AtLeast("no-op jobs per second by take", load.SpreadOf(rates[2]).Median, 3_000)
		}
	}
	var p50 [2]float64
	for i, way := range ways[:2] {
		d.Say("latency, %s", way.name)
		times, err := b.latency(ctx, way)
		if err != nil {
			return nil, fmt.Errorf("bench: latency, %s: %w", way.name, err)
		}
		p50[i] = *times.At(50)
		r.Hub.Ways = append(r.Hub.Ways, load.Way{Way: way.name, Under: "from commit to handler", Unit: "jobs", Done: int64(c.Looks), P50: times.At(50), P99: times.At(99)})
	}
	r.AtMost("ms from commit to handler over a WebSocket on top of a connection, p50", p50[1]-p50[0], 2)
	for _, way := range enqueueWays {
		rates := make([]float64, c.Rounds)
		for round := range rates {
			d.Say("round %d: %s", round+1, way.name)
			if rates[round], err = b.enqueue(ctx, way, c.Slice); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", way.name, err)
			}
		}
		r.Hub.Ways = append(r.Hub.Ways, load.Way{Way: way.name, Clients: way.clients, Unit: "jobs", PerSecond: load.SpreadOf(rates)})
	}
	pushes := make([]float64, c.Rounds)
	for round := range pushes {
		d.Say("round %d: push", round+1)
		if pushes[round], err = b.push(ctx, min(c.Jobs, 20_000)); err != nil {
			return nil, fmt.Errorf("bench: push: %w", err)
		}
	}
	r.Hub.Ways = append(r.Hub.Ways, load.Way{Way: "push", Under: fmt.Sprintf("to an endpoint that answers at once, %d requests at once", pushAtOnce), Unit: "jobs", Done: int64(min(c.Jobs, 20_000) * c.Rounds), PerSecond: load.SpreadOf(pushes)})
	d.Say("%d idle sessions", c.Idle)
	way, err := b.idle(ctx)
	if err != nil {
		return nil, fmt.Errorf("bench: idle sessions: %w", err)
	}
	r.Hub.Ways = append(r.Hub.Ways, *way)
	dead, err := d.DeadTuples(ctx, e)
	if err == nil && dead != nil {
		r.AtMost("dead rows", float64(*dead), 0)
	}
	return r, err
}

// jobsWay works jobs of a queue, each with run, until ctx ends.
type jobsWay struct {
	name string
	work func(ctx context.Context, queue string, run func(number int64), recorded func(int)) error
}

type jobsBench struct {
	*load.Database
	JobsConfig
	engine load.Engine
	url    string
	hub    *hubProcess
}

// drain enqueues jobs, works them, and returns how many a second.
func (b *jobsBench) drain(ctx context.Context, way jobsWay, jobs int, takes time.Duration) (rate float64, err error) {
	pool, client, err := b.Client(ctx, b.engine, 4)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	if err := client.Fill(ctx, load.Queue, jobs); err != nil {
		return 0, err
	}
	m := &load.Meter{}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		failed <- way.work(ctx, load.Queue, func(int64) {
			m.Start()
			if takes > 0 {
				sleep.For(ctx, takes)
			}
		}, m.Add)
	}()
	if err := m.Reach(ctx, int64(jobs), failed); err != nil {
		return 0, err
	}
	stop()
	<-failed
	return float64(jobs) / m.Took().Seconds(), nil
}

// latency enqueues one job at a time, while way waits for them.
func (b *jobsBench) latency(ctx context.Context, way jobsWay) (load.Histogram, error) {
	pool, client, err := b.Client(ctx, b.engine, 1)
	if err != nil {
		return load.Histogram{}, err
	}
	defer pool.Close()
	s, m := load.NewStamps(b.Looks+1), &load.Meter{}
	working, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		failed <- way.work(working, load.Queue, func(number int64) { s.Start(working, number) }, m.Add)
	}()
	for n := range int64(b.Looks) + 1 { // the first one only shows that it works
		if err := client.Enqueue(ctx, nil, load.Queue, n); err != nil {
			return load.Histogram{}, err
		}
		s.Commit(n)
		if n == 0 {
			if err := m.Reach(ctx, 1, failed); err != nil {
				return load.Histogram{}, err
			}
		}
		if !sleep.For(ctx, 30*time.Millisecond) {
			return load.Histogram{}, ctx.Err()
		}
	}
	if err := m.Reach(ctx, int64(b.Looks)+1, failed); err != nil {
		return load.Histogram{}, err
	}
	stop()
	<-failed
	return s.Latencies(1, int64(b.Looks)+1), nil
}

func (b *jobsBench) native(ctx context.Context, queue string, run func(int64), recorded func(int)) error {
	pool, client, err := b.Client(ctx, b.engine, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	stop, failed := load.Start(context.WithoutCancel(ctx), client, load.Work{Queues: map[string]int{queue: b.Slots}, Run: func(_ context.Context, n int64) { run(n) }, Recorded: recorded})
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	return errors.Join(err, stop())
}

// remoteJob is a job as the hub gives it out.
type remoteJob struct {
	Token string `json:"token"`
	Args  struct {
		Number int64 `json:"n"`
	} `json:"args"`
}

type remoteEnd struct {
	Token string `json:"token"`
}

// runAll runs jobs at once, and passes their ends on in groups as they come.
func runAll(jobs []remoteJob, run func(int64), end func([]remoteEnd)) {
	ends := make(chan remoteEnd, len(jobs))
	for _, j := range jobs {
		go func() {
			run(j.Args.Number)
			ends <- remoteEnd{j.Token}
		}()
	}
	for left := len(jobs); left > 0; {
		group := []remoteEnd{<-ends}
		for more := true; more; {
			select {
			case e := <-ends:
				group = append(group, e)
			default:
				more = false
			}
		}
		left -= len(group)
		end(group)
	}
}

func (b *jobsBench) socket(ctx context.Context, queue string, run func(int64), recorded func(int)) error {
	conn, err := b.dial(ctx, queue, b.Slots)
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	var mu sync.Mutex // one record follows the other
	for {
		_, text, err := conn.Read(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var m struct {
			Type    string
			Jobs    []remoteJob
			Results []struct{ Recorded bool }
			Error   string
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return err
		}
		switch m.Type {
		case "jobs":
			go runAll(m.Jobs, run, func(ends []remoteEnd) {
				mu.Lock()
				defer mu.Unlock()
				text, _ := json.Marshal(map[string]any{"type": "record", "id": 1, "ends": ends})
				_ = conn.Write(ctx, websocket.MessageText, text)
			})
		case "recorded":
			for _, r := range m.Results {
				if !r.Recorded {
					return errors.New("an end was refused")
				}
			}
			recorded(len(m.Results))
		case "error":
			return errors.New(m.Error)
		}
	}
}

// dial opens a session.
func (b *jobsBench) dial(ctx context.Context, queue string, slots int) (*websocket.Conn, error) {
	conn, _, err := websocket.Dial(ctx, b.url+"/v1/work/ws", &websocket.DialOptions{Subprotocols: []string{"weir.work.v1"}})
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(64 << 20)
	text, _ := json.Marshal(map[string]any{"type": "open", "queues": map[string]int{queue: slots}})
	if err := conn.Write(ctx, websocket.MessageText, text); err != nil {
		return nil, err
	}
	_, _, err = conn.Read(ctx)
	return conn, err
}

func (b *jobsBench) takes(ctx context.Context, queue string, run func(int64), recorded func(int)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, b.Takers)
	for range b.Takers {
		go func() { failed <- b.taker(ctx, queue, b.Slots/b.Takers, run, recorded) }()
	}
	var err error
	for range b.Takers {
		if one := <-failed; one != nil && ctx.Err() == nil {
			err = one
			stop()
		}
	}
	return err
}

func (b *jobsBench) taker(ctx context.Context, queue string, slots int, run func(int64), recorded func(int)) error {
	worker := ""
	for ctx.Err() == nil {
		var taken struct {
			Worker string
			Jobs   []remoteJob
		}
		if err := b.post(ctx, "take", map[string]any{"worker": worker, "queues": map[string]int{queue: slots}}, &taken); err != nil {
			return err
		}
		worker = taken.Worker
		if len(taken.Jobs) == 0 {
			continue
		}
		var all []remoteEnd
		runAll(taken.Jobs, run, func(some []remoteEnd) { all = append(all, some...) })
		var r struct{ Results []struct{ Recorded bool } }
		if err := b.post(ctx, "record", map[string]any{"ends": all}, &r); err != nil {
			return err
		}
		recorded(len(r.Results))
	}
	return nil
}

var jobsClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}

func (b *jobsBench) post(ctx context.Context, what string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/work/"+what, bytes.NewReader(text))
	if err != nil {
		return err
	}
	response, err := jobsClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// idle opens sessions that get no jobs, and measures what they cost.
func (b *jobsBench) idle(ctx context.Context) (*load.Way, error) {
	before, err := b.hub.usage(ctx, true)
	if err != nil {
		return nil, err
	}
	var open sync.WaitGroup
	places := make(chan struct{}, 64)
	conns, errs := make([]*websocket.Conn, b.Idle), make(chan error, b.Idle)
	for i := range conns {
		places <- struct{}{}
		open.Go(func() {
			defer func() { <-places }()
			var err error
			if conns[i], err = b.dial(ctx, "idle", 1); err != nil {
				errs <- err
			}
		})
	}
	open.Wait()
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.CloseNow()
			}
		}
	}()
	if len(errs) > 0 {
		return nil, <-errs
	}
	for _, conn := range conns {
		conn.CloseRead(ctx) // answers pings
	}
	if !sleep.For(ctx, 2*time.Second) {
		return nil, ctx.Err()
	}
	const during = 10 * time.Second
	from, err := b.hub.usage(ctx, false)
	if err != nil {
		return nil, err
	}
	server, known := b.ServerCPU()
	if !sleep.For(ctx, during) {
		return nil, ctx.Err()
	}
	to, err := b.hub.usage(ctx, false)
	if err != nil {
		return nil, err
	}
	way := &load.Way{
		Way: "WebSocket", Under: "idle sessions", Clients: b.Idle, Unit: "sessions", Done: int64(b.Idle),
		Each:  &load.Footprint{RSS: (to.RSS - before.RSS) / int64(b.Idle), Heap: (to.Heap - before.Heap) / int64(b.Idle), Stack: (to.Stack - before.Stack) / int64(b.Idle)},
		Cores: &load.Cores{Hub: (to.CPU - from.CPU).Seconds() / during.Seconds()},
	}
	if after, ok := b.ServerCPU(); ok && known {
		way.Cores.Postgres = new((after - server).Seconds() / during.Seconds())
	}
	return way, nil
}
