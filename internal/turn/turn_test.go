package turn

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhoIsSlowKeepsNobodyWaitingForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		places := make(chan struct{}, 2)
		slow, ok := Take(t.Context(), places, time.Minute)
		quick, also := Take(t.Context(), places, time.Minute)
		if !ok || !also {
			t.Fatal("no place is free")
		}
		quick()
		began := time.Now()
		for range 2 {
			if _, ok := Take(t.Context(), places, time.Hour); !ok {
				t.Fatal("no place becomes free")
			}
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("two places were free after %v", took)
		}
		slow()
		quick() // which have no place any more
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, ok := Take(ctx, places, time.Hour); ok {
			t.Error("three have two places")
		}
	})
}
