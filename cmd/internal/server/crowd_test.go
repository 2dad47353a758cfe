package server

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAFullChannelIsRefusedOnEveryTransport: whatever transport its subscribers use, and whether or not they resume; others are not affected, and whoever leaves makes room.
func TestAFullChannelIsRefusedOnEveryTransport(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "channels.json")
	if err := os.WriteFile(path, []byte(`{"channels": [{"match": "room.*", "subscribers": 2}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Database: pgtest.Database(t), PGAuth: Trust, ChannelsFile: path, MaxSubscribers: 3, Web: web.Config{Authorizer: authorizer(t)}})
	token := tokenFor(t, "ada", []string{">"}, nil, nil)
	at := "http://" + s.HTTPAddr().String() + "/v1/events?channel="
	pg, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://carl@%s/db", s.PGAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(t.Context())
	if _, err := pg.Exec(t.Context(), `LISTEN "room.1"`); err != nil {
		t.Fatal(err)
	}
	one := open(t, s, token)
	if got := one.ask(`{"type":"subscribe","channels":["room.1","other","room.*"]}`); got["type"] != "subscribed" {
		t.Fatal(got)
	}

	// room.1 is full.
	two := open(t, s, token)
	for _, r := range []string{
		`{"type":"subscribe","channels":["free","room.1"]}`, `{"type":"subscribe","channels":["room.1"],"last":5}`, `{"type":"subscribe","channels":["room.1"],"position":"0.0.0"}`,
	} {
		if got := two.ask("%s", r); got["code"] != "limit" || !strings.Contains(got.String(), `has 2 subscribers at this hub`) {
			t.Errorf("%s is answered by %v", r, got)
		}
	}
	for _, more := range []string{"", "&last=3", "&position=0.0.0"} {
		if status, header, text := request(t, "GET", at+"room.1"+more, token, ""); status != http.StatusTooManyRequests || header.Get("Retry-After") == "" || !strings.Contains(text, `"code":"limit"`) {
			t.Errorf("an event stream of a full channel%s: %d %s", more, status, text)
		}
	}
	other, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://dan@%s/db", s.PGAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	if _, err := other.Exec(t.Context(), `LISTEN "room.1"`); sqlstate(err) != "53400" {
		t.Errorf("LISTEN on a full channel: %v", err)
	}
	if _, err := other.Exec(t.Context(), `LISTEN "room.2"`); err != nil {
		t.Errorf("LISTEN on another channel: %v", err)
	}
	if got := two.ask(`{"type":"subscribe","channels":["room.2","room.*"]}`); got["type"] != "subscribed" {
		t.Errorf("other channels: %v", got)
	}
	if got := s.Hub().Full(nil); got != nil {
		t.Error(got)
	}

	// What the file does not mention has the hub's limit.
	for range 2 {
		if got := open(t, s, token).ask(`{"type":"subscribe","channels":["other"]}`); got["type"] != "subscribed" {
			t.Fatal(got)
		}
	}
	if got := two.ask(`{"type":"subscribe","channels":["other"]}`); got["code"] != "limit" || !strings.Contains(got.String(), `has 3 subscribers`) {
		t.Errorf("a channel beyond the hub's limit: %v", got)
	}

	// Whoever leaves makes room.
	if _, err := pg.Exec(t.Context(), `UNLISTEN "room.1"`); err != nil {
		t.Fatal(err)
	}
	if got := two.ask(`{"type":"subscribe","channels":["room.1"]}`); got["type"] != "subscribed" {
		t.Errorf("after another has left: %v", got)
	}
}
