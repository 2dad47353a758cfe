package server

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/cluster"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestClusteredHubsShareWhatIsNotLogged: notifications that are not logged reach the clients of all hubs, and so do messages published in
// the database.
func TestClusteredHubsShareWhatIsNotLogged(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	member := func(routes ...string) *Server {
		return start(t, Config{Database: database, Cluster: &cluster.Config{Embedded: &cluster.Embedded{
			Listen: "127.0.0.1:-1", Routes: routes, Secret: "a secret of some length",
		}}})
	}
	a := member()
	b := member(a.cluster.Address())
	for end := time.Now().Add(patience); a.cluster.Stats().Hubs < 2 || b.cluster.Stats().Hubs < 2; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the hubs have not found each other")
		}
	}
	atA, atB := listen(t, a, database, "news"), listen(t, b, database, "news")
	// Unlogged messages are not guaranteed: hub a learns only after a while that a client listens at b. So they are repeated until one arrives.
	heard := make(chan struct{})
	said := make(chan error, 1)
	go func() {
		defer close(said)
		speaker := listen(t, a, database)
		for {
			if _, err := speaker.Exec(t.Context(), `NOTIFY news, 'passed on'`); err != nil {
				said <- err
				return
			}
			select {
			case <-heard:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	if got := received(t, atB); got != "news=passed on" {
		t.Errorf("at the other hub: %s", got)
	}
	if got := received(t, atA); got != "news=passed on" {
		t.Errorf("at the same hub: %s", got)
	}
	close(heard)
	if err := pgtest.Receive(t, said, "the speaker has ended"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `SELECT weir.publish('news', 'logged')`); err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]*pgx.Conn{"a": atA, "b": atB} {
		got := received(t, conn)
		for got == "news=passed on" {
			got = received(t, conn)
		}
		if got != "news=logged" {
			t.Errorf("at %s: %s", name, got)
		}
	}
}
