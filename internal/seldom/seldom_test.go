package seldom_test

import (
	"sync"
	"testing"

	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/internal/seldom"
)

func TestAFloodIsALine(t *testing.T) {
	t.Parallel()
	var log pgtest.Log
	var l seldom.Log
	var all sync.WaitGroup
	for range 10_000 {
		all.Go(func() { l.Warn(log.Logger(), "refused") })
	}
	all.Wait()
	if n := log.Count("refused"); n < 1 || n > 10 {
		t.Errorf("%d lines", n)
	}
}
