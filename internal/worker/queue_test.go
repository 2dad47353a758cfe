package worker

import (
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
)

// crew stands in for runners: it counts how many were started, and has those that were take all tasks.
func crew(concurrency int) (q *queue, started *int, work func() int) {
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
	pgtest.Alone(t, "how many run at a time depends on how long they take")
	q, started, work := crew(2000)
	for range 200 {
		q.finished(0)
	}
	for range 50 {
		q.push(tasks(960))
		if *started < 1 || *started > least()+1 {
			t.Fatalf("%d runners were started for jobs that take no time, want at most %d", *started, least()+1)
		}
		if taken := work(); taken != 960 {
			t.Fatalf("%d tasks were taken of 960", taken)
		}
		if q.runners != 0 {
			t.Fatalf("%d runners are left where no task waits", q.runners)
		}
	}
}

func TestJobsThatTakeTimeRunAtOnce(t *testing.T) {
	pgtest.Alone(t, "how many run at a time depends on how long they take")
	q, started, _ := crew(2000)
	q.push(tasks(960)) // how long they take is not known yet
	if *started != 960 {
		t.Fatalf("%d runners were started for 960 jobs", *started)
	}
	q.push(tasks(960))
	q.push(tasks(960))
	if *started != 2000 {
		t.Fatalf("%d runners were started at a concurrency of 2000", *started)
	}
}

func TestJobsThatTakeLongerThanTheLastOnesAreAllRunSoon(t *testing.T) {
	pgtest.Alone(t, "how many run at a time depends on how long they take")
	q, started, _ := crew(2000)
	for range 200 {
		q.finished(0)
	}
	q.push(tasks(2000))
	for range *started {
		q.take() // and stay with it
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
