package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	nats "github.com/nats-io/nats-server/v2/server"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/cluster"
	"github.com/weir-pg/weir/cmd/internal/natstest"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestHubsOverNATSKnowWhoIsThereAndWhoIsRevoked: where only one of them reads the database, with a server inside each hub as with a NATS of one's own, and when NATS is lost.
func TestHubsOverNATSKnowWhoIsThereAndWhoIsRevoked(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		t.Run(map[bool]string{false: "embedded", true: "own"}[own], func(t *testing.T) {
			t.Parallel()
			database := pgtest.Database(t)
			client := weir.NewClient(pgtest.Pool(t, database))
			path := filepath.Join(t.TempDir(), "channels.json")
			if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "presence": true}]}`), 0o600); err != nil {
				t.Fatal(err)
			}
			var broker *nats.Server
			if own {
				broker = natstest.Start(t, nil)
			}
			var hubs []*Server
			for i := range 2 {
				c := &cluster.Config{}
				switch {
				case own:
					c.URL = broker.ClientURL()
				case i == 0:
					c.Embedded = &cluster.Embedded{Listen: "127.0.0.1:-1", Secret: "a secret of some length"}
				default:
					c.Embedded = &cluster.Embedded{Listen: "127.0.0.1:-1", Secret: "a secret of some length", Routes: []string{hubs[0].cluster.Address()}}
				}
				hubs = append(hubs, start(t, Config{Database: database, Name: fmt.Sprint("hub ", i), PGAuth: Trust, ChannelsFile: path, Cluster: c, Web: web.Config{Authorizer: authorizer(t)}}))
			}
			role := func(want cluster.Role) (h *Server) {
				t.Helper()
				pgtest.Until(t, fmt.Sprintf("one of the hubs is %v", want), func() bool {
					for _, h = range hubs {
						if h.cluster.Stats().Role == want {
							return true
						}
					}
					return false
				})
				return h
			}
			follower, reader := role(cluster.Following), role(cluster.Reading)
			token := func(user string) string {
				return tokenFor(t, user, []string{">"}, []string{">"}, jwt.MapClaims{"iat": time.Now().Add(-time.Minute).Unix()})
			}
			join := func(s *Server, user string) *socket {
				t.Helper()
				c := open(t, s, token(user))
				if got := c.ask(`{"type":"subscribe","channels":["room.1"],"presence":true}`); got["type"] != "subscribed" {
					t.Fatal(got)
				}
				return c
			}
			until := func(s *Server, members string) {
				t.Helper()
				pgtest.Until(t, "the members are "+members, func() bool {
					var all []string
					for _, m := range s.presence.List("room.1", "", 10).Users {
						all = append(all, m.User)
					}
					return strings.Join(all, " ") == members
				})
			}
			ada, bob := join(reader, "ada"), join(follower, "bob")
			for _, s := range hubs {
				until(s, "ada bob")
			}
			for left := false; !left; {
				o := ada.await("presence")
				left = strings.Contains(fmt.Sprint(o["joined"]), "bob")
			}
			if err := bob.conn.CloseNow(); err != nil {
				t.Fatal(err)
			}
			until(reader, "ada")

			// A user of the follower is revoked; its tokens are refused at both hubs.
			carl := join(follower, "carl")
			if _, err := client.Revoke(t.Context(), "carl", time.Hour); err != nil {
				t.Fatal(err)
			}
			if code := carl.end(); code != 4401 {
				t.Errorf("carl's WebSocket ended with code %d", code)
			}
			pgtest.Until(t, "both hubs refuse carl's token", func() bool {
				for _, s := range hubs {
					if _, err := dial(t, s, token("carl")); err == nil || !strings.Contains(err.Error(), "401") {
						return false
					}
				}
				return true
			})
			until(reader, "ada")
			if !own {
				return
			}

			// Without NATS each hub reads for itself.
			broker.Shutdown()
			broker.WaitForShutdown()
			dan := join(follower, "dan")
			until(reader, "ada dan")
			if err := client.Disconnect(t.Context(), "dan"); err != nil {
				t.Fatal(err)
			}
			if code := dan.end(); code != 1008 {
				t.Errorf("dan's WebSocket ended with code %d", code)
			}
			until(reader, "ada")
		})
	}
}
