package server

import (
	"context"
	"testing"
	"time"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAHubThatHasStoppedIsNotMissed: a hub that stops reports it, so that its silence is not taken for a fault.
func TestAHubThatHasStoppedIsNotMissed(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	client := weir.NewClient(pgtest.Pool(t, database))
	names := func() (all []string) {
		t.Helper()
		hubs, err := client.Hubs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hubs {
			all = append(all, h.Name)
		}
		return all
	}
	for range 2 { // a hub that starts again is listed again
		s := start(t, Config{Database: database, Name: "one", Web: web.Config{Anonymous: true}})
		for until := time.Now().Add(patience); len(names()) == 0; {
			if time.Now().After(until) {
				t.Fatal("the hub is not seen")
			}
			time.Sleep(10 * time.Millisecond) // between two queries
		}
		if err := s.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if left := names(); len(left) > 0 {
			t.Errorf("hubs %v are there after the last has stopped", left)
		}
	}
}
