package web

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-pg/weir/internal/hub"
)

// blocking is a source whose Next, once the test holds it, does not even return when its context ends.
type blocking struct {
	*memory
	hold chan chan struct{}
}

func (b blocking) Next(ctx context.Context, after hub.Position) ([]*hub.Part, error) {
	select {
	case until := <-b.hold:
		<-until
	default:
	}
	return b.memory.Next(ctx, after)
}

// TestAHubWhoseLoopIsStuckFailsItsLivenessProbe: from the loop that reads ticks to the answer to the probe, in virtual time.
func TestAHubWhoseLoopIsStuckFailsItsLivenessProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := blocking{newMemory(), make(chan chan struct{}, 1)}
		h := hub.New(hub.Config{Source: source, Logger: slog.New(slog.DiscardHandler)})
		web, err := New(Config{Hub: h, Logger: slog.New(slog.DiscardHandler), Anonymous: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); h.Run(ctx) }()
		defer func() { stop(); <-ended }()
		probe := func(when string, want int, says string) {
			t.Helper()
			answer := httptest.NewRecorder()
			web.serveHealth(answer, httptest.NewRequest("GET", "/healthz", nil))
			if answer.Code != want || !strings.Contains(answer.Body.String(), says) {
				t.Errorf("%s, the probe is answered with %d: %s; want %d with %q", when, answer.Code, answer.Body, want, says)
			}
		}
		time.Sleep(time.Hour) // virtual: the loop runs all the time
		probe("after an hour of work", 200, "")
		release := make(chan struct{})
		source.hold <- release
		time.Sleep(5 * time.Second)
		probe("after a moment without progress", 200, "")
		time.Sleep(time.Hour)
		probe("after an hour without progress", 503, "reading ticks has made no progress for 1h0m")
		close(release)
		time.Sleep(5 * time.Second)
		probe("after the loop continues", 200, "")
	})
}
