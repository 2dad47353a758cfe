package browser

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/weir-pg/weir/cmd/internal/server"
	"github.com/weir-pg/weir/cmd/internal/web"
	"github.com/weir-pg/weir/internal/pgtest"
)

// TestAPageBeginsWithTheLastMessages: weir.js passes the last messages to the page, and then what is published; a stream that continues at its position
// receives only what it has missed. The hub has just been started: the messages are in the log.
func TestAPageBeginsWithTheLastMessages(t *testing.T) {
	t.Parallel()
	node := nodeJS(t)
	url := pgtest.Database(t)
	pool := pgtest.Pool(t, url)
	for i := range 5 {
		if _, err := pool.Exec(t.Context(), `SELECT weir.publish('room.' || $1 % 2, $1::text)`, i); err != nil {
			t.Fatal(err)
		}
	}
	s, err := server.Start(t.Context(), server.Config{Database: url, ListenHTTP: "127.0.0.1:0", Name: t.Name(), Web: web.Config{Anonymous: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(t.Context()) })
	program := exec.CommandContext(t.Context(), node, "--experimental-websocket", "testdata/history.mjs", fmt.Sprint("http://", s.HTTPAddr()))
	var errs strings.Builder
	program.Stderr = &errs
	said, err := program.Output()
	if want := "begins: 3 4 live\ncontinues: later\n"; err != nil || string(said) != want {
		t.Fatalf("got %q, want %q: %v %s", said, want, err, errs.String())
	}
}
