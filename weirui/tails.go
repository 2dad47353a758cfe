package weirui

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/weir-pg/weir/internal/hub"
	"github.com/weir-pg/weir/internal/store"
)

const (
	mostTails       = 20 // of a database at a time
	tailConnections = 2  // of the database's pool, however many tails are open
	tailRing        = 1 << 20
)

// tails is what all tails of a database share: a hub of their own, which reads its messages only while somebody looks. Each tail subscribes there, so
// the database is read once for all of them, whatever their channels.
type tails struct {
	mu   sync.Mutex
	open int
	hub  *hub.Hub
	stop context.CancelFunc // ends the hub
	hubs int                // that have not ended
}

// enter counts a tail, and returns the hub, which runs until the last tail has left.
func (t *tails) enter(u *UI, d *database) (*hub.Hub, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open >= mostTails {
		return nil, &problem{http.StatusServiceUnavailable, fmt.Sprintf("%d tails of this database are open, and no more may be.", mostTails), "Close one, or look from the shell: weir listen."}
	}
	t.open++
	if t.open == 1 {
		var ctx context.Context
		ctx, t.stop = context.WithCancel(context.Background())
		h := hub.New(hub.Config{Source: hub.NewLog(store.New(d.Pool, tailConnections), nil), Logger: u.log, RingBytes: tailRing})
		t.hub = h
		t.hubs++
		go func() { // ends after t.stop
			h.Run(ctx)
			t.mu.Lock()
			defer t.mu.Unlock()
			t.hubs--
		}()
	}
	return t.hub, nil
}

// leave undoes enter.
func (t *tails) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open--; t.open == 0 {
		t.stop()
		t.hub = nil
	}
}

// servers knows which servers of this UI's requests are shutting down.
type servers struct {
	mu   sync.Mutex
	ends map[*http.Server]chan struct{}
}

// ending returns a channel that is closed when the server of a request shuts down; nil: nobody knows. http.Server.Shutdown waits until all requests
// have been answered, and ends none: a stream has to end itself.
func (s *servers) ending(ctx context.Context) <-chan struct{} {
	server, _ := ctx.Value(http.ServerContextKey).(*http.Server)
	if server == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end, known := s.ends[server]; known {
		return end
	}
	end := make(chan struct{})
	if s.ends == nil {
		s.ends = map[*http.Server]chan struct{}{}
	}
	s.ends[server] = end
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(end) }))
	return end
}
