package worker

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// runnersOf returns a queue with stand-ins for runners: it counts how many are started, and work makes them take all tasks.
func runnersOf(concurrency int) (q *queue, started *int, work func() int) {
	q, started = newQueue("q", concurrency), new(int)
	q.start = func() { *started++ }
	return q, started, func() (taken int) {
		for range *started {
			for q.take() != nil {
				taken++
			}
		}
		*started = 0
		return taken
	}
}

func tasks(n int) []*Task {
	all := make([]*Task, n)
	for i := range all {
		all[i] = &Task{}
	}
	return all
}

func TestJobsThatOnlyComputeAreRunByFew(t *testing.T) {
	pgtest.Alone(t, "how many jobs run at once depends on how long they take")
	q, started, work := runnersOf(2000)
	for range 200 {
		q.finished(0)
	}
	for range 50 {
		q.push(tasks(960))
		if *started < 1 || *started > least()+1 {
			t.Fatalf("%d runners started for jobs that take no time, want at most %d", *started, least()+1)
		}
		if taken := work(); taken != 960 {
			t.Fatalf("%d tasks were taken of 960", taken)
		}
		if q.runners != 0 {
			t.Fatalf("%d runners are left although no task waits", q.runners)
		}
	}
}

func TestJobsThatTakeTimeRunAtOnce(t *testing.T) {
	pgtest.Alone(t, "how many jobs run at once depends on how long they take")
	q, started, _ := runnersOf(2000)
	q.push(tasks(960)) // their duration is not known yet
	if *started != 960 {
		t.Fatalf("%d runners started for 960 jobs", *started)
	}
	q.push(tasks(960))
	q.push(tasks(960))
	if *started != 2000 {
		t.Fatalf("%d runners started at a concurrency of 2000", *started)
	}
}

func TestJobsThatTakeLongerThanTheLastOnesAreAllRunSoon(t *testing.T) {
	pgtest.Alone(t, "how many jobs run at once depends on how long they take")
	q, started, _ := runnersOf(2000)
	for range 200 {
		q.finished(0)
	}
	q.push(tasks(2000))
	for range *started {
		q.take() // and never finish it
	}
	steps := 0
	taken, waits := q.growOnce(-1)
	for ; waits; steps++ {
		before := *started
		taken, waits = q.growOnce(taken)
		for range *started - before {
			q.take()
		}
	}
	if *started != 2000 || steps > 12 {
		t.Errorf("%d runners were started in %d steps, want 2000 in 12", *started, steps)
	}
}

// TestSlotsThatBecomeFreeMeanwhileAreSeen: a worker without jobs that finds slots free claims, also if more become free at that moment. Who shares slots is told only of those that it was
// refused.
func TestSlotsThatBecomeFreeMeanwhileAreSeen(t *testing.T) {
	t.Parallel()
	q := newQueue("q", 8)
	for range 100 {
		q.inFlight.Add(1)
		q.finished(0) // its jobs are short
	}
	free := -1
	q.slots = func() int {
		free += 2
		return free
	}
	if !q.worthwhile() {
		t.Errorf("with none of its jobs running, and %d slots free, it waits for more", free)
	}
}

// TestTasksThatNoRunnerTakesAreGivenBack: but not before some have waited from one look to the next, and none is claimed ahead then.
func TestTasksThatNoRunnerTakesAreGivenBack(t *testing.T) {
	t.Parallel()
	q, _, _ := runnersOf(2)
	for range 100 {
		q.inFlight.Add(1)
		q.finished(0)
	}
	look := func(want int) {
		t.Helper()
		if got := len(q.stuck()); got != want {
			t.Errorf("%d are given back, want %d", got, want)
		}
	}
	look(0)
	q.push(tasks(4))
	look(0)
	q.take()
	look(0) // one was taken since
	q.take()
	q.take()
	q.take()
	look(0) // none waits
	q.push(tasks(3))
	look(0) // these were not there before
	if !q.short() {
		t.Fatal("jobs were short")
	}
	look(3)
	if look(0); q.short() {
		t.Error("more are claimed ahead")
	}
}
