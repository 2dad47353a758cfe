package share

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// database is a worker of a database, as far as it shares slots: it claims whenever it is told to, or looks by itself now and then.
type database struct {
	*Member
	t       *testing.T
	running func(n int) // counts those of all
	claims  time.Duration
	job     time.Duration
	told    chan struct{}

	mu      sync.Mutex
	backlog int
	done    int
	longest time.Duration // that a job has waited
	since   time.Time
	now     int          // that were claimed, and have not ended
	waiting atomic.Int32 // of these
}

func join(t *testing.T, s *Slots, claims, job time.Duration, running func(int)) *database {
	d := &database{t: t, claims: claims, job: job, running: running, told: make(chan struct{}, 1)}
	d.Member = s.Join(d.tell)
	return d
}

func (d *database) tell() {
	select {
	case d.told <- struct{}{}:
	default:
	}
}

// arrive adds jobs.
func (d *database) arrive(n int) {
	d.mu.Lock()
	if d.backlog == 0 {
		d.since = time.Now()
	}
	d.backlog += n
	d.mu.Unlock()
	d.tell()
}

// start starts jobs that were claimed.
func (d *database) start() {
	for d.waiting.Load() > 0 && d.Enter() {
		if d.waiting.Add(-1) < 0 { // another one was faster
			d.waiting.Add(1)
			d.Ended()
			return
		}
		d.running(1)
		go func() {
			time.Sleep(time.Duration(float64(d.job) * (0.5 + rand.Float64())))
			d.mu.Lock()
			d.now--
			d.done++
			d.mu.Unlock()
			d.running(-1)
			d.Ended()
		}()
	}
}

func (d *database) work(until time.Time) {
	for time.Now().Before(until) {
		d.mu.Lock()
		want := 1000 - d.now
		d.mu.Unlock()
		if d.Free() == 0 || want == 0 {
			d.wait(7 * time.Second)
			continue
		}
		reserved := d.Reserve(want)
		if reserved == 0 {
			d.wait(7 * time.Second)
			continue
		}
		time.Sleep(d.claims)
		d.mu.Lock()
		got := min(reserved, d.backlog)
		if got > 0 {
			d.longest = max(d.longest, time.Since(d.since))
			d.since = time.Now()
		}
		d.backlog -= got
		d.now += got
		d.mu.Unlock()
		d.Settle(got)
		d.waiting.Add(int32(got))
		d.start()
		if got == 0 {
			d.wait(time.Second)
		}
	}
}

func (d *database) wait(most time.Duration) {
	select {
	case <-d.told:
		d.start()
	case <-time.After(most):
	}
}

// counter counts jobs that run.
type counter struct {
	mu        sync.Mutex
	now, most int
}

func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

// TestPartsAreFair: of databases with deep backlogs, each gets its part, whoever came first; what they leave, others get; no more run than there are slots, and hardly ever fewer.
func TestPartsAreFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, end = 24, 2 * time.Minute
		s, c := New(limit), &counter{}
		begin := time.Now()
		var all []*database
		var workers sync.WaitGroup
		for n := range 6 {
			d := join(t, s, 3*time.Millisecond, 100*time.Millisecond, c.add)
			all = append(all, d)
			switch {
			case n < 3:
				d.arrive(1_000_000)
			case n == 3: // one job now and then
				workers.Go(func() {
					for time.Since(begin) < end {
						d.arrive(1)
						time.Sleep(400 * time.Millisecond)
					}
				})
			} // and two are idle
			workers.Go(func() { d.work(begin.Add(end)) })
		}
		workers.Wait()
		time.Sleep(time.Minute) // the jobs end
		synctest.Wait()
		sum, most := 0, 0
		for _, d := range all[:3] {
			sum += d.done
			most = max(most, d.done)
		}
		for n, d := range all[:3] {
			if float64(d.done) < 0.85*float64(most) {
				t.Errorf("database %d has done %d jobs, another %d", n, d.done, most)
			}
		}
		if d := all[3]; d.backlog > 1 || d.longest > 300*time.Millisecond {
			t.Errorf("of few jobs, %d are left, and one has waited for %v", d.backlog, d.longest)
		}
		if c.most > limit {
			t.Errorf("%d jobs ran at once, of %d", c.most, limit)
		}
		if least := limit * int(end/(100*time.Millisecond)) * 85 / 100; sum < least {
			t.Errorf("%d jobs were done, want at least %d", sum, least)
		}
	})
}

// TestADatabaseThatCrawlsTakesNothing: claims of one database take five seconds, another's never end; the third does as much as it would alone.
func TestADatabaseThatCrawlsTakesNothing(t *testing.T) {
	t.Parallel()
	done := map[bool]int{}
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const limit, end = 16, time.Minute
			s, c := New(limit), &counter{}
			begin := time.Now()
			var workers sync.WaitGroup
			if !alone {
				for _, claims := range []time.Duration{5 * time.Second, time.Hour} {
					d := join(t, s, claims, time.Millisecond, c.add)
					d.arrive(1000)
					workers.Go(func() { d.work(begin.Add(end)) })
				}
			}
			d := join(t, s, 2*time.Millisecond, 20*time.Millisecond, c.add)
			d.arrive(1_000_000)
			d.work(begin.Add(end))
			workers.Wait()
			time.Sleep(time.Minute) // its jobs end
			synctest.Wait()
			done[alone] = d.done
			if c.most > limit {
				t.Errorf("%d jobs ran at once, of %d", c.most, limit)
			}
		})
	}
	if float64(done[false]) < 0.95*float64(done[true]) {
		t.Errorf("%d jobs beside databases that crawl, %d alone", done[false], done[true])
	}
}

// TestSlotsAreKeptByWhatRuns: whoever leaves keeps the slots of its jobs until they end, and wants no more.
func TestSlotsAreKeptByWhatRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(4)
		told := 0
		a, b := s.Join(func() {}), s.Join(func() { told++ })
		if n := a.Reserve(10); n != 4 {
			t.Fatal(n)
		}
		a.Settle(4)
		if n := b.Free(); n != 0 {
			t.Fatal(n)
		}
		for range 4 {
			if !a.Enter() {
				t.Fatal("a job that has a slot can't start")
			}
		}
		a.Leave()
		if told != 0 || b.Free() != 0 {
			t.Error("there is room while the jobs run")
		}
		for range 3 {
			a.Ended()
		}
		if told == 0 || b.Reserve(10) != 3 {
			t.Error("there is none though they have ended")
		}
		b.Settle(0)
		a.Ended()
		if n := b.Free(); n != 4 {
			t.Error(n)
		}
	})
}

// TestWhoHasLeftWantsNothing: the last jobs of a worker that has ended ask for room when they end. That must not make it one of those that share the slots again.
func TestWhoHasLeftWantsNothing(t *testing.T) {
	t.Parallel()
	s := New(2)
	told := 0
	m, other := s.Join(func() { told++ }), s.Join(func() {})
	for _, each := range []*Member{m, other} {
		if got := each.Reserve(1); got != 1 || !each.Enter() {
			t.Fatal(got)
		}
		each.Settle(1)
	}
	m.Leave()
	m.Ended()
	if got := other.Reserve(1); got != 1 {
		t.Fatal(got)
	}
	other.Settle(1)
	if n := m.Free(); n != 0 {
		t.Errorf("it may reserve %d", n)
	}
	other.Dropped(1)
	other.Ended()
	if s.active != 0 || len(s.wanting) != 0 || told != 0 {
		t.Errorf("%d are active, %d want some, and it was told %d times", s.active, len(s.wanting), told)
	}
	if n := m.Reserve(1); n != 0 {
		t.Errorf("it has reserved %d", n)
	}
}

// TestAClaimThatHangsLendsItsSlotsAtOnce: whoever wants slots that a claim has reserved is told of them soon, though the claim is never answered.
func TestAClaimThatHangsLendsItsSlotsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(4)
		told := make(chan struct{}, 10)
		hangs, other := s.Join(func() {}), s.Join(func() { told <- struct{}{} })
		if got := hangs.Reserve(4); got != 4 {
			t.Fatal(got)
		}
		began := time.Now()
		if n := other.Free(); n != 0 {
			t.Fatalf("%d slots are free", n)
		}
		for other.Free() == 0 {
			<-told
		}
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("its slots were lent after %s", took)
		}
		if got := other.Reserve(4); got == 0 {
			t.Error("none can be reserved")
		}
		other.Settle(0)
	})
}

// TestWhoseClaimsAreLateHoldsNoSlots: others have the slots that its next claims reserve from the beginning, so a database whose claims are a little late does not keep slots from them again and again.
func TestWhoseClaimsAreLateHoldsNoSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(4)
		crawls, crawlsToo, other := s.Join(func() {}), s.Join(func() {}), s.Join(func() {})
		for _, m := range []*Member{crawls, crawlsToo} {
			if got := m.Reserve(4); got != 4 {
				t.Fatal(got)
			}
			time.Sleep(2 * lendsAfter)
			m.Settle(0)
		}
		if got := crawls.Reserve(4); got != 4 {
			t.Fatal(got)
		}
		if got := other.Reserve(4); got != 4 {
			t.Fatalf("%d slots are free while a claim is on its way after one that was late", got)
		}
		other.Settle(4)
		for range 4 {
			if !other.Enter() {
				t.Fatal("a job that has a slot can't start")
			}
		}
		crawls.Settle(4) // in time
		if crawls.Enter() {
			t.Error("more jobs run than there are slots")
		}
		for range 4 {
			other.Ended()
		}
		for range 4 {
			if !crawls.Enter() {
				t.Error("a job can't start though there is room")
			}
			crawls.Ended()
		}
		if got := crawlsToo.Reserve(4); got != 4 || s.lent != 4 {
			t.Fatalf("it has reserved %d, of which %d are lent", got, s.lent)
		}
		if got := crawls.Reserve(4); got != 4 || s.lent != 4 {
			t.Errorf("it has reserved %d, and %d are lent, of 4 that there are", got, s.lent)
		}
		crawls.Settle(0)
		crawlsToo.Settle(0)
		time.Sleep(lendsFor)
		if got := crawls.Reserve(4); got != 4 || s.lent != 0 {
			t.Errorf("it has reserved %d, of which %d are lent, though its claims have long been in time", got, s.lent)
		}
		crawls.Settle(0)
		if s.used != 0 || s.lent != 0 {
			t.Errorf("%d are used and %d lent in the end", s.used, s.lent)
		}
	})
}
