package wake

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// looking returns a Jobs that is told by the test what a look has found.
func looking() (j *Jobs, since string) {
	j = New(nil, slog.New(slog.DiscardHandler))
	j.started()
	return j, j.token()
}

// within fails the test when f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s takes longer than %v", what, patience)
	}
}

// TestWhoLeavesWhileBeingWokenHangsNobody: waiters of several queues leave in the same moment in which they are woken, again and again.
func TestWhoLeavesWhileBeingWokenHangsNobody(t *testing.T) {
	t.Parallel()
	j, since := looking()
	queues := []string{"a", "b"}
	for range 200 {
		ctx, leave := context.WithCancel(t.Context())
		var waiters sync.WaitGroup
		for range 50 {
			waiters.Go(func() { _, _, _ = j.Wait(ctx, queues, since) })
		}
		for j.waitersOf("a") < 50 {
			<-time.After(100 * time.Microsecond)
		}
		var both sync.WaitGroup
		both.Go(leave)
		both.Go(func() {
			for range 4 {
				j.wake(store.Fresh{Queues: queues, Counts: []int32{20, 20}})
			}
		})
		within(t, "leaving while being woken", func() { both.Wait(); waiters.Wait() })
		since = j.tokenNow()
	}
	if n := j.waitersOf("a") + j.waitersOf("b"); n != 0 {
		t.Errorf("%d who have left are still waited for", n)
	}
}

// TestAWakeUpIsNotLostWithWhoLeaves: who was woken and has gone is replaced by the next who waits.
func TestAWakeUpIsNotLostWithWhoLeaves(t *testing.T) {
	t.Parallel()
	j, since := looking()
	gone, leave := context.WithCancel(t.Context())
	first := j.join([]string{"a", "b"}, since)
	woken := make(chan []string, 1)
	go func() {
		ready, _, _ := j.Wait(t.Context(), []string{"b"}, since)
		woken <- ready
	}()
	for j.waitersOf("b") < 2 {
		<-time.After(100 * time.Microsecond)
	}
	j.wake(store.Fresh{Queues: []string{"b"}, Counts: []int32{1}}) // the first in the queue
	leave()
	if ready, token, err := j.await(gone, first, since); err == nil || ready != nil || token != since {
		t.Errorf("who has gone is answered %q, %q, %v", ready, token, err)
	}
	within(t, "the next wake-up", func() { <-woken })
}

// TestOneLookWakesForAllOfItsQueues: who waits for several queues hears of each of them that has jobs, for the next wait begins after all.
func TestOneLookWakesForAllOfItsQueues(t *testing.T) {
	t.Parallel()
	j, since := looking()
	w := j.join([]string{"a", "b", "c", "a"}, since)
	j.wake(store.Fresh{Queues: []string{"a", "c"}, Counts: []int32{1, 1}})
	ready, _, err := j.await(t.Context(), w, since)
	if err != nil || len(ready) != 2 || ready[0] != "a" || ready[1] != "c" {
		t.Errorf("woken for %q, %v, want a and c", ready, err)
	}
}
