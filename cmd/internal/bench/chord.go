package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-pg/weir/cmd/internal/load"
)

// ChordConfig configures Chord.
type ChordConfig struct {
	Members, Rounds           int // of the large chords
	SmallMembers, SmallRounds int // of the small ones, which show how soon callbacks come
}

const (
	flowConcurrency = 2000
	flowConnections = 4
)

// Chord creates chords, one after the other: flows of no-op jobs, which one worker in this process works while they are enqueued, and whose callback is a
// job of the same queue. It counts the rows that count the members, and measures how soon the callback starts when the last member's end is on disk.
func Chord(ctx context.Context, d *load.Database, e load.Engine, c ChordConfig) (*load.Report, error) {
	if c.Members < 1 || c.Rounds < 1 || c.SmallMembers < 1 || c.SmallRounds < 0 {
		return nil, fmt.Errorf("bench: chord needs at least one member and one round, got %d and %d, and %d and %d", c.Members, c.Rounds, c.SmallMembers, c.SmallRounds)
	}
	r, err := d.Begin(ctx, "chord", e)
	if err != nil {
		return nil, err
	}
	r.Note = fmt.Sprintf("flows of no-op jobs, one after the other, enqueued up to 10,000 at a time and worked meanwhile by one process with concurrency %d; the callback's delay is from the commit that ends the last member to its start", flowConcurrency)
	err = withFlows(ctx, d, e, func(f *flows) error {
		d.Say("warming up")
		if _, err := f.chord(ctx, 1, 1); err != nil { // connects, and plans
			return err
		}
		f.warm = true
		for _, size := range []struct{ members, rounds int }{{c.SmallMembers, c.SmallRounds}, {c.Members, c.Rounds}} {
			if size.rounds == 0 {
				continue
			}
			chord, err := f.chord(ctx, size.members, size.rounds)
			if err != nil {
				return err
			}
			r.Chords = append(r.Chords, *chord)
			r.AtMost(fmt.Sprintf("ms to the callback of a chord of %d, p99", size.members), chord.Callback.P99, 50)
			if size.members == c.Members {
				r.AtMost(fmt.Sprintf("arrival rows of a chord of %d", size.members), chord.Arrivals.Max, 300)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, noneDead(ctx, d, e, r)
}

// flows is a worker of flows, and a client that creates them one after the other.
type flows struct {
	db     *load.Database
	client load.FlowClient
	failed <-chan error // of the worker
	number int64        // of the last callback
	warm   bool         // what follows is measured

	meter    load.Meter
	wanted   atomic.Int64 // when so many jobs are recorded, the last member has ended
	ended    atomic.Int64 // then, in Unix nanoseconds; 0: not yet
	called   atomic.Int64 // the callback's number that has started
	calledAt atomic.Int64 // then
}

// withFlows runs f beside a worker.
func withFlows(ctx context.Context, d *load.Database, e load.Engine, f func(*flows) error) error {
	own, client, err := d.Client(ctx, e, 2)
	if err != nil {
		return err
	}
	defer own.Close()
	able, ok := client.(load.FlowClient)
	if !ok {
		return fmt.Errorf("bench: %s has no flows", e.Name())
	}
	pool, works, err := d.Client(ctx, e, flowConnections)
	if err != nil {
		return err
	}
	defer pool.Close()
	all := &flows{db: d, client: able, number: time.Now().UnixNano()} // no earlier bench has had these numbers
	stop, failed := load.Start(ctx, works, load.Work{
		Queues: map[string]int{load.Queue: flowConcurrency},
		Run: func(_ context.Context, number int64) {
			if number != 0 {
				all.calledAt.Store(time.Now().UnixNano())
				all.called.Store(number)
			}
		},
		Recorded: func(jobs int) {
			now := time.Now().UnixNano()
			if all.meter.Done.Load()+int64(jobs) >= all.wanted.Load() {
				all.ended.CompareAndSwap(0, now)
			}
			all.meter.Add(jobs)
		},
	})
	all.failed = failed
	return errors.Join(f(all), stop())
}

// one creates a flow with so many members, and waits for its callback. It returns how long after the last member's end that started, in this process's view:
// not at all, if the callback was faster than the worker's news of that end.
func (f *flows) one(ctx context.Context, members int, create func(callback int64) (int64, error)) (flow int64, after time.Duration, called time.Time, err error) {
	f.number++
	before := f.meter.Done.Load()
	f.wanted.Store(before + int64(members))
	f.ended.Store(0)
	if flow, err = create(f.number); err != nil {
		return 0, 0, called, fmt.Errorf("bench: create a flow: %w", err)
	}
	if err := f.meter.Reach(ctx, before+int64(members)+1, f.failed); err != nil {
		return 0, 0, called, err
	}
	if got := f.called.Load(); got != f.number {
		return 0, 0, called, fmt.Errorf("bench: %d jobs have ended, and the callback is not among them: others add jobs to queue %s", members+1, load.Queue)
	}
	called = time.Unix(0, f.calledAt.Load())
	return flow, called.Sub(time.Unix(0, f.ended.Load())), called, nil
}

// chord creates chords of one size.
func (f *flows) chord(ctx context.Context, members, rounds int) (*load.Chord, error) {
	callbacks := load.NewHistogram()
	var arrivals, seconds, rates []float64
	before, err := f.db.WAL(ctx)
	if err != nil {
		return nil, err
	}
	for round := range rounds {
		began := time.Now()
		flow, after, called, err := f.one(ctx, members, func(callback int64) (int64, error) { return f.client.Chord(ctx, load.Queue, members, callback) })
		if err != nil {
			return nil, err
		}
		callbacks.Add(after)
		took := called.Sub(began).Seconds()
		seconds, rates = append(seconds, took), append(rates, float64(members)/took)
		rows, err := f.client.Arrivals(ctx, flow)
		if err != nil {
			return nil, fmt.Errorf("bench: count arrivals: %w", err)
		}
		arrivals = append(arrivals, float64(rows))
		if f.warm && (round+1 == rounds || (round+1)%50 == 0 || members >= 10_000) {
			f.db.Say("chord of %d, round %d of %d: %d arrival rows, %.0f members/s, callback after %.1f ms", members, round+1, rounds, rows, rates[round], after.Seconds()*1000)
		}
	}
	wal, err := f.db.WAL(ctx)
	if err != nil {
		return nil, err
	}
	perMember := float64(wal-before) / float64(members*rounds)
	return &load.Chord{Members: members, Rounds: rounds, Arrivals: load.SpreadOf(arrivals), Callback: callbacks.Times(), Seconds: load.SpreadOf(seconds), Rate: load.SpreadOf(rates), WAL: &perMember}, nil
}

// noneDead adds the target that nothing dead is left.
func noneDead(ctx context.Context, d *load.Database, e load.Engine, r *load.Report) error {
	dead, err := d.DeadTuples(ctx, e)
	if err != nil {
		return err
	}
	r.AtMost("dead tuples", float64(*dead), 0)
	return nil
}
