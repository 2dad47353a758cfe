package wake

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/store"
)

// polled returns a Jobs whose poll results come from the test.
func polled() (j *Jobs, since string) {
	j = New(nil, slog.New(slog.DiscardHandler))
	j.started()
	return j, j.token()
}

// within fails the test if f does not return within patience.
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

// TestWhoLeavesWhileBeingWokenHangsNobody: waiters of several queues that leave at the moment they are woken block neither each other nor the
// hub.
func TestWhoLeavesWhileBeingWokenHangsNobody(t *testing.T) {
	t.Parallel()
	j, since := polled()
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
		t.Errorf("%d waiters are still listed after they left", n)
	}
}

// TestAWakeUpIsNotLostWithWhoLeaves: if a waiter leaves after it was woken, the next waiter is woken in its place.
func TestAWakeUpIsNotLostWithWhoLeaves(t *testing.T) {
	t.Parallel()
	j, since := polled()
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
	j.wake(store.Fresh{Queues: []string{"b"}, Counts: []int32{1}}) // wakes the first
	leave()
	if ready, token, err := j.await(gone, first, since); err == nil || ready != nil || token != since {
		t.Errorf("the waiter that left is answered %q, %q, %v", ready, token, err)
	}
	within(t, "the next wake-up", func() { <-woken })
}

// TestOneLookWakesForAllOfItsQueues: an answer names all of a waiter's queues that have jobs, because its next wait starts after them.
func TestOneLookWakesForAllOfItsQueues(t *testing.T) {
	t.Parallel()
	j, since := polled()
	w := j.join([]string{"a", "b", "c", "a"}, since)
	j.wake(store.Fresh{Queues: []string{"a", "c"}, Counts: []int32{1, 1}})
	ready, _, err := j.await(t.Context(), w, since)
	if err != nil || len(ready) != 2 || ready[0] != "a" || ready[1] != "c" {
		t.Errorf("woken for %q, %v, want a and c", ready, err)
	}
}
