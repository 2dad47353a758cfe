package weirui

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-pg/weir/internal/pgtest"
)

// TestWhatTakesLongIsShownWhileItIsReadAgain: what was read last is shown as long as it is read again. After an action, and where nothing was read lately, a page waits for what is true then.
func TestWhatTakesLongIsShownWhileItIsReadAgain(t *testing.T) {
	t.Parallel()
	d := newDatabase(Database{}, nil)
	var reads atomic.Int32
	end := make(chan struct{})
	fetch := func(ctx context.Context) (int32, error) {
		n := reads.Add(1)
		if n == 1 {
			<-time.After(slowRead * 2) // it takes long
			return n, nil
		}
		select {
		case <-end:
			return n, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	look := func() int32 {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), readFor/2)
		defer cancel()
		n, err := readAged(ctx, d, "key", 0, fetch)
		if err != nil {
			t.Fatalf("after %d reads: %v", reads.Load(), err)
		}
		return n
	}
	pgtest.Until(t, "the second read begins, and the first result is shown", func() bool { return look() == 1 && reads.Load() == 2 })
	if n := look(); n != 1 || reads.Load() != 2 {
		t.Errorf("while it is read again, result %d is shown, after %d reads", n, reads.Load())
	}
	<-time.After(slowRead * 2) // this one takes long as well: else whoever looks next would wait for another
	end <- struct{}{}
	pgtest.Until(t, "the second result is shown", func() bool { return look() == 2 })
	d.changed()
	after := make(chan int32, 1)
	go func() {
		n, _ := readAged(t.Context(), d, "key", 0, fetch)
		after <- n
	}()
	pgtest.Until(t, "it is read after an action", func() bool { return reads.Load() == 3 })
	select {
	case n := <-after:
		t.Errorf("after an action, the earlier result %d is shown", n)
	default:
	}
	close(end)
	if n := pgtest.Receive(t, after, "the result after the action"); n != 3 {
		t.Errorf("after an action, result %d is shown", n)
	}
}
