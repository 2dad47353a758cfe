package server

import (
	"testing"

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
