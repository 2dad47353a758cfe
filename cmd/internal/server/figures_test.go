package server

import (
	"testing"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAHubKnowsItsFigures: channels with subscribers, and messages and deliveries per second.
func TestAHubKnowsItsFigures(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Database: pgtest.Database(t), PGAuth: Trust, Web: web.Config{Authorizer: authorizer(t)}})
	c := open(t, s, tokenFor(t, "ada", []string{">"}, []string{">"}, nil))
	c.ask(`{"type":"subscribe","channels":["a","b"]}`)
	pgtest.Until(t, "messages are measured", func() bool {
		c.say(`{"type":"publish","channel":"a","payload":"x"}`)
		f := s.Figures()
		return f.Channels >= 2 && f.Messages > 0 && f.Deliveries > 0
	})
}

// TestEachHubReportsItsRates: whoever lists the hubs sees what each of them does, in heartbeats that are sent whether or not there are messages.
func TestEachHubReportsItsRates(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	pool := pgtest.Pool(t, database)
	busy := start(t, Config{Database: database, Name: "busy", Web: web.Config{Authorizer: authorizer(t)}})
	start(t, Config{Database: database, Name: "quiet", Web: web.Config{Authorizer: authorizer(t)}})
	c := open(t, busy, tokenFor(t, "ada", []string{">"}, []string{">"}, nil))
	c.ask(`{"type":"subscribe","channels":["a","b"]}`)
	client := weir.NewClient(pool)
	hubs := map[string]weir.HubInfo{}
	pgtest.Until(t, "each hub has reported its rates", func() bool {
		c.say(`{"type":"publish","channel":"a","payload":"x"}`)
		all, err := client.Hubs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range all {
			hubs[h.Name] = h
		}
		return hubs["busy"].DeliveriesPerSecond > 0 && hubs["quiet"].MessagesPerSecond > 0
	})
	if b, q := hubs["busy"], hubs["quiet"]; b.Channels != 2 || b.MessagesPerSecond <= 0 || q.Channels != 0 || q.DeliveriesPerSecond != 0 {
		t.Errorf("the hub with a subscriber reports %+v, the other %+v", b, q)
	}
	var beats int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir.hub_beat WHERE hub = 'busy'`).Scan(&beats); err != nil || beats > 20 {
		t.Errorf("%d heartbeats were written: %v", beats, err)
	}
}
